// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// server is one real server for all tests of the package.
var server *testbed.GCS

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tenure-gcs-")
	if err == nil {
		defer os.RemoveAll(dir)
		os.Unsetenv(envCredentials)
		os.Setenv("STORAGE_EMULATOR_HOST", "x") // which the driver must not heed
		server, err = testbed.StartGCS(dir)
		if cache, e := os.UserCacheDir(); e == nil {
			os.Setenv("XDG_CACHE_HOME", cache) // where the server was built
		}
		os.Setenv("HOME", dir) // nobody's own credentials
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Close()
	return m.Run()
}

var buckets atomic.Int64

// newBucket makes a bucket in the server's memory and returns its name.
func newBucket(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test-%d", buckets.Add(1))
	if err := server.CreateBucket(name); err != nil {
		t.Fatal(err)
	}
	return name
}

// open opens a lock through its URL, as programs do.
func open(t testing.TB, url string) *Register {
	t.Helper()
	lock, err := tenure.Open(context.Background(), url, tenure.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	r := lock.Register.(*Register)
	t.Cleanup(r.store.http.CloseIdleConnections)
	return r
}

func lockURL(endpoint, bucket, object string) string {
	return "gs://" + bucket + "/" + object + "?anonymous=true&endpoint=" + endpoint
}

const testObject = "locks/nightly.lock"

// fresh opens a lock in a bucket of its own, without a proxy.
func fresh(t testing.TB) *Register {
	t.Helper()
	return open(t, server.LockURL(newBucket(t), testObject))
}

func remove(t testing.TB, r *Register) {
	t.Helper()
	if err := server.Delete(r.store.bucket, r.object); err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, r *Register, value []byte) {
	t.Helper()
	if err := server.Put(r.store.bucket, r.object, value); err != nil {
		t.Fatal(err)
	}
}

// proxied returns a lock in a bucket of its own through a proxy, and the same
// lock past it.
func proxied(t testing.TB, rule fault.Rule) (r, direct *Register, p *fault.HTTP) {
	t.Helper()
	p, err := fault.NewHTTP(server.Endpoint, rule)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	direct = fresh(t)
	return open(t, lockURL(p.URL(), direct.store.bucket, direct.object)), direct, p
}

// limited starts a server that refuses a second write of an object within a
// second, behind a proxy, and returns what makes the URL of an object there.
func limited(t testing.TB) (*fault.HTTP, func(object string) string) {
	t.Helper()
	g, err := testbed.StartGCS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	g.LimitWrites(true)
	if err := g.CreateBucket("limited"); err != nil {
		t.Fatal(err)
	}
	p, err := fault.NewHTTP(g.Endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, func(object string) string { return lockURL(p.URL(), "limited", object) }
}

func mustWrite(t testing.TB, r tenure.Register, value string, old tenure.Version) tenure.Version {
	t.Helper()
	v, err := r.Write(within(t, 20*time.Second), []byte(value), old)
	if err != nil {
		t.Fatalf("write %q at version %q: %v", value, old, err)
	}
	return v
}

func mustRead(t testing.TB, r tenure.Register) (string, tenure.Version) {
	t.Helper()
	b, v, err := r.Read(within(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return string(b), v
}

// secret is in every credential of these tests.
const secret = "c2VjcmV0"

// mustSay checks that an error says all of these, in one line and without a
// credential.
func mustSay(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that says %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
	for _, s := range []string{secret, "Bearer", "PRIVATE KEY"} {
		if strings.Contains(err.Error(), s) {
			t.Errorf("the error holds a credential (%s): %v", s, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has several lines: %q", err)
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// says is an answer in the service's own form.
func says(status int, reason, message string, header ...string) fault.Answer {
	a := fault.Answer{
		Status: status,
		Header: http.Header{"X-Guploader-Uploadid": {"ABC"}, "Content-Type": {"application/json; charset=UTF-8"}},
		Body: fmt.Sprintf(`{"error":{"code":%d,"message":%q,"errors":[{"message":%[2]q,"domain":"global","reason":%[3]q}]}}`,
			status, message, reason),
	}
	for i := 0; i+1 < len(header); i += 2 {
		a.Header.Set(header[i], header[i+1])
	}
	return a
}

func writes(records []fault.Record) (n int) {
	for _, r := range records {
		if r.Method == http.MethodPost && r.Forwarded {
			n++
		}
	}
	return n
}

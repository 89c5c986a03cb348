// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// azurite is one real server for all tests of the package.
var azurite *testbed.Azurite

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	for _, env := range []string{envConnection, envAccount, envKey, envSAS} {
		os.Unsetenv(env)
	}
	dir, err := os.MkdirTemp("", "tenure-azblob-")
	if err == nil {
		defer os.RemoveAll(dir)
		azurite, err = testbed.StartAzurite(dir, testbed.AzuriteTLS{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer azurite.Kill()
	return m.Run()
}

var containers atomic.Int64

// newContainer makes a container and returns its name.
func newContainer(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test-%d", containers.Add(1))
	if err := azurite.CreateContainer(name); err != nil {
		t.Fatal(err)
	}
	s := azuriteStore(t, azurite.Endpoint, name)
	t.Cleanup(func() {
		// t's context has ended by now.
		a, err := s.do(context.Background(), request{method: http.MethodDelete, query: url.Values{"restype": {"container"}}})
		if err != nil || a.status != http.StatusAccepted && a.status != http.StatusNotFound {
			t.Errorf("remove container %s: %v", name, err)
		}
	})
	return name
}

// azuriteStore is a client of its own, with the account's key.
func azuriteStore(t testing.TB, endpoint, container string) *store {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(testbed.AzuriteKey)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(place{account: testbed.AzuriteAccount, container: container, endpoint: u}, &sharedKey{testbed.AzuriteAccount, key})
	t.Cleanup(s.http.CloseIdleConnections)
	return s
}

// must makes a request that the driver itself never makes, such as a deletion.
func must(t testing.TB, s *store, q request, want int) *answer {
	t.Helper()
	a, err := s.do(context.Background(), q)
	if err != nil {
		t.Fatalf("%s %s: %v", q.method, q.blob, err)
	}
	if a.status != want {
		t.Fatalf("%s %s: %d %s, want %d", q.method, q.blob, a.status, a.code, want)
	}
	return a
}

// openAt opens a lock through the URL, as programs do.
func openAt(t testing.TB, endpoint, container, blob string) *Register {
	t.Helper()
	var old, had = os.LookupEnv(envKey)
	os.Setenv(envKey, testbed.AzuriteKey)
	defer func() {
		if os.Unsetenv(envKey); had {
			os.Setenv(envKey, old)
		}
	}()
	lock, err := tenure.Open(context.Background(), "azblob://"+container+"/"+blob+"?endpoint="+endpoint, tenure.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	r := lock.Register.(*Register)
	t.Cleanup(r.store.http.CloseIdleConnections)
	return r
}

// fresh opens a lock in a container of its own, without a proxy.
func fresh(t testing.TB) *Register {
	t.Helper()
	return openAt(t, azurite.Endpoint, newContainer(t), "locks/nightly.lock")
}

// remove deletes the record behind the driver's back, put replaces it.
func remove(t testing.TB, r *Register) {
	t.Helper()
	must(t, r.store, request{method: http.MethodDelete, blob: r.blob}, http.StatusAccepted)
}

func put(t testing.TB, r *Register, value []byte) {
	t.Helper()
	must(t, r.store, request{method: http.MethodPut, blob: r.blob, body: value, header: http.Header{"X-Ms-Blob-Type": {blockBlob}}}, http.StatusCreated)
}

// proxied returns a lock in a container of its own through a proxy, and the
// same lock past it.
func proxied(t testing.TB, rule fault.Rule) (r, direct *Register, p *fault.HTTP) {
	t.Helper()
	p, err := fault.NewHTTP("http://"+azurite.Host, rule)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	direct = fresh(t)
	r = openAt(t, p.URL()+"/"+testbed.AzuriteAccount, direct.store.container, direct.blob)
	return r, direct, p
}

func mustWrite(t testing.TB, r tenure.Register, value string, old tenure.Version) tenure.Version {
	t.Helper()
	v, err := r.Write(context.Background(), []byte(value), old)
	if err != nil {
		t.Fatalf("write %q at version %q: %v", value, old, err)
	}
	return v
}

func mustRead(t testing.TB, r tenure.Register) (string, tenure.Version) {
	t.Helper()
	b, v, err := r.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return string(b), v
}

// mustSay checks that an error says all of these, and no credential.
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
	for _, secret := range []string{testbed.AzuriteKey, "c2VjcmV0", "Bearer", "SharedKey ", "sig="} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error holds a credential (%s): %v", secret, err)
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

// writeFile writes a file for this test and returns its path.
func writeFile(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

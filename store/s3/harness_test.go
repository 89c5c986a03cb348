// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tenure.dev"
	"tenure.dev/storetest"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// server is shared by the package's tests; each uses keys of its own.
var server *testbed.Versity

const bucket = "locks"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// Elections wait most of the time: more of them than there are processors.
	if err := flag.Set("test.parallel", "12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "tenure-s3-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for _, unset := range []string{"AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
		os.Unsetenv(unset)
	}
	os.Setenv("AWS_EC2_METADATA_DISABLED", "true") // nothing outside of this machine is asked
	os.Setenv("AWS_CONFIG_FILE", dir+"/config")
	os.Setenv("AWS_SHARED_CREDENTIALS_FILE", dir+"/credentials")
	server, err = testbed.StartVersity(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Close()
	for _, e := range server.Env {
		k, v, _ := strings.Cut(e, "=")
		os.Setenv(k, v)
	}
	return m.Run()
}

var made sync.Once

func makeBucket(t storetest.T) {
	t.Helper()
	made.Do(func() {
		if err := server.MakeBucket(t.Context(), bucket); err != nil {
			t.Fatalf("%v", err)
		}
	})
}

var keys atomic.Int64

// newKey returns a key that nobody else has.
func newKey() string { return fmt.Sprintf("locks/%06d/nightly", keys.Add(1)) }

// openAt opens a lock at an endpoint, the server's or that of a proxy before it.
func openAt(t storetest.T, endpoint, key string, extra ...string) *Register {
	t.Helper()
	makeBucket(t)
	l, err := tenure.Open(t.Context(), server.Lock(endpoint, bucket, key, extra...), tenure.Vars{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return l.Register.(*Register)
}

// behind returns a register on a new key behind a new proxy.
func behind(t *testing.T, rule fault.Rule) (*Register, *fault.HTTP) {
	t.Helper()
	p, err := fault.NewHTTP(server.URL, rule)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return openAt(t, p.URL(), newKey()), p
}

// direct opens the same object past all proxies.
func direct(t *testing.T, r *Register) *Register { return openAt(t, server.URL, r.key) }

func mustWrite(t *testing.T, r tenure.Register, value string, old tenure.Version) tenure.Version {
	t.Helper()
	v, err := r.Write(t.Context(), []byte(value), old)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func mustRead(t *testing.T, r tenure.Register) (string, tenure.Version) {
	t.Helper()
	b, v, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(b), v
}

func harness() storetest.Harness {
	return storetest.Harness{
		New: func(t storetest.T) tenure.Register { return openAt(t, server.URL, newKey()) },
		Open: func(t storetest.T) (a, b tenure.Register) {
			key := newKey()
			return openAt(t, server.URL, key), openAt(t, server.URL, key)
		},
		Delete: func(t storetest.T, r tenure.Register) {
			if err := server.Delete(t.Context(), bucket, r.(*Register).key); err != nil {
				t.Fatalf("%v", err)
			}
		},
		Corrupt: func(t storetest.T, r tenure.Register, value []byte) {
			if err := server.Put(t.Context(), bucket, r.(*Register).key, value); err != nil {
				t.Fatalf("%v", err)
			}
		},
		Histories: 6, Clients: 4, Requests: 25,
	}
}

// TestStore is the suite for all drivers, on a real server.
func TestStore(t *testing.T) { storetest.Run(t, harness()) }

// TestStoreDialect is the suite on a server that speaks otherwise: bare ETags
// from reads, weak ones from writes, 412 for a missing key, 409 now and then.
func TestStoreDialect(t *testing.T) {
	var writes atomic.Int64
	p, err := fault.NewHTTP(server.URL, func(req *http.Request) fault.Action {
		if fault.IsWrite(req) && writes.Add(1)%7 == 0 {
			return fault.Instead(s3Error(409, "ConditionalRequestConflict", "x"))
		}
		return fault.Action{EditAnswer: func(a *http.Response) {
			tag := strings.Trim(a.Header.Get("ETag"), `"`)
			switch {
			case tag == "" && a.StatusCode == http.StatusNotFound && req.Header.Get("If-Match") != "":
				other := s3Error(412, "PreconditionFailed", "x")
				a.StatusCode, a.Body = other.Status, io.NopCloser(strings.NewReader(other.Body))
				a.Header.Set("Content-Length", fmt.Sprint(len(other.Body)))
			case tag == "":
			case fault.IsWrite(req):
				a.Header.Set("ETag", `W/"`+tag+`"`)
			default:
				a.Header.Set("ETag", tag)
			}
		}}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	h := harness()
	h.New = func(t storetest.T) tenure.Register { return openAt(t, p.URL(), newKey()) }
	h.Open = func(t storetest.T) (a, b tenure.Register) {
		key := newKey()
		return openAt(t, p.URL(), key), openAt(t, p.URL(), key)
	}
	h.Histories = 3
	storetest.Run(t, h)
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/storetest"
	"tenure.dev/test/testbed"
)

// shared is a cluster of three that tests use side by side: none of them may
// harm it.
var shared *testbed.Etcd

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	// The tests wait more than they work: by default as many run as there are
	// cores.
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "tenure-etcd-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if shared, err = testbed.StartEtcd(dir, 3, testbed.EtcdOptions{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer shared.Close()
	return m.Run()
}

// newEtcd starts a cluster that a test may harm.
func newEtcd(t *testing.T, members int, opt testbed.EtcdOptions) *testbed.Etcd {
	t.Helper()
	e, err := testbed.StartEtcd(t.TempDir(), members, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// newKey returns a key that nobody else has.
func newKey(name string) string {
	return "/test/" + strings.ReplaceAll(name, "/", "-") + "-" + rand.Text()
}

func mustOpen(t storetest.T, key string, opt Options) *Register {
	t.Helper()
	r, err := Open(key, opt)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func plain(endpoints ...string) Options { return Options{Endpoints: endpoints, TLS: TLSOff} }

// short is a context as an elector gives it to a request.
func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func mustWrite(t *testing.T, r *Register, value string, old tenure.Version) tenure.Version {
	t.Helper()
	v, err := r.Write(short(t), []byte(value), old)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func mustHold(t *testing.T, r *Register, want string, version tenure.Version) {
	t.Helper()
	value, v, err := r.Read(short(t))
	if err != nil || string(value) != want || v != version {
		t.Fatalf("the key holds %q at %q, %v; want %q at %q", value, v, err, want, version)
	}
}

func TestStore(t *testing.T) {
	key := func(r tenure.Register) string { return r.(*Register).key }
	storetest.Run(t, storetest.Harness{
		New: func(t storetest.T) tenure.Register {
			return mustOpen(t, newKey(t.Name()), plain(shared.Endpoints()...))
		},
		Open: func(t storetest.T) (a, b tenure.Register) {
			// Two processes that talk to different members.
			key, all := newKey(t.Name()), shared.Endpoints()
			return mustOpen(t, key, plain(all[0], all[1])), mustOpen(t, key, plain(all[2], all[1]))
		},
		Delete: func(t storetest.T, r tenure.Register) {
			if err := shared.Delete(key(r)); err != nil {
				t.Fatalf("%v", err)
			}
		},
		Corrupt: func(t storetest.T, r tenure.Register, value []byte) {
			if err := shared.Put(key(r), value); err != nil {
				t.Fatalf("%v", err)
			}
		},
		Histories: 10,
		Parallel:  true,
	})
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/storetest"
	"tenure.dev/test/testbed"
)

// TestConformance runs the suite for drivers on a real server.
func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, harness(t, server.Host))
}

// TestConformancePooled runs it through a pooler in transaction mode: each
// transaction may be on another of the server's connections.
func TestConformancePooled(t *testing.T) {
	t.Parallel()
	b, err := testbed.StartPgBouncer(folder(t), server, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Stop(5 * time.Second) })
	h := harness(t, b.Host)
	h.Histories = 3 // what a pooler does to one it does to all
	storetest.Run(t, h)
}

func harness(t *testing.T, host string) storetest.Harness {
	url := func() string { return strings.Replace(server.URL(newKey()), server.Host, host, 1) }
	return storetest.Harness{
		New: func(storetest.T) tenure.Register { return open(t, url()) },
		Open: func(storetest.T) (a, b tenure.Register) {
			u := url()
			return open(t, u), open(t, u)
		},
		Delete:    func(_ storetest.T, r tenure.Register) { remove(t, server, r.(*Register)) },
		Corrupt:   func(_ storetest.T, r tenure.Register, b []byte) { put(t, server, r.(*Register), b) },
		Histories: 8, Clients: 4, Requests: 25,
	}
}

// TestVersionsNeverRepeat does what people and tools do to a table, with the
// value always the same, and looks for a version seen before.
func TestVersionsNeverRepeat(t *testing.T) {
	r := fresh(t)
	seen := map[tenure.Version]string{}
	note := func(what string) tenure.Version {
		t.Helper()
		_, v := mustRead(t, r)
		if before, ok := seen[v]; ok || v == "" {
			t.Fatalf("after %s the version %q is that of %q again", what, v, before)
		}
		seen[v] = what
		return v
	}
	where := fmt.Sprintf(" WHERE key = '%s'", r.key)
	v := tenure.Version("")
	for i := range 5 {
		is := func(what string) string { return fmt.Sprintf("%s, round %d", what, i) }
		w := mustWrite(t, r, "a", v)
		if v = note(is("write")); v != w {
			t.Fatalf("write returned %q, read %q", w, v)
		}
		mustWrite(t, r, "a", mustWrite(t, r, "b", v))
		note(is("A to B to A"))
		remove(t, server, r)
		mustWrite(t, r, "a", "")
		note(is("delete and create"))
		sql(t, server, "UPDATE tenure_locks SET value = 'a'"+where)
		note(is("an edit by hand"))
		sql(t, server, "CREATE TABLE kept AS SELECT * FROM tenure_locks"+where+"; DELETE FROM tenure_locks"+where+
			"; INSERT INTO tenure_locks SELECT * FROM kept; DROP TABLE kept")
		v = note(is("a row put back from a copy"))
	}
	sql(t, server, "VACUUM FREEZE tenure_locks")
	sql(t, server, "VACUUM FULL tenure_locks")
	sql(t, server, "BEGIN; SELECT 1 FROM tenure_locks"+where+" FOR UPDATE; COMMIT")
	if _, now := mustRead(t, r); now != v {
		t.Errorf("cleaning and locking changed the version from %q to %q", v, now)
	}
}

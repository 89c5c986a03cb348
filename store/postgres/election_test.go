// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/storetest/elect"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// The durations of the elections here: short, and still above what a machine
// that is busy with other tests needs.
const (
	testLease  = 4 * time.Second
	testPeriod = testLease / 5
)

const (
	began     = tenure.EventBegan
	renewed   = tenure.EventRenewed
	ended     = tenure.EventEnded
	failed    = tenure.EventFailed
	following = tenure.EventFollowing
)

// patience is how long an event is awaited.
const patience = time.Minute

func initLock(t testing.TB, r *Register) {
	t.Helper()
	if _, err := tenure.Init(t.Context(), r, tenure.InitOptions{Who: "test", FirstEver: true}); err != nil {
		t.Fatal(err)
	}
}

// run starts an elector on r, which the test ends.
func run(t testing.TB, name string, r *Register) *elect.Candidate {
	t.Helper()
	return runFor(t, name, r, testLease)
}

func runFor(t testing.TB, name string, r *Register, lease time.Duration) *elect.Candidate {
	t.Helper()
	return elect.Contend(t, name, tenure.Options{Register: r, Lock: r.String(), LeaseDuration: lease})
}

// TestElection lets a leader meet what networks and administrators do, one
// after another: it keeps its term through what leaves the record alone.
func TestElection(t *testing.T) {
	t.Parallel()
	r, direct, p := proxied(t, server)
	initLock(t, direct)
	a := run(t, "a", r)
	first := a.Await(began, patience)
	b := run(t, "b", open(t, server.URL(direct.key)))
	b.Await(following, patience)
	for _, f := range []struct {
		name string
		set  func()
	}{
		{"answers lost", p.DropAnswers},
		{"cut at the first byte of the answer", func() { p.CutAfter(0) }},
		{"connections reset", p.Reset},
		{"connections refused", p.Refuse},
		{"nothing arrives", p.BlackHole},
	} {
		f.set()
		a.Await(failed, patience)
		p.Pass()
		if e := a.Await(renewed, patience); e.Epoch != first.Epoch {
			t.Errorf("%s: renewed at epoch %d, want %d", f.name, e.Epoch, first.Epoch)
		}
	}
	// The end of an idle connection is noticed before it is used.
	failures := a.Count(failed)
	a.Await(renewed, patience)
	p.Reset()
	p.Pass()
	a.Await(renewed, patience)
	a.Await(renewed, patience)
	if n := a.Count(failed) - failures; n > 1 { // one may have been under way
		t.Errorf("after its connections were reset the leader failed %d times", n)
	}
	if n := a.Count(ended) + b.Count(began); n != 0 {
		t.Fatalf("the term ended, or another began, %d times", n)
	}

	// Somebody deletes the row: the term is over, and the next one's epoch is
	// higher.
	remove(t, server, direct)
	if e := a.Await(ended, patience); e.Epoch != first.Epoch {
		t.Errorf("epoch %d ended, want %d", e.Epoch, first.Epoch)
	}
	a.Stop()
	if e := b.Await(began, patience); e.Epoch <= first.Epoch {
		t.Errorf("after the record was deleted the epoch is %d, was %d", e.Epoch, first.Epoch)
	}
}

// TestServerCrash: the server is killed under a leader and comes back. The
// leader goes on in its term, and what it had written is there.
func TestServerCrash(t *testing.T) {
	t.Parallel()
	p := start(t, testbed.PostgresOptions{})
	r := open(t, p.URL(newKey()))
	initLock(t, r)
	a := runFor(t, "a", r, 20*time.Second)
	first := a.Await(began, patience)
	p.Kill()
	mustSay(t, a.Await(failed, patience).Err, "postgres: write")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if e := a.Await(renewed, patience); e.Epoch != first.Epoch || a.Count(ended) != 0 {
		t.Errorf("renewed at epoch %d, want %d; %d terms ended", e.Epoch, first.Epoch, a.Count(ended))
	}
}

// TestCredentials: under a leader the password changes, and then its rights go.
func TestCredentials(t *testing.T) {
	const role = "rotating"
	passFile := filepath.Join(t.TempDir(), "passwords")
	password := func(word string) {
		t.Helper()
		if err := os.WriteFile(passFile, []byte("*:*:*:"+role+":"+word+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	password("first")
	sql(t, server, "CREATE ROLE "+role+" LOGIN PASSWORD 'first'; GRANT SELECT, INSERT, UPDATE ON tenure_locks TO "+role)
	t.Cleanup(func() { sql(t, server, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	url := strings.Replace(server.URL(newKey()), "user="+testbed.PostgresUser, "user="+role, 1)
	initLock(t, open(t, server.URL(open(t, url).key)))
	t.Setenv("PGPASSFILE", passFile)
	a := run(t, "a", open(t, url))
	defer a.Stop() // before the role goes
	first := a.Await(began, patience)

	sql(t, server, "ALTER ROLE "+role+" PASSWORD 'second'")
	a.Await(renewed, patience) // the connection is let in already
	sql(t, server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+role+"'")
	for {
		if err := a.Await(failed, patience).Err; isCode(err, "28P01") {
			mustSay(t, err, "did not take the password", "PGPASSFILE", "28P01")
			break
		}
	}
	password("second")
	if e := a.Await(renewed, patience); e.Epoch != first.Epoch {
		t.Errorf("with the new password: epoch %d, was %d", e.Epoch, first.Epoch)
	}

	sql(t, server, "REVOKE UPDATE ON tenure_locks FROM "+role)
	mustSay(t, a.Await(failed, patience).Err, "rights do not suffice", "GRANT SELECT, INSERT, UPDATE ON public.tenure_locks", "42501")
	if e := a.Await(ended, patience); e.Epoch != first.Epoch || !errors.Is(e.Err, tenure.ErrRenewDeadline) {
		t.Errorf("epoch %d ended with %v", e.Epoch, e.Err)
	}
}

// TestFailover: the primary dies, and its standby takes its place.
func TestFailover(t *testing.T) {
	t.Parallel()
	primary := start(t, testbed.PostgresOptions{})
	standby, err := primary.Standby(folder(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Close)
	key := newKey()
	initLock(t, open(t, primary.URL(key)))

	// What a standby says is not believed, not even that there is nothing.
	for _, r := range []*Register{open(t, standby.URL(key)), open(t, standby.URL(newKey()))} {
		_, _, err := r.Read(t.Context())
		mustSay(t, err, "is a standby", "name the primary")
		_, err = r.List(t.Context(), "")
		mustSay(t, err, "is a standby")
		_, err = r.Write(t.Context(), nil, "")
		mustSay(t, err, "name the primary", "25006")
	}
	if f := finding(t, open(t, standby.URL(key)), "server"); f.Level != tenure.FindingUnsafe {
		t.Errorf("inspecting a standby: %+v", f)
	}
	if f := finding(t, open(t, primary.URL(key)), "replication"); f.Level != tenure.FindingWarning || !strings.Contains(f.Detail, "none is waited for") {
		t.Errorf("inspecting a primary with an asynchronous standby: %+v", f)
	}

	both := strings.Replace(primary.URL(key), primary.Host, standby.Host+","+primary.Host, 1)
	a := run(t, "a", open(t, both))
	first := a.Await(began, patience)
	b := run(t, "b", open(t, both))
	b.Await(following, patience)
	// All that was acknowledged arrives, as with a synchronous standby.
	a.Stop()
	if e := b.Await(began, patience); e.Epoch <= first.Epoch {
		t.Fatalf("after a release the epoch is %d, was %d", e.Epoch, first.Epoch)
	} else {
		first = e
	}
	primary.Kill()
	mustSay(t, b.Await(failed, patience).Err, "postgres:")
	if err := standby.Promote(); err != nil {
		t.Fatal(err)
	}
	for e := b.Await(renewed, patience); ; e = b.Await(renewed, patience) {
		if e.Epoch >= first.Epoch {
			break
		}
		t.Errorf("renewed at epoch %d after %d", e.Epoch, first.Epoch)
	}
	if got, _ := mustRead(t, open(t, standby.URL(key))); !strings.Contains(got, `"holderIdentity":"b"`) {
		t.Errorf("the promoted standby has the record %s", got)
	}
}

// TestRestored: the database is replaced by one with another record of the same
// lock, as from an old backup. The leader stops, nobody takes the lock at once,
// and the next epoch is higher.
func TestRestored(t *testing.T) {
	t.Parallel()
	now, old := start(t, testbed.PostgresOptions{}), start(t, testbed.PostgresOptions{})
	key := newKey()
	other := open(t, old.URL(key))
	initLock(t, open(t, now.URL(key)))
	initLock(t, other)
	both := strings.Replace(now.URL(key), now.Host, now.Host+","+old.Host, 1)
	a := run(t, "a", open(t, both))
	first := a.Await(began, patience)
	b := run(t, "b", open(t, both))
	b.Await(following, patience)
	now.Kill()
	killed := time.Now()
	if e := a.Await(ended, patience); e.Epoch != first.Epoch {
		t.Errorf("epoch %d ended, want %d", e.Epoch, first.Epoch)
	}
	a.Stop()
	if e := b.Await(began, patience); e.Epoch <= first.Epoch || time.Since(killed) < testLease*3/2 {
		t.Errorf("epoch %d after %d, %v after the database was replaced; want 1.5 D at least", e.Epoch, first.Epoch, time.Since(killed))
	}
}

// TestPooled: an election through a pooler in transaction mode, which is
// restarted under the leader.
func TestPooled(t *testing.T) {
	b, err := testbed.StartPgBouncer(folder(t), server, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Kill() })
	p, err := fault.NewTCP(b.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	direct := fresh(t)
	initLock(t, direct)
	a := run(t, "a", open(t, strings.Replace(server.URL(direct.key), server.Host, p.Addr(), 1)))
	first := a.Await(began, patience)
	// The server ends all of the pooler's connections.
	sql(t, server, fmt.Sprintf("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '%s'", testbed.PostgresUser))
	a.Await(renewed, patience)
	p.DropAnswers()
	a.Await(failed, patience)
	p.Pass()
	if e := a.Await(renewed, patience); e.Epoch != first.Epoch || a.Count(ended) != 0 {
		t.Errorf("renewed at epoch %d, want %d", e.Epoch, first.Epoch)
	}
}

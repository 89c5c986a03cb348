// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

func newProxy(t *testing.T, target string) *fault.TCP {
	t.Helper()
	p, err := fault.NewTCP(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// mustTell wants an error that says all of that.
func mustTell(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("%s: no error; want one that says %q", what, words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Fatalf("%s: %v; want %q in it", what, err, w)
		}
	}
}

// mustRevision wants the store of one lock alone to have made so many changes.
func mustRevision(t *testing.T, e *testbed.Etcd, want int64) {
	t.Helper()
	if got, err := e.Revision(); err != nil || got != want {
		t.Fatalf("the store is at revision %d, %v; want %d", got, err, want)
	}
}

// A write whose answer is lost has happened, once, and its error is none that
// says that it has not. Other members are at hand, and must not get it.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 3, testbed.EtcdOptions{})
	p := newProxy(t, e.Endpoints()[0])
	r := mustOpen(t, "/lock", plain(p.Addr(), e.Endpoints()[1], e.Endpoints()[2]))
	v := mustWrite(t, r, "0", "")
	revision, err := e.Revision()
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		name string
		cut  bool // reset the connection once the write has happened
		want string
	}{
		{"no answer", false, context.DeadlineExceeded.Error()},
		{"cut before the answer", true, "Unavailable"},
	} {
		r.store.current.Store(0)
		mustHold(t, r, fmt.Sprint(i), v)
		r.store.current.Store(0)
		p.DropAnswers()
		value := fmt.Sprint(i + 1)
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		wrote := make(chan error, 1)
		go func() {
			_, err := r.Write(ctx, []byte(value), v)
			wrote <- err
		}()
		revision++
		waitRevision(t, e, revision)
		if tt.cut {
			p.Reset()
		}
		err = <-wrote
		cancel()
		mustTell(t, tt.name, err, "may or may not have happened", tt.want, p.Addr())
		if errors.Is(err, tenure.ErrConflict) {
			t.Fatalf("%s: a conflict with the own write: %v", tt.name, err)
		}
		p.Pass()
		var got []byte
		if got, v, err = r.Read(short(t)); err != nil || string(got) != value {
			t.Fatalf("%s: read %q, %v; want %q", tt.name, got, err, value)
		}
		// Had it been sent again, it would have been refused, and seen here.
		if n := requests(t, e.Member(0))["Txn"] + requests(t, e.Member(1))["Txn"] + requests(t, e.Member(2))["Txn"]; n != int64(i)+2 {
			t.Errorf("%s: %d transactions were sent; want %d", tt.name, n, i+2)
		}
		mustRevision(t, e, revision)
	}
}

func waitRevision(t *testing.T, e *testbed.Etcd, want int64) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if got, err := e.Revision(); err == nil && got >= want {
			return
		} else if time.Now().After(end) {
			t.Fatalf("the store is at revision %d, %v; want %d", got, err, want)
		}
	}
}

// A connection that was cut before the request arrived leaves the write to
// another member, and a member that refuses connections is passed over.
func TestNothingSent(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 1, testbed.EtcdOptions{})
	var proxies []*fault.TCP
	var endpoints []string
	for range 3 {
		proxies = append(proxies, newProxy(t, e.Endpoints()[0]))
		endpoints = append(endpoints, proxies[len(proxies)-1].Addr())
	}
	r := mustOpen(t, "/lock", plain(endpoints...))
	v := mustWrite(t, r, "0", "")
	before, err := e.Revision()
	if err != nil {
		t.Fatal(err)
	}
	proxies[0].Refuse()
	proxies[1].Reset()
	r.Close()
	r.store.current.Store(0)
	v = mustWrite(t, r, "1", v)
	mustRevision(t, e, before+1)
	proxies[2].Refuse()
	r.Close()
	_, err = r.Write(short(t), []byte("2"), v)
	mustTell(t, "write to nobody", err, "nothing was sent", endpoints[0], endpoints[1], endpoints[2], "refused", "check that etcd runs there")
	mustRevision(t, e, before+1)
	proxies[1].Pass()
	mustHold(t, r, "1", v)
}

// A connection that nobody answers on any more is noticed by the first read,
// within that read, also when there is no other member.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	p := newProxy(t, shared.Endpoints()[0])
	for name, endpoints := range map[string][]string{"alone": {p.Addr()}, "of three": {p.Addr(), shared.Endpoints()[1], shared.Endpoints()[2]}} {
		r := mustOpen(t, newKey(t.Name()), plain(endpoints...))
		v := mustWrite(t, r, "1", "")
		if len(endpoints) == 1 {
			p.Forget()
		} else {
			p.BlackHole()
		}
		start := time.Now()
		mustHold(t, r, "1", v)
		if took := time.Since(start); took > 1700*time.Millisecond {
			t.Errorf("%s: the read took %v", name, took)
		}
		start = time.Now()
		v = mustWrite(t, r, "2", v)
		mustHold(t, r, "2", v)
		if took := time.Since(start); took > 900*time.Millisecond {
			t.Errorf("%s: after it a write and a read took %v: they went to the dead member", name, took)
		}
		p.Pass()
	}
}

// A store that takes its time is no dead one.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	p := newProxy(t, shared.Endpoints()[0])
	r := mustOpen(t, newKey(t.Name()), plain(p.Addr()))
	p.Delay(fault.ToClient, 300*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	v, err := r.Write(ctx, []byte("1"), "")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, got, err := r.Read(ctx); err != nil || got != v {
			t.Fatalf("read %q, %v; want %q", got, err, v)
		}
	}
	if n := p.Stats().Accepted; n != 1 {
		t.Errorf("%d connections; want 1", n)
	}
}

// Reads and writes go on while any one member is dead or frozen.
func TestOneMemberLost(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 3, testbed.EtcdOptions{})
	r := mustOpen(t, "/lock", plain(e.Endpoints()...))
	mustWrite(t, r, "0", "")
	for i := range 3 {
		m := e.Member(i)
		r.store.current.Store(int32(i)) // the one that is asked first
		if i == 1 {
			m.Kill()
		} else if err := m.Pause(); err != nil {
			t.Fatal(err)
		}
		// If it led, the others need their time to elect.
		var err error
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			var v tenure.Version
			if _, v, err = r.Read(ctx); err == nil {
				_, err = r.Write(ctx, []byte(fmt.Sprint(i)), v)
			}
			cancel()
			if err == nil {
				break
			}
		}
		if err != nil {
			t.Fatalf("without member %d: %v", i, err)
		}
		if i == 1 {
			err = m.Restart()
		} else {
			err = m.Resume()
		}
		if err == nil {
			err = e.Ready()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A restored store has another ID: what was read before is in conflict, though
// the same revisions may be there, and nothing is written.
func TestRestored(t *testing.T) {
	t.Parallel()
	before, after := newEtcd(t, 1, testbed.EtcdOptions{}), newEtcd(t, 1, testbed.EtcdOptions{})
	p := newProxy(t, before.Endpoints()[0])
	r := mustOpen(t, "/lock", plain(p.Addr()))
	old := mustWrite(t, r, "1", "")
	if err := after.Put("/lock", []byte("1")); err != nil {
		t.Fatal(err)
	}
	revision, err := after.Revision()
	if err != nil {
		t.Fatal(err)
	}
	if o, err := parseVersion(old); err != nil || o.mod != revision {
		t.Fatalf("the test wants the same revision in both stores: %q, %d", old, revision)
	}
	watch := make(chan error, 1)
	go func() { watch <- r.Watch(t.Context(), old) }()
	p.Retarget(after.Endpoints()[0])
	r.Close() // else the write may find the connection on its way out
	_, err = r.Write(short(t), []byte("2"), old)
	if !errors.Is(err, tenure.ErrConflict) {
		t.Fatalf("write at a version of the store before: %v; want a conflict", err)
	}
	mustRevision(t, after, revision)
	value, now, err := r.Read(short(t))
	if err != nil || string(value) != "1" || now == old {
		t.Fatalf("read %q at %q, %v; want 1 at another version than %q", value, now, err, old)
	}
	<-watch // it ended with its connection, or with the change
	if err := r.Watch(short(t), old); err != nil {
		t.Fatalf("a watch from the version before: %v; want that it has changed", err)
	}
	mustWrite(t, r, "2", now)
}

// Endpoints of two clusters are two locks, and refused.
func TestTwoClusters(t *testing.T) {
	t.Parallel()
	a, b := newEtcd(t, 1, testbed.EtcdOptions{}), newEtcd(t, 1, testbed.EtcdOptions{})
	p := newProxy(t, a.Endpoints()[0])
	r := mustOpen(t, "/lock", plain(p.Addr(), b.Endpoints()[0]))
	v := mustWrite(t, r, "1", "")
	p.Refuse()
	_, _, err := r.Read(short(t))
	mustTell(t, "read", err, "belongs to the cluster", p.Addr(), b.Endpoints()[0], "members of one cluster only")
	if errors.Is(err, tenure.ErrNotExist) {
		t.Fatalf("the other cluster was asked: %v", err)
	}
	_, err = r.Write(short(t), []byte("2"), "")
	mustTell(t, "create", err, "nothing was sent")
	p.Pass()
	mustHold(t, r, "1", v)
	mustFind(t, r, "cluster", tenure.FindingUnsafe, "different clusters")
}

// A value that is larger than gRPC takes is still one with a version.
func TestHugeValue(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 1, testbed.EtcdOptions{Args: []string{"--max-request-bytes", "8000000"}})
	r := mustOpen(t, "/lock", plain(e.Endpoints()...))
	for _, size := range []int{tenure.MaxRecordSize + 1, maxAnswer + 1, 4_000_000} {
		if err := e.Put("/lock", make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		value, v, err := r.Read(short(t))
		if !errors.Is(err, tenure.ErrValueTooLarge) || value != nil {
			t.Fatalf("%d bytes: %d bytes, %v; want ErrValueTooLarge", size, len(value), err)
		}
		mustHold(t, r, "small", mustWrite(t, r, "small", v))
	}
}

// NOSPACE: reads work, writes do not, and both the error and Inspect say why.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 1, testbed.EtcdOptions{})
	r := mustOpen(t, "/lock", plain(e.Endpoints()...))
	v := mustWrite(t, r, "1", "")
	mustFind(t, r, "alarms", tenure.FindingOK, "none")
	setAlarm(t, e, "ACTIVATE")
	_, err := r.Write(short(t), []byte("2"), v)
	mustTell(t, "write", err, "database space exceeded", "compact, defragment")
	if strings.Contains(err.Error(), "may or may not") {
		t.Errorf("no doubt is possible: %v", err)
	}
	mustHold(t, r, "1", v)
	mustFind(t, r, "alarms", tenure.FindingWarning, "NOSPACE")
	setAlarm(t, e, "DEACTIVATE")
	mustWrite(t, r, "2", v)
}

func setAlarm(t *testing.T, e *testbed.Etcd, action string) {
	t.Helper()
	var s struct {
		Header struct {
			MemberID string `json:"member_id"`
		}
	}
	err := e.Member(0).Call("/v3/maintenance/status", nil, &s)
	if err == nil {
		err = e.Call("/v3/maintenance/alarm", map[string]any{"action": action, "memberID": s.Header.MemberID, "alarm": "NOSPACE"}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mustFind wants a finding of Inspect.
func mustFind(t *testing.T, r *Register, check string, level tenure.FindingLevel, detail string) {
	t.Helper()
	all := r.Inspect(t.Context())
	if !slices.ContainsFunc(all, func(f tenure.Finding) bool {
		return f.Check == check && f.Level == level && strings.Contains(f.Detail, detail)
	}) {
		t.Errorf("no finding %q, %q, with %q in %+v", check, level, detail, all)
	}
}

// Only the requests that the interface promises reach the store.
func TestRequests(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 1, testbed.EtcdOptions{})
	r := mustOpen(t, "/lock", plain(e.Endpoints()...))
	v := mustWrite(t, r, "0", "")
	before := requests(t, e.Member(0))
	for i := range 20 {
		v = mustWrite(t, r, fmt.Sprint(i), v)
	}
	for range 30 {
		mustHold(t, r, "19", v)
	}
	after := requests(t, e.Member(0))
	for method, want := range map[string]int64{"Txn": 20, "Range": 30, "Put": 0, "MemberList": 0, "Watch": 0} {
		if got := after[method] - before[method]; got != want {
			t.Errorf("%d requests %s for 20 renewals and 30 polls; want %d", got, method, want)
		}
	}
}

// requests returns how many requests the member has been asked, by method, by
// its own counters.
func requests(t *testing.T, m *testbed.EtcdMember) map[string]int64 {
	t.Helper()
	n, err := m.Requests()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

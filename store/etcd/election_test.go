// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/storetest/elect"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// ttl is D of the elections here: R is 2.6 s, P 0.8 s, a request has 0.87 s.
const ttl = 4 * time.Second

// initLock makes a lock that its first candidate need not wait for.
func initLock(t *testing.T, r *Register) {
	t.Helper()
	if _, err := tenure.Init(short(t), r, tenure.InitOptions{Who: "the test", LeaseDuration: ttl, FirstEver: true}); err != nil {
		t.Fatal(err)
	}
}

func contend(t *testing.T, name string, r *Register) *elect.Candidate {
	t.Helper()
	return elect.Contend(t, name, tenure.Options{Register: r, Lock: r.String(), LeaseDuration: ttl})
}

// A term survives the death and the freezing of any one member: the one that
// the leader talks to, and the one that leads the others.
func TestTermSurvivesMember(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 3, testbed.EtcdOptions{})
	r := mustOpen(t, "/lock", plain(e.Endpoints()...))
	initLock(t, r)
	a := contend(t, "a", r)
	began := a.Await(tenure.EventBegan, ttl)
	leading := func() int {
		i, err := e.Leader()
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	for _, which := range []func() int{leading, func() int { return int(r.store.current.Load()) }} {
		m := e.Member(which())
		m.Kill()
		a.Renewals(3, 4*ttl)
		if err := errors.Join(m.Restart(), e.Ready()); err != nil {
			t.Fatal(err)
		}
		m = e.Member(which())
		if err := m.Pause(); err != nil {
			t.Fatal(err)
		}
		a.Renewals(3, 4*ttl)
		if err := errors.Join(m.Resume(), e.Ready()); err != nil {
			t.Fatal(err)
		}
	}
	view, err := tenure.Look(short(t), r)
	if err != nil || view.Epoch() != began.Epoch {
		t.Fatalf("the record afterwards: %+v, %v; want epoch %d", view, err, began.Epoch)
	}
}

// Without a majority the leader stops at R; with one again it leads at a higher
// epoch.
func TestMajorityLost(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 3, testbed.EtcdOptions{})
	r := mustOpen(t, "/lock", plain(e.Endpoints()...))
	initLock(t, r)
	a := contend(t, "a", r)
	first := a.Await(tenure.EventBegan, ttl)
	a.Renewals(1, 4*ttl)
	a.Drain()
	cut := time.Now()
	e.Member(0).Kill()
	e.Member(1).Kill()
	stopping := a.Await(tenure.EventStopping, 2*ttl)
	if took := stopping.At.Sub(cut); !errors.Is(stopping.Err, tenure.ErrRenewDeadline) || took > 3*time.Second {
		t.Errorf("stopped %v after the loss: %v; want at the renew deadline, 2.6 s", took, stopping.Err)
	}
	_, _, err := r.Read(short(t))
	mustTell(t, "read without a majority", err, "etcd: read the key /lock")
	if err := errors.Join(e.Member(0).Restart(), e.Member(1).Restart()); err != nil {
		t.Fatal(err)
	}
	if again := a.Await(tenure.EventBegan, 5*ttl); again.Epoch <= first.Epoch {
		t.Errorf("leads at epoch %d after %d", again.Epoch, first.Epoch)
	}
}

// A leader that is cut from the store stops before another one leads; what it
// had sent arrives when the cut is mended, and changes nothing.
func TestPartition(t *testing.T) {
	t.Parallel()
	var proxies []*fault.TCP
	var endpoints []string
	for _, target := range shared.Endpoints() {
		p := newProxy(t, target)
		proxies, endpoints = append(proxies, p), append(endpoints, p.Addr())
	}
	key := newKey(t.Name())
	initLock(t, mustOpen(t, key, plain(endpoints...)))
	a := contend(t, "a", mustOpen(t, key, plain(endpoints...)))
	first := a.Await(tenure.EventBegan, ttl)
	b := contend(t, "b", mustOpen(t, key, plain(shared.Endpoints()...)))
	b.Await(tenure.EventFollowing, ttl)
	a.Renewals(1, 4*ttl)
	a.Drain()
	cut := time.Now()
	for _, p := range proxies {
		p.Hold(fault.BothWays)
	}
	ended := a.Await(tenure.EventStopping, 2*ttl)
	began := b.Await(tenure.EventBegan, 2*ttl)
	if !ended.At.Before(began.At) {
		t.Errorf("a stopped at %v, b began at %v", ended.At, began.At)
	}
	if took := began.At.Sub(cut); took > ttl+800*time.Millisecond+time.Second {
		t.Errorf("b leads %v after the cut; want at most D + P + 1 s", took)
	}
	if began.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", began.Epoch, first.Epoch)
	}
	for _, p := range proxies {
		p.Pass()
	}
	if f := a.Await(tenure.EventFollowing, 2*ttl); f.Holder != "b" || f.Epoch != began.Epoch {
		t.Errorf("a follows %+v; want b at epoch %d", f.Event, began.Epoch)
	}
	b.Renewals(2, 4*ttl)
}

// A leader whose renewals happen without an answer stays leader: it finds its
// own nonce in the record.
func TestTermSurvivesLostAnswers(t *testing.T) {
	t.Parallel()
	p := newProxy(t, shared.Endpoints()[0])
	r := mustOpen(t, newKey(t.Name()), plain(p.Addr()))
	initLock(t, r)
	a := contend(t, "a", r)
	began := a.Await(tenure.EventBegan, ttl)
	for i := range 4 {
		a.Renewals(1, 4*ttl)
		if i%2 == 0 {
			p.DropAnswers()
		} else {
			p.CutAfter(0)
		}
		failed := a.Await(tenure.EventFailed, ttl)
		p.Pass()
		if i%2 == 0 { // a cut may also hit a connection that is being made
			mustTell(t, "a lost answer", failed.Err, "may or may not have happened")
		}
		a.Renewals(1, 4*ttl)
	}
	view, err := tenure.Look(short(t), r)
	if err != nil || view.Epoch() != began.Epoch {
		t.Fatalf("the record afterwards: %+v, %v; want epoch %d", view, err, began.Epoch)
	}
}

// A leader whose record is deleted stops, and the next term has a higher epoch.
func TestRecordDeleted(t *testing.T) {
	t.Parallel()
	r := mustOpen(t, newKey(t.Name()), plain(shared.Endpoints()...))
	initLock(t, r)
	a := contend(t, "a", r)
	first := a.Await(tenure.EventBegan, ttl)
	a.Renewals(1, 4*ttl)
	if err := shared.Delete(r.key); err != nil {
		t.Fatal(err)
	}
	a.Await(tenure.EventStopping, ttl)
	if again := a.Await(tenure.EventBegan, 4*ttl); again.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, first.Epoch)
	}
}

// Handing over takes a moment: the preferred candidate watches.
func TestHandover(t *testing.T) {
	t.Parallel()
	key := newKey(t.Name())
	r := mustOpen(t, key, plain(shared.Endpoints()...))
	initLock(t, r)
	a := contend(t, "a", mustOpen(t, key, plain(shared.Endpoints()...)))
	a.Await(tenure.EventBegan, ttl)
	b := contend(t, "b", mustOpen(t, key, plain(shared.Endpoints()...)))
	b.Await(tenure.EventFollowing, ttl)
	a.Stop()
	released := a.Await(tenure.EventReleased, ttl)
	began := b.Await(tenure.EventBegan, ttl)
	if took := began.At.Sub(released.At); took > time.Second {
		t.Errorf("b leads %v after the release; want less than 1 s", took)
	}
}

// A full database ends the term at R, and leading resumes when it is mended.
func TestNoSpaceUnderLeader(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 1, testbed.EtcdOptions{})
	r := mustOpen(t, "/lock", plain(e.Endpoints()...))
	initLock(t, r)
	a := contend(t, "a", r)
	first := a.Await(tenure.EventBegan, ttl)
	setAlarm(t, e, "ACTIVATE")
	mustTell(t, "renewal", a.Await(tenure.EventFailed, ttl).Err, "database space exceeded")
	if s := a.Await(tenure.EventStopping, 2*ttl); !errors.Is(s.Err, tenure.ErrRenewDeadline) {
		t.Errorf("stopped by %v; want the renew deadline", s.Err)
	}
	setAlarm(t, e, "DEACTIVATE")
	if again := a.Await(tenure.EventBegan, 4*ttl); again.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, first.Epoch)
	}
}

// A password that is changed under a leader ends its term at R, unless the file
// that it comes from is changed too; tokens that are lost do not matter.
func TestPasswordChanged(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 1, testbed.EtcdOptions{})
	if err := e.EnableAuth("/lock", "tenure", "one"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "password")
	set := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("one")
	opt := plain(e.Endpoints()...)
	opt.User, opt.PasswordFile = "tenure", file
	r := mustOpen(t, "/lock", opt)
	initLock(t, r)
	a := contend(t, "a", r)
	first := a.Await(tenure.EventBegan, ttl)
	change := func(password string) {
		t.Helper()
		if err := e.Call("/v3/auth/user/changepw", map[string]any{"name": "tenure", "password": password}, nil); err != nil {
			t.Fatal(err)
		}
	}
	a.Renewals(1, 4*ttl)
	set("two")
	change("two") // ends every token
	if failed := len(a.Renewals(2, 4*ttl)); failed > 0 {
		t.Errorf("%d renewals failed though the new password was at hand", failed)
	}
	change("three")
	mustTell(t, "renewal", a.Await(tenure.EventFailed, ttl).Err, "invalid user ID or password", "check the user tenure", file)
	if s := a.Await(tenure.EventStopping, 2*ttl); !errors.Is(s.Err, tenure.ErrRenewDeadline) {
		t.Errorf("stopped by %v; want the renew deadline", s.Err)
	}
	set("three")
	if again := a.Await(tenure.EventBegan, 4*ttl); again.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, first.Epoch)
	}
}

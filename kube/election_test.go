// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"tenure.dev"
	"tenure.dev/storetest/elect"
	"tenure.dev/test/fault"
)

// ttl is D of the elections here: R is 2.6 s, P 0.8 s, a request has 0.87 s.
const ttl = 4 * time.Second

// initLock makes a lock that its first candidate need not wait for.
func initLock(t *testing.T, r *Register) {
	t.Helper()
	_, err := tenure.Init(within(t, 10*time.Second), r, tenure.InitOptions{Who: "the test", FirstEver: true, LeaseDuration: ttl})
	must(t, err)
}

func contend(t *testing.T, name string, r *Register) *elect.Candidate {
	t.Helper()
	return elect.Contend(t, name, tenure.Options{Register: r, Lock: "k8s", LeaseDuration: ttl})
}

// A stock elector is client-go's, with 4/2.6/0.8.
type stockElector struct {
	began, ended chan time.Time
	kill         func()
}

func stock(t *testing.T, ns, identity string, release bool) *stockElector {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", server(t).Admin(0))
	must(t, err)
	client, err := coordinationclient.NewForConfig(config)
	must(t, err)
	s := &stockElector{began: make(chan time.Time, 10), ended: make(chan time.Time, 10)}
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: ns, Name: "lock"}, Client: client, LockConfig: resourcelock.ResourceLockConfig{Identity: identity}},
		LeaseDuration: ttl, RenewDeadline: ttl * 65 / 100, RetryPeriod: ttl / 5, ReleaseOnCancel: release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { s.began <- time.Now() },
			OnStoppedLeading: func() { s.ended <- time.Now() },
		},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { e.Run(ctx); close(done) }()
	s.kill = func() { cancel(); <-done }
	t.Cleanup(s.kill)
	return s
}

func await(t *testing.T, what string, c <-chan time.Time, within time.Duration) time.Time {
	t.Helper()
	select {
	case at := <-c:
		return at
	case <-time.After(within):
		t.Fatalf("%s: not within %v", what, within)
		return time.Time{}
	}
}

// cuttable is a lock reached through a network that can die.
func cuttable(t *testing.T, ns string) (*Register, *fault.TCP) {
	t.Helper()
	proxy, err := fault.NewTCP(server(t).APIServer(0))
	must(t, err)
	t.Cleanup(proxy.Close)
	file, err := server(t).KubeconfigVia(proxy.Addr(), 0, "admin", "system:masters")
	must(t, err)
	return open(t, ns, "lock", file, "ttl=4s"), proxy
}

// The lock goes from Tenure to a stock elector, when Tenure's network dies, and
// back, when the stock elector dies: never two at once, and epochs grow.
func TestStockElectorContends(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	r, proxy := cuttable(t, ns)
	direct := open(t, ns, "lock", server(t).Admin(0))
	initLock(t, direct)
	a := contend(t, "a", r)
	first := a.Await(tenure.EventBegan, 2*ttl).Epoch
	s := stock(t, ns, "stock", false)
	a.Renewals(10, 13*ttl)
	select {
	case <-s.began:
		t.Fatal("the stock elector leads while Tenure renews")
	default:
	}
	before := lease(t, ns, "lock")
	proxy.BlackHole()
	took := await(t, "the stock elector", s.began, 2*ttl)
	ended := a.Await(tenure.EventEnded, 2*ttl)
	if !ended.At.Before(took) {
		t.Errorf("Tenure's term ended %v after the stock elector began", ended.At.Sub(took))
	}
	v, err := tenure.Look(t.Context(), direct)
	must(t, err)
	if v.State != tenure.RecordStranger || v.Record.HolderIdentity != "stock" || v.Epoch() != first+1 || v.Record.Lineage == "" {
		t.Errorf("%s of %+v; want a stranger's of epoch %d", v.State, v.Record, first+1)
	}
	if now := lease(t, ns, "lock"); now.Annotations[prefix+"nonce"] == "" || *now.Spec.LeaseTransitions != *before.Spec.LeaseTransitions+1 {
		t.Errorf("the stock elector left %+v", now)
	}

	// And back.
	proxy.Pass()
	s.kill()
	last := *lease(t, ns, "lock").Spec.RenewTime
	again := a.Await(tenure.EventBegan, 4*ttl)
	// It first sees that renewal when its network is back, a timeout later at most.
	if wait := again.At.Sub(last.Time); wait < 3*ttl/2 || wait > 3*ttl/2+ttl+time.Second {
		t.Errorf("taken %v after the stock elector's last renewal; want 1.5 D and little more", wait)
	}
	if again.Epoch <= v.Epoch() {
		t.Errorf("epoch %d after a stranger's of %d", again.Epoch, v.Epoch())
	}
	a.Renewals(2, 5*ttl)
	w, err := tenure.Look(t.Context(), direct)
	must(t, err)
	if w.Record.Lineage != v.Record.Lineage || w.Record.LeaseTransitions != v.Record.LeaseTransitions+1 {
		t.Errorf("lineage %q and transitions %d after %q and %d", w.Record.Lineage, w.Record.LeaseTransitions, v.Record.Lineage, v.Record.LeaseTransitions)
	}
}

// A lock that Tenure released is free for a stock elector; one that a stock
// elector released is waited out all the same: it empties the holder before its
// work has ended.
func TestStockElectorAndReleases(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	r := open(t, ns, "lock", server(t).Admin(0))
	initLock(t, r)
	a := contend(t, "a", r)
	first := a.Await(tenure.EventBegan, 2*ttl).Epoch
	a.Stop()
	s := stock(t, ns, "stock", true)
	await(t, "the stock elector", s.began, ttl/2)
	b := contend(t, "b", open(t, ns, "lock", server(t).Admin(0)))
	b.Await(tenure.EventDamaged, ttl)
	released := time.Now()
	s.kill()
	if l := lease(t, ns, "lock"); *l.Spec.HolderIdentity != "" {
		t.Fatalf("the stock elector kept the holder: %+v", l.Spec)
	}
	began := b.Await(tenure.EventBegan, 4*ttl)
	if wait := began.At.Sub(released); wait < 3*ttl/2 || wait > 3*ttl/2+ttl/5+time.Second || began.Epoch < first+2 {
		t.Errorf("taken after %v at epoch %d, first was %d; want 1.5 D and more than one above", wait, began.Epoch, first)
	}
}

// A candidate whose answers are lost, one in three, leads on at the same epoch.
func TestLostAnswersInAnElection(t *testing.T) {
	t.Parallel()
	p := throughProxy(t, "ttl=4s")
	initLock(t, p.Register)
	a := contend(t, "a", p.Register)
	a.Await(tenure.EventBegan, 2*ttl)
	var n atomic.Int64
	p.proxy.SetRule(func(r *http.Request) fault.Action {
		if isPut(r) && n.Add(1)%3 == 0 {
			return fault.LoseAnswer()
		}
		return fault.Pass
	})
	a.Renewals(9, 12*ttl)
}

// The credentials are revoked and replaced under a leader: it leads on.
func TestRevokedUnderALeader(t *testing.T) {
	t.Parallel()
	p := throughProxy(t, "ttl=4s")
	initLock(t, p.Register)
	a := contend(t, "a", p.Register)
	a.Await(tenure.EventBegan, 2*ttl)
	a.Renewals(1, 4*ttl)
	old := "Bearer " + p.token
	writeKubeconfig(t, p.file, p.proxy.Addr(), p.authority.PEM, userInfo(token(t, p.namespace, "candidate")))
	var refused atomic.Int64
	p.proxy.SetRule(func(r *http.Request) fault.Action {
		if r.Header.Get("Authorization") != old {
			return fault.Pass
		}
		refused.Add(1)
		return fault.Instead(fault.Answer{Status: 401, Header: http.Header{"Content-Type": {"application/json"}},
			Body: `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`})
	})
	a.Renewals(4, 7*ttl)
	p.proxy.SetRule(nil)
	if refused.Load() == 0 {
		t.Error("nothing was refused")
	}
}

// What people do to a Lease that somebody leads by.
func TestEditsByHand(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	r := open(t, ns, "lock", server(t).Admin(0))
	initLock(t, r)
	a := contend(t, "a", r)
	first := a.Await(tenure.EventBegan, 2*ttl).Epoch
	patch(t, ns, "lock", map[string]any{"metadata": map[string]any{
		"labels": map[string]any{"team": "x"}, "annotations": map[string]any{"example.org/note": "y"}, "finalizers": []string{"example.org/keep"},
	}})
	a.Renewals(3, 6*ttl)
	l := lease(t, ns, "lock")
	if l.Labels["team"] != "x" || l.Annotations["example.org/note"] != "y" || len(l.Finalizers) != 1 {
		t.Errorf("what others had put there is gone: %+v", l.ObjectMeta)
	}
	patch(t, ns, "lock", map[string]any{"metadata": map[string]any{"finalizers": nil}})
	a.Renewals(1, 4*ttl)

	// An order, given by kubectl annotate.
	b := contend(t, "b", open(t, ns, "lock", server(t).Admin(0)))
	b.Await(tenure.EventFollowing, ttl)
	patch(t, ns, "lock", map[string]any{"metadata": map[string]any{"annotations": map[string]any{prefix + "preferredHolder": "b"}}})
	second := b.Await(tenure.EventBegan, ttl).Epoch
	if second <= first {
		t.Errorf("epoch %d after %d", second, first)
	}
	// The holder, changed by kubectl edit: that is a loss, waited out by all.
	patch(t, ns, "lock", map[string]any{"spec": map[string]any{"holderIdentity": "me"}})
	edited := time.Now()
	lost := b.Await(tenure.EventEnded, ttl)
	var why *tenure.LostError
	if !errors.As(lost.Err, &why) || why.Holder != "me" {
		t.Errorf("the term ended for %v", lost.Err)
	}
	var third elect.Told
	select {
	case third = <-began(a):
	case third = <-began(b):
	case <-time.After(3 * ttl):
		t.Fatal("nobody leads again")
	}
	if wait := third.At.Sub(edited); wait < 3*ttl/2 || third.Epoch <= second+1 {
		t.Errorf("taken after %v at epoch %d, the edited one was %d", wait, third.Epoch, second+1)
	}
}

// began passes on the next beginning of a term.
func began(c *elect.Candidate) <-chan elect.Told {
	out := make(chan elect.Told, 1)
	go func() {
		for e := range c.Events {
			if e.Kind == tenure.EventBegan {
				out <- e
				return
			}
		}
	}()
	return out
}

// The Lease is deleted under a leader: it stops, and the next epoch is higher.
func TestDeletedUnderALeader(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	r := open(t, ns, "lock", server(t).Admin(0))
	initLock(t, r)
	a := contend(t, "a", r)
	first := a.Await(tenure.EventBegan, 2*ttl).Epoch
	a.Renewals(1, 4*ttl)
	must(t, server(t).AdminClient(0).Delete(t.Context(), leases(ns, "lock"), nil))
	a.Await(tenure.EventEnded, ttl)
	again := a.Await(tenure.EventBegan, 4*ttl)
	if again.Epoch <= first {
		t.Errorf("epoch %d after %d", again.Epoch, first)
	}
}

// A standby that watches takes over at once when the lock is released.
func TestHandoverIsSeenByTheWatch(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	r := open(t, ns, "lock", server(t).Admin(0))
	initLock(t, r)
	a := contend(t, "a", r)
	a.Await(tenure.EventBegan, 2*ttl)
	b := contend(t, "b", open(t, ns, "lock", server(t).Admin(0)))
	b.Await(tenure.EventFollowing, 2*ttl)
	a.Renewals(3, 6*ttl)
	a.Stop()
	released := a.Await(tenure.EventReleased, ttl)
	if took := b.Await(tenure.EventBegan, ttl).At.Sub(released.At); took > 500*time.Millisecond {
		t.Errorf("taken %v after the release; a poll comes each %v", took, ttl/5)
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	levels := func(r *Register) map[string]tenure.FindingLevel {
		out := map[string]tenure.FindingLevel{}
		for _, f := range r.Inspect(within(t, 20*time.Second)) {
			out[f.Check] = f.Level
			t.Logf("%+v", f)
		}
		return out
	}
	check := func(name string, got, want map[string]tenure.FindingLevel) {
		t.Helper()
		for check, level := range want {
			if got[check] != level {
				t.Errorf("%s: %s is %q, want %q; all: %v", name, check, got[check], level, got)
			}
		}
	}
	as := func(name string, verbs ...string) *Register {
		return open(t, ns, "lock", kubeconfig(t, server(t).APIServer(0), server(t).CA(), userInfo(account(t, ns, name, verbs...))))
	}
	ok, unknown, warning, unsafe, note := tenure.FindingOK, tenure.FindingUnknown, tenure.FindingWarning, tenure.FindingUnsafe, tenure.FindingNote
	good := as("good", candidateVerbs...)
	check("least rights", levels(good), map[string]tenure.FindingLevel{
		"server": ok, "transport": ok, "rights": ok, "needless rights": ok, "stock electors": ok, "other writers": note,
	})
	initLock(t, good)
	check("ours", levels(good), map[string]tenure.FindingLevel{"stock electors": ok})
	admin := open(t, ns, "lock", server(t).Admin(0))
	check("admin", levels(admin), map[string]tenure.FindingLevel{"rights": ok, "needless rights": warning, "client certificate": ok})
	check("no update", levels(as("reader", "get", "list")), map[string]tenure.FindingLevel{"rights": unsafe})
	check("no watch", levels(as("poller", "get", "list", "create", "update")), map[string]tenure.FindingLevel{"rights": warning})
	check("no get", levels(as("blind", "create")), map[string]tenure.FindingLevel{"rights": unsafe, "stock electors": unknown})
	check("revoked", levels(open(t, ns, "lock", kubeconfig(t, server(t).APIServer(0), server(t).CA(), userInfo("x")))),
		map[string]tenure.FindingLevel{"server": unknown, "rights": unknown, "needless rights": unknown, "stock electors": unknown})
	patch(t, ns, "lock", map[string]any{"spec": map[string]any{"holderIdentity": "me"}})
	check("edited", levels(good), map[string]tenure.FindingLevel{"stock electors": warning})
}

// The version that a watch starts from may be older than what the API server
// remembers, and a server may end a watch at any time.
func TestWatchGoesOn(t *testing.T) {
	t.Parallel()
	p := throughProxy(t)
	v, err := p.Write(within(t, 10*time.Second), record(t, full), "")
	must(t, err)
	gone := fault.Answer{Status: 410, Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`}
	event := func(text string) fault.Answer {
		return fault.Answer{Header: http.Header{"Content-Type": {"application/json"}}, Body: text + "\n"}
	}
	for name, tt := range map[string]struct {
		answer fault.Answer
		want   string // of the error; empty if the watch goes on
	}{
		"410 as the answer":        {gone, ""},
		"410 as an event":          {event(`{"type":"ERROR","object":` + gone.Body + `}`), ""},
		"the same again, then end": {event(`{"type":"MODIFIED","object":SAME}`), "at once"},
		"another error":            {event(`{"type":"ERROR","object":{"kind":"Status","code":500,"message":"boom"}}`), "boom"},
		"a login page":             {fault.HTML(200), "not a Kubernetes API server"},
	} {
		t.Run(name, func(t *testing.T) {
			same := lease(t, p.namespace, "lock")
			same.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
			tt.answer.Body = strings.ReplaceAll(tt.answer.Body, "SAME", marshal(same))
			p.proxy.Forget()
			p.proxy.SetRule(fault.Times(1, func(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }, fault.Instead(tt.answer)))
			ctx, cancel := context.WithCancel(within(t, 20*time.Second))
			defer cancel()
			seen := make(chan error, 1)
			go func() { seen <- p.Watch(ctx, v) }()
			if tt.want != "" {
				wantText(t, <-seen, tt.want)
				return
			}
			// It lists, and watches again.
			lists := func(all []fault.Record) bool { return len(all) >= 2 && all[1].Method == http.MethodGet }
			must(t, p.proxy.Wait(within(t, 10*time.Second), lists))
			select {
			case err := <-seen:
				t.Fatalf("nothing has changed, and Watch returned %v", err)
			default:
			}
			next, err := open(t, p.namespace, "lock", server(t).Admin(0)).Write(within(t, 10*time.Second), record(t, full), v)
			must(t, err)
			must(t, <-seen)
			v = next
		})
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/storetest/elect"
	"tenure.dev/test/fault"
)

// TestElection lets a leader meet the store's faults one after another: it
// keeps its term through those that leave the record alone, and ends it when the
// record is gone.
func TestElection(t *testing.T) {
	t.Parallel()
	r, direct, p := proxied(t, nil)
	initLock(t, direct)
	a := run(t, "a", r)
	first := a.Await(began, patience)
	b := run(t, "b", open(t, server.LockURL(direct.store.bucket, direct.object)))
	b.Await(following, patience)

	for _, tt := range []struct {
		name   string
		action fault.Action
	}{
		{"answer lost", fault.LoseAnswer()},
		{"500 after it was done", fault.Afterwards(says(500, "internalError", ""))},
		{"not arrived", fault.CutBefore()},
		{"one write a second", fault.Instead(rateLimited)},
		{"conflict of requests", fault.Instead(says(409, "conflict", ""))},
		{"a proxy's page", fault.Instead(fault.HTML(403))},
		{"credentials refused", fault.Instead(says(401, "authError", "Invalid Credentials"))},
	} {
		p.SetRule(fault.Times(1, isRenewal(direct.object), tt.action))
		failures := a.Count(tenure.EventFailed)
		for a.Count(tenure.EventFailed) == failures {
			a.Await(tenure.EventFailed, patience)
		}
		if e := a.Await(renewed, patience); e.Epoch != first.Epoch {
			t.Errorf("%s: renewed at epoch %d, want %d", tt.name, e.Epoch, first.Epoch)
		}
	}
	if n := a.Count(ended) + b.Count(began); n != 0 {
		t.Fatalf("the term ended, or another began, %d times", n)
	}

	// Somebody deletes the record: the term is over, and the next one's epoch is
	// higher.
	remove(t, direct)
	if e := a.Await(ended, patience); e.Epoch != first.Epoch {
		t.Errorf("epoch %d ended, want %d", e.Epoch, first.Epoch)
	}
	a.Stop()
	if e := b.Await(began, patience); e.Epoch <= first.Epoch {
		t.Errorf("after the record was deleted the epoch is %d, was %d", e.Epoch, first.Epoch)
	}
}

// TestRetained: a retention policy is set under a leader. It cannot renew, says
// why without hurry, and its term ends at the renew deadline; when the policy is
// gone one leads again.
func TestRetained(t *testing.T) {
	t.Parallel()
	r, direct, p := proxied(t, nil)
	initLock(t, direct)
	a := run(t, "a", r)
	first := a.Await(began, patience)
	p.Forget()
	p.SetRule(fault.Always(fault.IsWrite, fault.Instead(retained)))
	mustSay(t, a.Await(tenure.EventFailed, patience).Err, "retention policy", "use a bucket without")
	e := a.Await(ended, patience)
	if e.Epoch != first.Epoch || !errors.Is(e.Err, tenure.ErrRenewDeadline) {
		t.Errorf("epoch %d ended with %v", e.Epoch, e.Err)
	}
	if n := len(onLock(p.Records(), direct)); n > 12 {
		t.Errorf("%d requests until the deadline, want at most a write and a read per period", n)
	}
	p.SetRule(nil)
	if e := a.Await(began, patience); e.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", e.Epoch, first.Epoch)
	}
}

// TestLimitedStore: ten candidates begin at once on a store that refuses a
// second write of an object within a second. One leads soon and renews on; the
// others do not write any more.
func TestLimitedStore(t *testing.T) {
	t.Parallel()
	p, url := limited(t)
	direct := open(t, url(testObject))
	initLock(t, direct)
	start := time.Now()
	all := make([]*elect.Candidate, 10)
	for i := range all {
		all[i] = run(t, fmt.Sprint("c", i), open(t, url(testObject)))
	}
	t.Cleanup(func() { // side by side, not one after the other
		var wg sync.WaitGroup
		for _, c := range all {
			wg.Go(c.Stop)
		}
		wg.Wait()
	})
	written := func(records []fault.Record, status int) (at []time.Time) {
		for _, rec := range onLock(records, direct) {
			if rec.Method == http.MethodPost && rec.Status == status {
				at = append(at, rec.End)
			}
		}
		return at
	}
	const acquisitionAndRenewals = 5
	p.Forget() // the write that made the lock
	if err := p.Wait(within(t, time.Minute), func(r []fault.Record) bool { return len(written(r, 200)) >= acquisitionAndRenewals }); err != nil {
		t.Fatal(err)
	}
	terms, over := 0, 0
	for _, c := range all {
		terms += c.Count(began)
		over += c.Count(ended)
	}
	if terms != 1 || over != 0 {
		t.Errorf("%d terms began and %d ended, want one that goes on", terms, over)
	}
	done, refused := written(p.Records(), 200), written(p.Records(), 429)
	led := done[0].Sub(start)
	if led > testLease {
		t.Errorf("one led after %v, want less than D", led)
	}
	late := 0
	for _, at := range refused {
		if at.Sub(done[0]) > 2*testPeriod {
			late++
		}
	}
	if late > 0 {
		t.Errorf("%d writes were refused when one had led for 2 P: who else writes?", late)
	}
	t.Logf("one led after %v; %d writes were done and %d refused, %d of them after 2 P", led.Round(time.Millisecond), len(done), len(refused), late)
}

// TestEpochsGrow: leaders follow one another while the record is deleted,
// emptied and garbled; one leads at a time and its epoch is the highest so far.
func TestEpochsGrow(t *testing.T) {
	t.Parallel()
	direct := fresh(t)
	initLock(t, direct)
	highest := int64(0)
	for i, damage := range []func(){
		func() {}, func() { put(t, direct, nil) }, func() { put(t, direct, []byte(`{"holderIdentity":`)) },
	} {
		c := run(t, fmt.Sprint("c", i), open(t, server.LockURL(direct.store.bucket, direct.object)))
		e := c.Await(began, patience)
		if e.Epoch <= highest {
			t.Errorf("term %d has epoch %d, the highest was %d", i, e.Epoch, highest)
		}
		highest = e.Epoch
		c.Stop()
		damage()
	}
}

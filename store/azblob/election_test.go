// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/storetest/elect"
	"tenure.dev/test/fault"
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
	following = tenure.EventFollowing
)

// patience is how long an event is awaited.
const patience = 40 * time.Second

func initLock(t testing.TB, r *Register) {
	t.Helper()
	if _, err := tenure.Init(t.Context(), r, tenure.InitOptions{Who: "test", FirstEver: true}); err != nil {
		t.Fatal(err)
	}
}

// run starts an elector on r, which the test ends.
func run(t testing.TB, name string, r *Register) *elect.Candidate {
	t.Helper()
	return elect.Contend(t, name, tenure.Options{Register: r, Lock: r.String(), LeaseDuration: testLease})
}

// TestElection lets a leader meet the store's faults one after another: it
// keeps its term through those that leave the record alone.
func TestElection(t *testing.T) {
	r, direct, p := proxied(t, nil)
	initLock(t, direct)
	a := run(t, "a", r)
	first := a.Await(began, patience)
	b := run(t, "b", openAt(t, azurite.Endpoint, direct.store.container, direct.blob))
	b.Await(following, patience)

	isRenewal := func(req *http.Request) bool {
		return fault.IsWrite(req) && strings.HasSuffix(req.URL.Path, "/"+direct.blob)
	}
	for _, tt := range []struct {
		name   string
		action fault.Action
	}{
		{"answer lost", fault.LoseAnswer()},
		{"500 after it was done", fault.Afterwards(azureSays(500, "InternalError"))},
		{"not arrived", fault.CutBefore()},
		{"throttled", fault.Instead(azureSays(503, "ServerBusy", "Retry-After", "1"))},
		{"another request is under way", fault.Instead(azureSays(409, "OperationTimedOut"))},
		{"a proxy's page", fault.Instead(fault.HTML(403))},
		{"credentials refused", fault.Instead(azureSays(403, "AuthenticationFailed"))},
	} {
		p.SetRule(fault.Times(1, isRenewal, tt.action))
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

// TestLeased: somebody takes an Azure lease on the record. The leader cannot
// renew, stops in time and says why; when it is broken one leads again.
func TestLeased(t *testing.T) {
	direct := fresh(t)
	initLock(t, direct)
	a := run(t, "a", openAt(t, azurite.Endpoint, direct.store.container, direct.blob))
	first := a.Await(began, patience)
	lease := func(header http.Header, status int) {
		t.Helper()
		must(t, direct.store, request{method: http.MethodPut, blob: direct.blob, query: map[string][]string{"comp": {"lease"}}, header: header}, status)
	}
	lease(http.Header{"X-Ms-Lease-Action": {"acquire"}, "X-Ms-Lease-Duration": {"-1"}}, http.StatusCreated)
	mustSay(t, a.Await(tenure.EventFailed, patience).Err, "Azure lease", "az storage blob lease break", "LeaseIdMissing")
	_, v := mustRead(t, direct)
	if _, err := direct.Write(t.Context(), []byte("x"), v); err == nil || errors.Is(err, tenure.ErrConflict) {
		t.Errorf("write to a leased blob: %v", err)
	}
	if e := a.Await(ended, patience); e.Epoch != first.Epoch || !errors.Is(e.Err, tenure.ErrRenewDeadline) {
		t.Errorf("epoch %d ended with %v", e.Epoch, e.Err)
	}
	lease(http.Header{"X-Ms-Lease-Action": {"break"}, "X-Ms-Lease-Break-Period": {"0"}}, http.StatusAccepted)
	if e := a.Await(began, patience); e.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", e.Epoch, first.Epoch)
	}
}

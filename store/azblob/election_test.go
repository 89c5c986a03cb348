// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"tenure.dev"
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

// A candidate is an elector under test.
type candidate struct {
	t    testing.TB
	name string
	stop func()

	mu      sync.Mutex
	events  []tenure.Event
	seen    int
	changed chan struct{}
}

func initLock(t testing.TB, r *Register) {
	t.Helper()
	if _, err := tenure.Init(t.Context(), r, tenure.InitOptions{Who: "test", FirstEver: true}); err != nil {
		t.Fatal(err)
	}
}

// run starts an elector on r, which the test ends.
func run(t testing.TB, name string, r *Register) *candidate {
	t.Helper()
	c := &candidate{t: t, name: name, changed: make(chan struct{})}
	e, err := tenure.New(tenure.Options{
		Register: r, Lock: r.String(), Identity: name, Host: name,
		LeaseDuration: testLease, Observe: c.observe,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- e.Run(ctx, func(ctx context.Context, _ *tenure.Term) error {
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended: %v", name, err)
		}
	})
	t.Cleanup(c.stop)
	return c
}

func (c *candidate) observe(e tenure.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
	close(c.changed)
	c.changed = make(chan struct{})
}

// await returns the next event of a kind, after those that were awaited before.
func (c *candidate) await(kind tenure.EventKind) tenure.Event {
	c.t.Helper()
	late := time.NewTimer(40 * time.Second)
	defer late.Stop()
	for {
		c.mu.Lock()
		for c.seen < len(c.events) {
			e := c.events[c.seen]
			c.seen++
			if e.Kind == kind {
				c.mu.Unlock()
				return e
			}
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-late.C:
			c.t.Fatalf("%s: no %s; all events: %+v", c.name, kind, c.events)
		}
	}
}

// count returns how many events of a kind there were.
func (c *candidate) count(kind tenure.EventKind) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// TestElection lets a leader meet the store's faults one after another: it
// keeps its term through those that leave the record alone.
func TestElection(t *testing.T) {
	r, direct, p := proxied(t, nil)
	initLock(t, direct)
	a := run(t, "a", r)
	first := a.await(began)
	b := run(t, "b", openAt(t, azurite.Endpoint, direct.store.container, direct.blob))
	b.await(following)

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
		failures := a.count(tenure.EventFailed)
		for a.count(tenure.EventFailed) == failures {
			a.await(tenure.EventFailed)
		}
		if e := a.await(renewed); e.Epoch != first.Epoch {
			t.Errorf("%s: renewed at epoch %d, want %d", tt.name, e.Epoch, first.Epoch)
		}
	}
	if n := a.count(ended) + b.count(began); n != 0 {
		t.Fatalf("the term ended, or another began, %d times", n)
	}

	// Somebody deletes the record: the term is over, and the next one's epoch is
	// higher.
	remove(t, direct)
	if e := a.await(ended); e.Epoch != first.Epoch {
		t.Errorf("epoch %d ended, want %d", e.Epoch, first.Epoch)
	}
	a.stop()
	if e := b.await(began); e.Epoch <= first.Epoch {
		t.Errorf("after the record was deleted the epoch is %d, was %d", e.Epoch, first.Epoch)
	}
}

// TestLeased: somebody takes an Azure lease on the record. The leader cannot
// renew, stops in time and says why; when it is broken one leads again.
func TestLeased(t *testing.T) {
	direct := fresh(t)
	initLock(t, direct)
	a := run(t, "a", openAt(t, azurite.Endpoint, direct.store.container, direct.blob))
	first := a.await(began)
	lease := func(header http.Header, status int) {
		t.Helper()
		must(t, direct.store, request{method: http.MethodPut, blob: direct.blob, query: map[string][]string{"comp": {"lease"}}, header: header}, status)
	}
	lease(http.Header{"X-Ms-Lease-Action": {"acquire"}, "X-Ms-Lease-Duration": {"-1"}}, http.StatusCreated)
	mustSay(t, a.await(tenure.EventFailed).Err, "Azure lease", "az storage blob lease break", "LeaseIdMissing")
	_, v := mustRead(t, direct)
	if _, err := direct.Write(t.Context(), []byte("x"), v); err == nil || errors.Is(err, tenure.ErrConflict) {
		t.Errorf("write to a leased blob: %v", err)
	}
	if e := a.await(ended); e.Epoch != first.Epoch || !errors.Is(e.Err, tenure.ErrRenewDeadline) {
		t.Errorf("epoch %d ended with %v", e.Epoch, e.Err)
	}
	lease(http.Header{"X-Ms-Lease-Action": {"break"}, "X-Ms-Lease-Break-Period": {"0"}}, http.StatusAccepted)
	if e := a.await(began); e.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", e.Epoch, first.Epoch)
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package elect runs electors over a register, for the tests of drivers that let a
// leader meet the faults of their store.
package elect

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"tenure.dev"
)

// Told is an event of an elector, and when it was told.
type Told struct {
	tenure.Event
	At time.Time
}

// A Candidate is an elector that runs, and what it has told.
type Candidate struct {
	// Stop ends it, and waits until it has ended. The end of the test does so too.
	Stop func()
	// Events are those that nobody has awaited yet.
	Events chan Told

	t    testing.TB
	name string

	mu     sync.Mutex
	counts map[tenure.EventKind]int
}

// Contend starts an elector with these options and that name. Its work is to wait for
// the end of the term. That Run fails is an error of the test.
func Contend(t testing.TB, name string, o tenure.Options) *Candidate {
	t.Helper()
	c := &Candidate{t: t, name: name, Events: make(chan Told, 100_000), counts: make(map[tenure.EventKind]int)}
	o.Identity, o.Host, o.Observe = name, name, c.observe
	e, err := tenure.New(o)
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
	c.Stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended: %v", name, err)
		}
	})
	t.Cleanup(c.Stop)
	return c
}

func (c *Candidate) observe(e tenure.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[e.Kind]++
	c.Events <- Told{e, time.Now()}
}

// Await returns the next event of a kind, after those that were awaited before.
func (c *Candidate) Await(kind tenure.EventKind, within time.Duration) Told {
	c.t.Helper()
	late := time.NewTimer(within)
	defer late.Stop()
	var last error
	for {
		select {
		case e := <-c.Events:
			if e.Kind == kind {
				return e
			}
			if e.Err != nil {
				last = e.Err
			}
		case <-late.C:
			c.t.Fatalf("%s: no %s within %v; the last error: %v", c.name, kind, within, last)
		}
	}
}

// Renewals waits for n renewals of one term, which must not end meanwhile. It returns
// the requests that failed.
func (c *Candidate) Renewals(n int, within time.Duration) (failed []error) {
	c.t.Helper()
	late := time.NewTimer(within)
	defer late.Stop()
	for n > 0 {
		select {
		case e := <-c.Events:
			switch e.Kind {
			case tenure.EventRenewed:
				n--
			case tenure.EventFailed:
				failed = append(failed, e.Err)
			case tenure.EventStopping, tenure.EventEnded:
				c.t.Fatalf("%s: the term of epoch %d did not survive: %v", c.name, e.Epoch, e.Err)
			default:
			}
		case <-late.C:
			c.t.Fatalf("%s: %d renewals are missing after %v: %v", c.name, n, within, failed)
		}
	}
	return failed
}

// Drain forgets what was told so far.
func (c *Candidate) Drain() {
	for {
		select {
		case <-c.Events:
		default:
			return
		}
	}
}

// Count returns how many events of a kind there were.
func (c *Candidate) Count(kind tenure.EventKind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[kind]
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// hooked is a register whose requests a test can delay, fail or lose. Hooks run
// in the requests' own goroutines.
type hooked struct {
	tenure.Register
	mu sync.Mutex
	// beforeRead and beforeWrite may block; an error is the answer, and the
	// store is not asked.
	beforeRead  func(ctx context.Context) error
	beforeWrite func(ctx context.Context, value []byte) error
	// afterRead and afterWrite may block; an error replaces the answer.
	afterRead  func(ctx context.Context) error
	afterWrite func(ctx context.Context, value []byte, err error) error
	reads      int
	writes     int
}

func (h *hooked) hooks() (br func(context.Context) error, ar func(context.Context) error,
	bw func(context.Context, []byte) error, aw func(context.Context, []byte, error) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.beforeRead, h.afterRead, h.beforeWrite, h.afterWrite
}

func (h *hooked) set(change func(*hooked)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

func (h *hooked) count() (reads, writes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reads, h.writes
}

func (h *hooked) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	h.set(func(h *hooked) { h.reads++ })
	before, after, _, _ := h.hooks()
	if before != nil {
		if err := before(ctx); err != nil {
			return nil, "", err
		}
	}
	value, version, err := h.Register.Read(ctx)
	if after != nil {
		if err := after(ctx); err != nil {
			return nil, "", err
		}
	}
	return value, version, err
}

func (h *hooked) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	h.set(func(h *hooked) { h.writes++ })
	_, _, before, after := h.hooks()
	if before != nil {
		if err := before(ctx, value); err != nil {
			return "", err
		}
	}
	// What has reached the store is applied, also if the caller has given up.
	version, err := h.Register.Write(context.WithoutCancel(ctx), value, old)
	if after != nil {
		if err := after(ctx, value, err); err != nil {
			return "", err
		}
	}
	return version, err
}

var errLost = errors.New("the answer was lost")

// plain hides everything but the register itself, so that a test decides what
// requests there are.
type plain struct{ tenure.Register }

// bench is one lock in memory, with a candidate's work that records its terms.
type bench struct {
	t   *testing.T
	mem *mem.Register
	reg tenure.Register
	// prepare, when set, is called with each elector before it runs.
	prepare func(*tenure.Elector)
	// drain is how long the work takes to end.
	drain atomic.Int64

	mu     sync.Mutex
	events map[string][]tenure.Event
	terms  []*termLog
}

type termLog struct {
	identity string
	term     *tenure.Term
	began    time.Time
	stopped  time.Time // its context ended
	ended    time.Time // the work returned
	cause    error
}

func newBench(t *testing.T) *bench {
	m := mem.New()
	return &bench{t: t, mem: m, reg: plain{m}, events: make(map[string][]tenure.Event)}
}

// candidate is a running elector of a bench.
type candidate struct {
	*tenure.Elector
	stop context.CancelFunc
	done chan error
	hook *hooked
}

// start runs a candidate, on a register of its own view of the lock.
func (b *bench) start(identity string, change func(*tenure.Options)) *candidate {
	b.t.Helper()
	c := &candidate{done: make(chan error, 1), hook: &hooked{Register: b.reg}}
	o := tenure.Options{Register: c.hook, Identity: identity, Observe: func(ev tenure.Event) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events[identity] = append(b.events[identity], ev)
	}}
	if change != nil {
		change(&o)
	}
	e, err := tenure.New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	c.Elector = e
	if b.prepare != nil {
		b.prepare(e)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	c.stop = cancel
	go func() { c.done <- e.Run(ctx, b.work(identity)) }()
	return c
}

func (b *bench) work(identity string) tenure.Work {
	return func(ctx context.Context, term *tenure.Term) error {
		entry := &termLog{identity: identity, term: term, began: time.Now()}
		b.mu.Lock()
		for _, other := range b.terms {
			if other.term.Valid() {
				b.t.Errorf("%s began epoch %d while %s's term of epoch %d is valid (I1)", identity, term.Epoch(), other.identity, other.term.Epoch())
			}
			if other.term.Epoch() >= term.Epoch() {
				b.t.Errorf("%s began epoch %d after epoch %d (I2)", identity, term.Epoch(), other.term.Epoch())
			}
		}
		b.terms = append(b.terms, entry)
		b.mu.Unlock()
		<-ctx.Done()
		stopped := time.Now()
		time.Sleep(time.Duration(b.drain.Load()))
		b.mu.Lock()
		entry.ended = time.Now()
		entry.stopped, entry.cause = stopped, context.Cause(ctx)
		b.mu.Unlock()
		return ctx.Err()
	}
}

// await sleeps until ok, at most for d of the bubble's time.
func (b *bench) await(what string, d time.Duration, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	b.t.Fatalf("not within %v: %s", d, what)
}

// leader returns the last term that is valid, or nil.
func (b *bench) leader() *termLog {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range slices.Backward(b.terms) {
		if t.term.Valid() {
			return t
		}
	}
	return nil
}

// leads waits until identity leads and returns how long that took.
func (b *bench) leads(identity string, within time.Duration) time.Duration {
	b.t.Helper()
	from := time.Now()
	b.await(identity+" leads", within, func() bool {
		l := b.leader()
		return l != nil && l.identity == identity
	})
	return time.Since(from)
}

func (b *bench) count(identity string, kind tenure.EventKind) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, ev := range b.events[identity] {
		if ev.Kind == kind {
			n++
		}
	}
	return n
}

func (b *bench) record() *tenure.Record {
	b.t.Helper()
	v, err := tenure.Look(b.t.Context(), b.reg)
	if err != nil {
		b.t.Fatal(err)
	}
	return v.Record
}

// end stops candidates and waits for them.
func (b *bench) end(cs ...*candidate) {
	b.t.Helper()
	for _, c := range cs {
		c.hook.set(func(h *hooked) { h.beforeRead, h.afterRead, h.beforeWrite, h.afterWrite = nil, nil, nil, nil })
		c.stop()
		if err := <-c.done; err != nil {
			b.t.Errorf("Run returned %v", err)
		}
	}
}

// cut makes every request of c fail without reaching the store, until mended.
func (c *candidate) cut() {
	fail := errors.New("the store is not reached")
	c.hook.set(func(h *hooked) {
		h.beforeRead = func(context.Context) error { return fail }
		h.beforeWrite = func(context.Context, []byte) error { return fail }
	})
}

// leaderCount returns how many terms have begun.
func (b *bench) leaderCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.terms)
}

// past returns what is known of a term.
func (b *bench) past(l *termLog) (stopped, ended time.Time, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return l.stopped, l.ended, l.cause
}

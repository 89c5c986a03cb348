// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package replica lets several processes act for one cluster, one after
// another, without a failover between them. The one that acts holds the
// cluster's seat, an object in the cluster that is written conditionally. Before
// it sends a write to a lock, the write's nonce goes into the seat. A process
// that takes the seat over may go on with a term of its predecessor's only if it
// has itself seen the nonce change in both places: a cluster that was cloned, and a
// process that was just started, have not, and wait like anybody.
//
// The seat decides nothing about who leads: every write to a lock is conditional
// on the version that was read. It keeps the processes of one cluster from
// working against each other.
package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"tenure.dev"
)

// ErrNotSeated is wrapped by the errors of a process that does not hold the
// cluster's seat: another one acts.
var ErrNotSeated = errors.New("replica: another process of this cluster acts")

// State is what a seat says.
type State struct {
	// Holder is the process that acts.
	Holder string
	// Nonces are, for each lock, the nonces of its last two writes, the newest
	// first.
	Nonces map[string][2]string
	// Beat grows with each write, so that writes can be told apart.
	Beat int64
}

// A Store keeps the seat: in a cluster, a Lease. Its methods block for one
// request, at most until ctx ends.
type Store interface {
	// Get returns the seat and its version; the zero State and version if
	// there is none.
	Get(ctx context.Context) (State, string, error)
	// Put replaces the seat if it still has that version, and returns the new
	// one; tenure.ErrConflict if it has another.
	Put(ctx context.Context, s State, version string) (string, error)
}

// Options configure a [Seat]. All fields but Logger are required.
type Options struct {
	// Store keeps the seat.
	Store Store
	// Self names this process, uniquely.
	Self string
	// Identity and ClusterUID are those under which the cluster holds its locks.
	Identity, ClusterUID string
	// Period is how often the seat is looked at, and at least how often its
	// holder writes it. A seat that has not changed for 5/3 of it is taken over.
	Period time.Duration
	// Timeout bounds each request.
	Timeout time.Duration
	// Logger receives a line when the seat changes hands; default none.
	Logger *slog.Logger
}

// A Seat is a cluster's seat as one process sees it. Its methods are safe for
// concurrent use.
type Seat struct {
	opt   Options
	start time.Time

	mu        sync.Mutex
	observers map[string]*observer
	state     State
	version   string
	changed   time.Duration // when the version was first seen
	known     bool
	lastErr   error
	holding   bool
	took      chan struct{} // closed with the next change of holding
	wrote     time.Duration
	looked    time.Duration

	writing chan struct{} // holds one token: one write at a time
	next    *batch        // nonces for the next write, under mu
}

// batch is what one write puts into the seat, for all locks that renew at the
// same time.
type batch struct {
	nonces map[string]string
	done   chan struct{}
	err    error
}

// New returns a seat. It makes no request.
func New(o Options) *Seat {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Seat{opt: o, start: time.Now(), observers: make(map[string]*observer), took: make(chan struct{}), writing: make(chan struct{}, 1)}
}

func (s *Seat) now() time.Duration { return time.Since(s.start) }

// Run looks at the seat, takes it when it is free or given up, and keeps it. It
// blocks until ctx ends, and then gives the seat up with one write.
func (s *Seat) Run(ctx context.Context) {
	for {
		s.look(ctx)
		t := time.NewTimer(s.opt.Period / 6)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			s.leave(context.WithoutCancel(ctx))
			return
		}
	}
}

// look reads the seat, or renews it where it is ours and nobody else has.
func (s *Seat) look(ctx context.Context) {
	s.mu.Lock()
	now := s.now()
	holding, fresh := s.holding, now-s.wrote < s.opt.Period
	// While its holder is on time, a look every half period will do.
	soon := !s.known || s.lastErr != nil || now-s.changed > s.opt.Period || now-s.looked >= s.opt.Period/2
	if !holding && soon {
		s.looked = now
	}
	s.mu.Unlock()
	if holding && fresh || !holding && !soon {
		return // renewals keep it
	}
	if holding {
		if err := s.put(ctx, nil); err != nil && ctx.Err() == nil {
			s.opt.Logger.Debug("keeping the seat failed", "error", err)
		}
		return
	}
	if s.read(ctx); s.mayTake() {
		if err := s.take(ctx); err != nil && ctx.Err() == nil {
			s.opt.Logger.Debug("taking the seat failed", "error", err)
		}
	}
}

func (s *Seat) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.opt.Timeout)
	defer cancel()
	state, version, err := s.opt.Store.Get(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastErr = err; err != nil {
		return
	}
	s.see(state, version)
}

// see takes in a state. It is called under s.mu.
func (s *Seat) see(state State, version string) {
	if !s.known || version != s.version {
		s.changed = s.now()
	}
	s.known, s.state, s.version = true, state, version
	s.hold(version != "" && state.Holder == s.opt.Self)
	for lock, o := range s.observers {
		n := state.Nonces[lock]
		o.seat(s.holding, []string{n[1], n[0]})
	}
}

func (s *Seat) hold(holding bool) {
	if s.holding == holding {
		return
	}
	s.holding = holding
	close(s.took)
	s.took = make(chan struct{})
	if holding {
		s.opt.Logger.Info("acting for the cluster", "replica", s.opt.Self)
	} else {
		s.opt.Logger.Info("another replica acts for the cluster", "replica", s.opt.Self, "acts", s.state.Holder)
	}
}

// silent is for how long a seat must not have changed to be taken over. Its holder
// writes it once per period, and is late by a sixth of one when nothing is wrong.
// Taking it too soon does no harm: the one that is slow goes on as a sibling.
func silent(period time.Duration) time.Duration { return period * 5 / 3 }

func (s *Seat) mayTake() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known || s.holding || s.lastErr != nil {
		return false
	}
	// A seat that was left goes to a process that has seen its holder renew: one that
	// was just started could not go on with the term.
	left := s.state.Holder == "" && s.now() > 3*s.opt.Period
	return s.version == "" || left || s.now()-s.changed > silent(s.opt.Period)
}

func (s *Seat) take(ctx context.Context) error {
	return s.write(ctx, func() map[string]string { return nil }, true)
}

// put writes the seat with these nonces, together with those of others that
// wait for the write before this one.
func (s *Seat) put(ctx context.Context, nonces map[string]string) error {
	s.mu.Lock()
	b := s.next
	first := b == nil
	if first {
		b = &batch{nonces: make(map[string]string), done: make(chan struct{})}
		s.next = b
	}
	maps.Copy(b.nonces, nonces)
	s.mu.Unlock()
	if first {
		go func() {
			b.err = s.write(context.WithoutCancel(ctx), func() map[string]string {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.next = nil
				return b.nonces
			}, false)
			close(b.done)
		}()
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("replica: writing the seat: %w", ctx.Err())
	}
}

// write writes the seat with us as its holder.
func (s *Seat) write(ctx context.Context, what func() map[string]string, taking bool) error {
	s.writing <- struct{}{}
	defer func() { <-s.writing }()
	nonces := what()
	ctx, cancel := context.WithTimeout(ctx, s.opt.Timeout)
	defer cancel()
	s.mu.Lock()
	if !taking && !s.holding {
		err := fmt.Errorf("%w: %q", ErrNotSeated, s.state.Holder)
		s.mu.Unlock()
		return err
	}
	next, version := s.state, s.version
	s.mu.Unlock()
	next.Holder, next.Nonces = s.opt.Self, maps.Clone(next.Nonces)
	next.Beat++
	if next.Nonces == nil {
		next.Nonces = make(map[string][2]string)
	}
	for lock, nonce := range nonces {
		next.Nonces[lock] = [2]string{nonce, next.Nonces[lock][0]}
	}
	now, err := s.opt.Store.Put(ctx, next, version)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wrote, s.lastErr = s.now(), nil
		s.see(next, now)
		return nil
	}
	// What became of it is found by reading; until then nobody is known to be
	// seated here.
	s.read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.lastErr != nil:
		s.lastErr = errors.Join(err, s.lastErr)
		return fmt.Errorf("replica: writing the seat: %w", err)
	case s.holding && s.state.Beat == next.Beat && holds(s.state, nonces):
		s.wrote = s.now()
		return nil // the answer was lost
	case !s.holding:
		return fmt.Errorf("%w: %q", ErrNotSeated, s.state.Holder)
	default:
		return fmt.Errorf("replica: writing the seat: %w", err)
	}
}

func holds(s State, nonces map[string]string) bool {
	for lock, n := range nonces {
		if s.Nonces[lock][0] != n {
			return false
		}
	}
	return true
}

// leave gives the seat up, so that a sibling need not wait.
func (s *Seat) leave(ctx context.Context) {
	s.writing <- struct{}{}
	defer func() { <-s.writing }()
	s.mu.Lock()
	next, version, holding := s.state, s.version, s.holding
	s.hold(false)
	s.mu.Unlock()
	if !holding {
		return
	}
	next.Holder = ""
	next.Beat++
	ctx, cancel := context.WithTimeout(ctx, s.opt.Timeout)
	defer cancel()
	if _, err := s.opt.Store.Put(ctx, next, version); err != nil {
		s.opt.Logger.Debug("leaving the seat failed", "error", err)
	}
}

// Holding reports whether this process holds the seat, as far as it knows, and a
// channel that is closed when that changes.
func (s *Seat) Holding() (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holding, s.took
}

// Acting reports whether this process acts for the cluster. One that has not written
// the seat for so long that another may have taken it, as when it was frozen, writes
// it first. It blocks for two requests then, at most until ctx ends. While the seat
// cannot be reached, the last that was known counts.
func (s *Seat) Acting(ctx context.Context) bool {
	s.mu.Lock()
	holding, sure := s.holding, s.now()-s.wrote < silent(s.opt.Period)
	s.mu.Unlock()
	if !holding || sure {
		return holding
	}
	if err := s.put(ctx, nil); err != nil {
		s.opt.Logger.Debug("keeping the seat failed", "error", err)
	}
	holding, _ = s.Holding()
	return holding
}

// Holder returns who holds the seat, as last seen, and why it could not be read
// since, if so.
func (s *Seat) Holder() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Holder, s.lastErr
}

// Join sets the options with which an elector of this cluster takes part for a
// lock, and returns a function that says whether somebody else uses the
// cluster's identity. It does not block.
func (s *Seat) Join(lock string, o *tenure.Options) (duplicate func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	obs := s.observers[lock]
	if obs == nil {
		obs = &observer{identity: s.opt.Identity, clusterUID: s.opt.ClusterUID, now: s.now}
		s.observers[lock] = obs
		n := s.state.Nonces[lock]
		obs.seat(s.holding, []string{n[1], n[0]})
	}
	o.Identity, o.ClusterUID, o.Candidate = s.opt.Identity, s.opt.ClusterUID, s.opt.Self
	o.Standing = obs.standing
	o.BeforeWrite = func(ctx context.Context, nonce string) error {
		obs.wrote(nonce)
		return s.put(ctx, map[string]string{lock: nonce})
	}
	return obs.duplicate
}

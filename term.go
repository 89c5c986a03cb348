// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	"sync/atomic"
	"time"

	"tenure.dev/internal/clock"
)

// A Term is one uninterrupted leadership. Its methods never block and are safe
// for concurrent use.
type Term struct {
	epoch  int64
	clock  clock.Clock
	ctx    context.Context
	cancel context.CancelCauseFunc

	until atomic.Int64 // monotonic
	wall  atomic.Int64 // wall clock, ns since 1970
	sent  atomic.Int64 // monotonic
	over  atomic.Bool
}

func newTerm(parent context.Context, c clock.Clock, epoch int64) *Term {
	t := &Term{epoch: epoch, clock: c}
	t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(parent))
	return t
}

// extend makes the term valid for d from sent, unless it is over. The wall
// clock may not have advanced by more than all of lease since then.
func (t *Term) extend(sent clock.Reading, d, lease time.Duration) {
	t.until.Store(int64(sent.Mono + d))
	t.wall.Store(sent.Wall + int64(lease))
	t.sent.Store(int64(sent.Mono))
}

func (t *Term) end(cause error) {
	t.over.Store(true)
	t.cancel(cause)
}

// Epoch returns the fencing token: greater than that of every term before.
func (t *Term) Epoch() int64 { return t.epoch }

// Valid reports whether the term lasts at this instant, by one look at this
// machine's clocks; it allocates nothing. It is false from [Term.Deadline] on,
// after the lock was lost or released, and when the wall clock has advanced
// more than the lease duration since the last renewal, which on a machine that
// was suspended is all that tells. An action begun right after a true may
// still take effect after the term: only the receiver can refuse that.
func (t *Term) Valid() bool {
	if t.over.Load() {
		return false
	}
	mono, wall := t.clock.Quick()
	return int64(mono) < t.until.Load() && wall < t.wall.Load()
}

// Deadline returns the instant at which the term ends unless it is renewed,
// with a monotonic reading. Renewals move it; it never goes back.
func (t *Term) Deadline() time.Time {
	return t.clock.Time(time.Duration(t.until.Load()))
}

// Renewed returns the instant at which the renewal that the term counts from
// was sent, with a monotonic reading.
func (t *Term) Renewed() time.Time {
	return t.clock.Time(time.Duration(t.sent.Load()))
}

// Context returns the context of the guarded work. It ends before the term
// does: at the renew deadline ([ErrRenewDeadline]), for an order
// ([ErrHandover]), when Run's context ends ([ErrStopped]), after the work has
// returned ([ErrWorkEnded]), or with the term (*[LostError]). [context.Cause] tells which. It carries the values of Run's
// context.
func (t *Term) Context() context.Context { return t.ctx }

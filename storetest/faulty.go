// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"tenure.dev"
)

// ErrInjected is wrapped by the errors that [Faulty] makes.
var ErrInjected = errors.New("storetest: injected fault")

// Faults says how often requests fail: each number is a probability, and their
// sum is at most 1. The zero Faults are none.
type Faults struct {
	// Before: the request fails and does nothing.
	Before float64
	// After: the write is applied, and its answer is an error. Of reads, the
	// answer is lost.
	After float64
	// Late: the write fails first, and is applied after that, if it still can.
	Late float64
	// Delay is the longest time by which a request is held up before it
	// reaches the store, and its answer on the way back.
	Delay time.Duration
}

// Faulty is a register over an unreliable network. It keeps every promise of
// [tenure.Register] if the register behind it does. It has none of the optional
// abilities. Its methods are safe for concurrent use.
type Faulty struct {
	r      tenure.Register
	faults Faults

	mu  sync.Mutex
	rng *rand.Rand

	late sync.WaitGroup
}

// NewFaulty returns r with faults, drawn from the seed in the order of the
// requests.
func NewFaulty(r tenure.Register, faults Faults, seed uint64) *Faulty {
	return &Faulty{r: r, faults: faults, rng: rand.New(rand.NewPCG(seed, 0))}
}

// Unwrap returns the register behind the faults.
func (f *Faulty) Unwrap() tenure.Register { return f.r }

// Wait blocks until the late writes so far have happened or failed. It must not
// run beside writes.
func (f *Faulty) Wait() { f.late.Wait() }

type fault int

const (
	faultNone fault = iota
	faultBefore
	faultAfter
	faultLate
)

// draw decides what becomes of one request.
func (f *Faulty) draw() (what fault, there, back time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.faults.Delay > 0 {
		there, back = time.Duration(f.rng.Int64N(int64(f.faults.Delay))), time.Duration(f.rng.Int64N(int64(f.faults.Delay)))
	}
	switch p := f.rng.Float64(); {
	case p < f.faults.Before:
		what = faultBefore
	case p < f.faults.Before+f.faults.After:
		what = faultAfter
	case p < f.faults.Before+f.faults.After+f.faults.Late:
		what = faultLate
	}
	return what, there, back
}

// Read implements [tenure.Register].
func (f *Faulty) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	what, there, back := f.draw()
	if err := pause(ctx, there); err != nil {
		return nil, "", fmt.Errorf("read: %w", err)
	}
	if what != faultNone {
		return nil, "", fmt.Errorf("read: %w", ErrInjected)
	}
	value, version, err := f.r.Read(ctx)
	if ended := pause(ctx, back); ended != nil {
		return nil, "", fmt.Errorf("read: %w", ended)
	}
	return value, version, err
}

// Write implements [tenure.Register].
func (f *Faulty) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	what, there, back := f.draw()
	if err := pause(ctx, there); err != nil {
		return "", fmt.Errorf("write: %w", err)
	}
	switch what {
	case faultBefore:
		return "", fmt.Errorf("write: %w", ErrInjected)
	case faultLate:
		value = append([]byte{}, value...)
		f.late.Go(func() {
			pause(context.Background(), back)
			_, _ = f.r.Write(context.WithoutCancel(ctx), value, old) // nobody waits for the answer
		})
		return "", fmt.Errorf("write: %w, it may come later", ErrInjected)
	}
	version, err := f.r.Write(ctx, value, old)
	if ended := pause(ctx, back); ended != nil {
		return "", fmt.Errorf("write: %w", ended)
	}
	if what == faultAfter {
		return "", fmt.Errorf("write: %w, the answer is lost", ErrInjected)
	}
	return version, err
}

// pause blocks for the time, or until ctx ends and returns its error.
func pause(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	wait := time.NewTimer(d)
	defer wait.Stop()
	select {
	case <-wait.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"context"
	"errors"
	"sync"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// conditions are stores whose writes do what they must not.
func conditions() []Store {
	return []Store{
		{
			Name:  "ignores conditions",
			Trap:  "The server does not know the header, drops it and answers 200.",
			Fails: []string{"create-exists", "write-stale", "write-absent", "concurrent-creates", "two-instances", "history"},
			Open:  one(func(r *mem.Register) Register { return &ignoresConditions{Register: r} }),
		},
		{
			Name:  "loses updates",
			Trap:  "The driver compares versions itself and writes without a condition if they fit: a check, and after it a write.",
			Fails: []string{"concurrent-creates", "concurrent-increments", "two-instances", "history"},
			Open:  one(func(r *mem.Register) Register { return &losesUpdates{ignoresConditions{Register: r}} }),
		},
		{
			Name:  "locks in the process",
			Trap:  "Check and write are made one step by a mutex, which another process does not have.",
			Fails: []string{"two-instances", "history-two-instances"},
			Open: func() (a, b Register) {
				r := mem.New()
				return &locksInProcess{losesUpdates: losesUpdates{ignoresConditions{Register: r}}},
					&locksInProcess{losesUpdates: losesUpdates{ignoresConditions{Register: r}}}
			},
		},
		{
			Name:  "creates on match",
			Trap:  "A write at a version creates the key if it is missing, as one popular object store does.",
			Fails: []string{"write-absent", "write-deleted"},
			Open:  one(func(r *mem.Register) Register { return createsOnMatch{r} }),
		},
		{
			Name:  "conflict that was applied",
			Trap:  "The client sends a write again after a lost answer, meets its own write, and reports a conflict. Here with every fourth write.",
			Fails: []string{"conflict-is-definite", "history"},
			Open:  one(func(r *mem.Register) Register { return &lyingConflict{Register: r} }),
		},
		{
			Name:  "conflict that is applied later",
			Trap:  "A queue in front of the store answers 'conflict' when it is busy, and hands the write on all the same.",
			Fails: []string{"conflict-is-definite", "history"},
			Open:  one(func(r *mem.Register) Register { return &lateConflict{Register: r} }),
		},
		{
			Name:  "applies twice",
			Trap:  "A write without an answer is sent again by a proxy, without its condition.",
			Fails: []string{"history"},
			Open:  one(func(r *mem.Register) Register { return &appliesTwice{Register: r} }),
		},
	}
}

type ignoresConditions struct {
	*mem.Register
	mu sync.Mutex
}

// Write puts, and reads its own version under the lock.
func (r *ignoresConditions) Write(ctx context.Context, value []byte, _ tenure.Version) (tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Put(value)
	_, version, err := r.Read(ctx)
	return version, err
}

type losesUpdates struct{ ignoresConditions }

func (r *losesUpdates) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	_, version, err := r.Read(ctx)
	if err != nil && !errors.Is(err, tenure.ErrNotExist) && !errors.Is(err, tenure.ErrValueTooLarge) {
		return "", err
	}
	if version != old {
		return "", tenure.ErrConflict
	}
	time.Sleep(window)
	return r.ignoresConditions.Write(ctx, value, old)
}

type locksInProcess struct {
	losesUpdates
	process sync.Mutex
}

func (r *locksInProcess) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	r.process.Lock()
	defer r.process.Unlock()
	return r.losesUpdates.Write(ctx, value, old)
}

type createsOnMatch struct{ *mem.Register }

func (r createsOnMatch) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	if version, err := r.Register.Write(ctx, value, old); old == "" || !errors.Is(err, tenure.ErrConflict) {
		return version, err
	}
	if _, _, err := r.Read(ctx); !errors.Is(err, tenure.ErrNotExist) {
		return "", tenure.ErrConflict
	}
	return r.Register.Write(ctx, value, "")
}

type lyingConflict struct {
	*mem.Register
	mu     sync.Mutex
	writes int
}

func (r *lyingConflict) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	version, err := r.Register.Write(ctx, value, old)
	if err != nil {
		return "", err
	}
	if r.writes++; r.writes%4 == 0 {
		return "", tenure.ErrConflict
	}
	return version, nil
}

type lateConflict struct {
	*mem.Register
	mu      sync.Mutex
	writes  int
	pending func()
}

func (r *lateConflict) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	value, version, err := r.Register.Read(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil { // after the first request that follows
		r.pending()
		r.pending = nil
	}
	return value, version, err
}

func (r *lateConflict) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writes++; r.writes%4 == 0 {
		value = append([]byte{}, value...)
		r.pending = func() { _, _ = r.Register.Write(context.WithoutCancel(ctx), value, old) }
		return "", tenure.ErrConflict
	}
	return r.Register.Write(ctx, value, old)
}

type appliesTwice struct {
	*mem.Register
	mu     sync.Mutex
	writes int
	again  []byte
}

func (r *appliesTwice) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	version, err := r.Register.Write(ctx, value, old)
	if err != nil {
		return "", err
	}
	switch r.writes++; r.writes % 4 {
	case 0:
		r.again = append([]byte{}, value...)
		return "", errLost
	case 2:
		if r.again != nil {
			r.Put(r.again)
		}
	}
	return version, nil
}

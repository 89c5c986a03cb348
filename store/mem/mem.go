// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package mem keeps registers in the memory of one process: for tests, examples
// and electors that share a process. Nothing is kept when the process ends.
//
// # URL
//
//	mem://name
//
// The name is everything after "mem://" and may contain slashes. All registers
// of one name in a process are the same register. There are no parameters of
// its own.
//
// # Guarantees
//
// Linearizable, within one process only: two processes that open the same name
// have two locks. Versions come from one counter of the process and never
// repeat, also when a register is deleted and made again.
//
// # Permissions
//
// None.
//
// # Cost
//
// A read is a mutex and a copy of the value. Registers live as long as the
// process, or, for those made by [New], as long as anything refers to them.
package mem

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"tenure.dev"
)

var (
	_ tenure.Register  = (*Register)(nil)
	_ tenure.Watcher   = (*Register)(nil)
	_ tenure.Siblinger = (*Register)(nil)
	_ tenure.Lister    = (*Register)(nil)
)

// lastVersion is shared by all stores, so that a version read from one register
// never fits another one either.
var lastVersion atomic.Uint64

// named holds the registers that URLs name.
var named = newStore()

// A store is a set of cells that are siblings of each other.
type store struct {
	mu    sync.Mutex
	cells map[string]*cell
}

func newStore() *store { return &store{cells: make(map[string]*cell)} }

// A cell is the state of one register.
type cell struct {
	mu      sync.Mutex
	value   []byte
	version tenure.Version // zero: the register is empty
	// Each watcher brings its own channel, and takes it away again, so that a
	// cell holds on to nothing that a finished test or elector has made.
	watchers map[chan struct{}]struct{}
}

// A Register is a register in memory. Its methods are safe for concurrent use.
type Register struct {
	store *store
	name  string
	cell  *cell
}

func init() {
	tenure.RegisterScheme("mem", tenure.Driver{Open: open})
}

func open(_ context.Context, u *tenure.URL) (tenure.Register, error) {
	name := u.Host + u.Path
	if name == "" {
		return nil, fmt.Errorf("%w: it has no name: write mem://name", tenure.ErrURL)
	}
	return Named(name), nil
}

// New returns an empty register without a name, which nobody else has. It does
// not block.
func New() *Register { return newStore().open("") }

// Named returns the register that mem://name stands for in this process. It
// does not block, and returns the same register, empty at first, every time.
func Named(name string) *Register { return named.open(name) }

func (s *store) open(name string) *Register {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.cells[name]
	if !ok {
		c = &cell{watchers: make(map[chan struct{}]struct{})}
		s.cells[name] = c
	}
	return &Register{store: s, name: name, cell: c}
}

// String returns the register's URL.
func (r *Register) String() string {
	if r.store != named && r.name == "" {
		return "mem:(unnamed)"
	}
	return "mem://" + r.name
}

// Read implements [tenure.Register]. It does not block; it fails if ctx has
// ended. The value is the caller's.
func (r *Register) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", fmt.Errorf("mem: read %v: %w", r, err)
	}
	r.cell.mu.Lock()
	value, version := r.cell.value, r.cell.version
	r.cell.mu.Unlock()

	// Values are replaced, never changed in place: they may be looked at
	// without the lock.
	switch {
	case version == "":
		return nil, "", fmt.Errorf("mem: read %v: %w", r, tenure.ErrNotExist)
	case len(value) > tenure.MaxRecordSize:
		return nil, version, fmt.Errorf("mem: read %v: %d bytes: %w", r, len(value), tenure.ErrValueTooLarge)
	}
	return append([]byte{}, value...), version, nil
}

// Write implements [tenure.Register]. It does not block; it fails, without
// writing, if ctx has ended. The value is copied.
func (r *Register) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("mem: write %v: %w", r, err)
	}
	r.cell.mu.Lock()
	defer r.cell.mu.Unlock()
	if r.cell.version != old {
		return "", fmt.Errorf("mem: write %v: %w", r, tenure.ErrConflict)
	}
	r.cell.set(append([]byte{}, value...), nextVersion())
	return r.cell.version, nil
}

// Put replaces the value without any condition, as a person with rights on a
// store could: for tests. It does not block.
func (r *Register) Put(value []byte) {
	r.cell.mu.Lock()
	defer r.cell.mu.Unlock()
	r.cell.set(append([]byte{}, value...), nextVersion())
}

// Delete empties the register without any condition, as a person with rights
// on a store could: for tests. It does not block.
func (r *Register) Delete() {
	r.cell.mu.Lock()
	defer r.cell.mu.Unlock()
	r.cell.set(nil, "")
}

// set must be called with the cell's lock held.
func (c *cell) set(value []byte, version tenure.Version) {
	c.value, c.version = value, version
	for ch := range c.watchers {
		close(ch)
	}
	clear(c.watchers)
}

func nextVersion() tenure.Version {
	return tenure.Version(strconv.FormatUint(lastVersion.Add(1), 10))
}

// Watch implements [tenure.Watcher]: it blocks until the register has another
// version than old, or ctx ends.
func (r *Register) Watch(ctx context.Context, old tenure.Version) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("mem: watch %v: %w", r, err)
	}
	r.cell.mu.Lock()
	if r.cell.version != old {
		r.cell.mu.Unlock()
		return nil
	}
	ch := make(chan struct{})
	r.cell.watchers[ch] = struct{}{}
	r.cell.mu.Unlock()

	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		r.cell.mu.Lock()
		delete(r.cell.watchers, ch)
		r.cell.mu.Unlock()
		return fmt.Errorf("mem: watch %v: %w", r, ctx.Err())
	}
}

// Sibling implements [tenure.Siblinger]. It does not block.
func (r *Register) Sibling(suffix string) tenure.Register {
	return r.store.open(r.name + suffix)
}

// List implements [tenure.Lister]. It does not block; it fails if ctx has
// ended.
func (r *Register) List(ctx context.Context, prefix string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("mem: list %v%s: %w", r, prefix, err)
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	var suffixes []string
	for name, c := range r.store.cells {
		suffix, ok := strings.CutPrefix(name, r.name)
		if ok && suffix != "" && strings.HasPrefix(suffix, prefix) && c.exists() {
			suffixes = append(suffixes, suffix)
		}
	}
	slices.Sort(suffixes)
	return suffixes, nil
}

func (c *cell) exists() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version != ""
}

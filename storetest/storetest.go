// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"iter"
	"testing"
	"time"

	"tenure.dev"
)

// T is what a case needs of a [testing.T]; the suite itself is tested with
// another implementation, see [Check].
type T interface {
	Cleanup(func())
	Context() context.Context
	Errorf(format string, args ...any)
	Failed() bool
	Fatalf(format string, args ...any)
	Helper()
	Logf(format string, args ...any)
	Name() string
	Skipf(format string, args ...any)
	TempDir() string
}

// A Harness tells the suite how to use one driver. Only New is required.
type Harness struct {
	// New opens a register that is empty and that no other call returns. Its
	// name is no prefix of another one's. It is called at least once per case;
	// what it makes is removed with t.Cleanup.
	New func(t T) tenure.Register

	// Open opens one new, empty lock twice, as two processes would: a and b
	// share no client, connection, lock or cache.
	Open func(t T) (a, b tenure.Register)

	// Delete removes the record of a register that New returned, behind the
	// driver's back, as a person with rights on the store could.
	Delete func(t T, r tenure.Register)

	// Corrupt replaces the record of a register that New returned, behind the
	// driver's back, with these bytes. It makes the record if there is none.
	Corrupt func(t T, r tenure.Register, value []byte)

	// Encode and Decode are for stores that cannot hold any bytes but only
	// well-formed records: Encode returns a record that carries the text, and
	// Decode finds it again. The cases about exact bytes are then left out.
	Encode func(text string) []byte
	Decode func(value []byte) (text string, err error)

	// Timeout bounds each request. Default 10 s.
	Timeout time.Duration

	// Prompt is how soon a call must return after its context has ended.
	// Default 2 s, which is for slow test machines, not for slow drivers.
	Prompt time.Duration

	// Histories is how many histories are recorded, each on a new register, by
	// Clients clients that make Requests requests each. Defaults 20, 4 and 40.
	// Lower them for a store that takes few writes a second.
	Histories, Clients, Requests int

	// Seed of the histories; zero means a new one every time. The seed in use
	// is printed.
	Seed uint64

	// Drawings is the folder for the drawing of a history that fails. Default:
	// the system's folder for temporary files.
	Drawings string

	// Parallel lets the cases run beside each other.
	Parallel bool
}

func (h Harness) withDefaults() *Harness {
	if h.Timeout == 0 {
		h.Timeout = 10 * time.Second
	}
	if h.Prompt == 0 {
		h.Prompt = 2 * time.Second
	}
	if h.Histories == 0 {
		h.Histories = 20
	}
	if h.Clients == 0 {
		h.Clients = 4
	}
	if h.Requests == 0 {
		h.Requests = 40
	}
	if h.Seed == 0 {
		h.Seed = uint64(time.Now().UnixNano())
	}
	return &h
}

// A testCase tests one promise.
type testCase struct {
	name string
	// why tells the corruption that the promise prevents, and look what a
	// driver's author should look at. Both are printed when the case fails.
	why, look string
	run       func(t T, h *Harness)
}

// allCases is in the order of the run: a failure early on explains later ones.
func allCases() []testCase {
	var all []testCase
	for _, group := range [][]testCase{
		conditionCases, versionCases, valueCases, contextCases, raceCases,
		siblingCases, optionalCases, historyCases,
	} {
		all = append(all, group...)
	}
	return all
}

// Cases returns the names of all cases, in the order in which they run.
func Cases() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, c := range allCases() {
			if !yield(c.name) {
				return
			}
		}
	}
}

// Run runs every case as a subtest of t. A case that needs something that the
// harness or the register does not have is skipped, and says what.
func Run(t *testing.T, h Harness) {
	t.Helper()
	full := h.withDefaults()
	for _, c := range allCases() {
		t.Run(c.name, func(t *testing.T) {
			if h.Parallel {
				t.Parallel()
			}
			c.check(t, full)
		})
	}
}

// check runs the case, and explains it if it fails.
func (c testCase) check(t T, h *Harness) {
	defer func() {
		if t.Failed() {
			t.Logf("%s\nWhy it matters: %s\nWhat to look at: %s", c.name, c.why, c.look)
		}
	}()
	c.run(t, h)
}

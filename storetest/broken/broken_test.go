// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package broken_test

import (
	"slices"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/storetest"
	"tenure.dev/storetest/broken"
)

// harness takes short limits: everything here happens in memory.
func harness(t *testing.T, s broken.Store) storetest.Harness {
	return storetest.Harness{
		New: func(storetest.T) tenure.Register {
			a, _ := s.Open()
			return a
		},
		Open: func(storetest.T) (a, b tenure.Register) {
			return s.Open()
		},
		Delete:  func(_ storetest.T, r tenure.Register) { r.(broken.Register).Delete() },
		Corrupt: func(_ storetest.T, r tenure.Register, value []byte) { r.(broken.Register).Put(value) },
		Timeout: time.Second,
		Prompt:  broken.Late / 2,
		// Histories that fail are drawn; nobody looks at these.
		Drawings: t.TempDir(),
	}
}

// TestSoundPass proves that the suite asks for no more than the interface does.
func TestSoundPass(t *testing.T) {
	for _, s := range broken.Stores() {
		if len(s.Fails) > 0 {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			h := harness(t, s)
			h.Timeout, h.Prompt = 0, 0 // a loaded machine is no fault of the store
			for _, r := range storetest.Check(t.Context(), h) {
				if r.Failed {
					t.Errorf("%s failed:\n%s", r.Case, r.Log)
				}
				if r.Skipped && s.Name == "sound" {
					t.Errorf("%s was skipped; the sound store has every ability: %s", r.Case, r.Log)
				}
			}
		})
	}
}

// TestBrokenFail proves that the suite finds each fault, in each case that is
// said to find it.
func TestBrokenFail(t *testing.T) {
	for _, s := range broken.Stores() {
		if len(s.Fails) == 0 {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			for _, r := range storetest.Check(t.Context(), harness(t, s), s.Fails...) {
				if !r.Failed {
					t.Errorf("%s passed a store that is broken: %s\nlog: %s", r.Case, s.Trap, r.Log)
				}
				t.Logf("%s", r.Log)
			}
		})
	}
}

// TestEveryCaseFindsSomething fails for a case that no broken store needs: it
// may as well test nothing.
func TestEveryCaseFindsSomething(t *testing.T) {
	found := map[string]bool{
		// What a store does at all: one that does not do it fails everything.
		"write-current": true,
	}
	for _, s := range broken.Stores() {
		for _, name := range s.Fails {
			found[name] = true
		}
	}
	for name := range storetest.Cases() {
		if !found[name] {
			t.Errorf("no broken store fails in %s", name)
		}
	}
	for name := range found {
		if !slices.Contains(slices.Collect(storetest.Cases()), name) {
			t.Errorf("there is no case %q", name)
		}
	}
}

// TestBrokenFailBehindFaults proves that the room which histories leave for
// writes without an answer hides no fault of the store.
func TestBrokenFailBehindFaults(t *testing.T) {
	for _, s := range broken.Stores() {
		if !slices.Contains(s.Fails, "history") {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			h := harness(t, s)
			h.New = func(t storetest.T) tenure.Register {
				a, _ := s.Open()
				f := storetest.NewFaulty(a, storetest.Faults{Before: 0.03, After: 0.05, Late: 0.03, Delay: 100 * time.Microsecond}, 1)
				t.Cleanup(f.Wait)
				return f
			}
			for _, r := range storetest.Check(t.Context(), h, "history") {
				if !r.Failed {
					t.Errorf("%s passed a store that is broken: %s\nlog: %s", r.Case, s.Trap, r.Log)
				}
			}
		})
	}
}

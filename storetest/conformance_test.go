// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
	"tenure.dev/storetest"
)

func memHarness() storetest.Harness {
	return storetest.Harness{
		New: func(storetest.T) tenure.Register { return mem.New() },
		Open: func(t storetest.T) (a, b tenure.Register) {
			// A name opened twice; the test's own, and empty again at the end.
			r := mem.Named(t.Name() + "/" + t.TempDir())
			t.Cleanup(r.Delete)
			return r, r.Sibling("")
		},
		Delete:  func(_ storetest.T, r tenure.Register) { r.(*mem.Register).Delete() },
		Corrupt: func(_ storetest.T, r tenure.Register, value []byte) { r.(*mem.Register).Put(value) },
	}
}

func TestMem(t *testing.T) { storetest.Run(t, memHarness()) }

// TestMemFaulty runs everything over requests that fail in all the ways that
// the interface allows. What must hold, holds all the same.
func TestMemFaulty(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed of the faults: %d", seed)
	faulty := func(t storetest.T, r tenure.Register) *storetest.Faulty {
		seed++
		f := storetest.NewFaulty(r, storetest.Faults{Before: 0.05, After: 0.1, Late: 0.05, Delay: 200 * time.Microsecond}, seed)
		t.Cleanup(f.Wait)
		return f
	}
	inner := memHarness()
	h := inner
	h.New = func(t storetest.T) tenure.Register { return faulty(t, inner.New(t)) }
	h.Open = func(t storetest.T) (a, b tenure.Register) {
		a, b = inner.Open(t)
		return faulty(t, a), faulty(t, b)
	}
	// The hooks wait, for a late create would undo what they do.
	h.Delete = func(t storetest.T, r tenure.Register) {
		f := r.(*storetest.Faulty)
		f.Wait()
		inner.Delete(t, f.Unwrap())
	}
	h.Corrupt = func(t storetest.T, r tenure.Register, value []byte) {
		f := r.(*storetest.Faulty)
		f.Wait()
		inner.Corrupt(t, f.Unwrap(), value)
	}
	storetest.Run(t, h)
}

// TestExplained proves that a failure says why it matters, and where to look.
func TestExplained(t *testing.T) {
	h := memHarness()
	h.New = func(t storetest.T) tenure.Register {
		r := mem.New()
		r.Put([]byte("not empty"))
		return r
	}
	results := storetest.Check(t.Context(), h, "create")
	if len(results) != 1 || !results[0].Failed || results[0].Case != "create" {
		t.Fatalf("create on a register that is not empty: %+v", results)
	}
	for _, part := range []string{"Why it matters: ", "What to look at: "} {
		if !strings.Contains(results[0].Log, part) {
			t.Errorf("the failure lacks %q:\n%s", part, results[0].Log)
		}
	}
}

// TestDrawn proves that a history that fails leaves a drawing.
func TestDrawn(t *testing.T) {
	h := memHarness()
	h.Drawings = t.TempDir()
	h.New = func(t storetest.T) tenure.Register {
		r := mem.New()
		r.Put([]byte("nobody of the history wrote this"))
		return r
	}
	for _, r := range storetest.Check(t.Context(), h, "history") {
		if !r.Failed || !strings.Contains(r.Log, "drawing") || !strings.Contains(r.Log, "seed") {
			t.Errorf("a history that fails: %+v", r)
		}
	}
	drawings, err := os.ReadDir(h.Drawings)
	if err != nil || len(drawings) != 1 {
		t.Errorf("drawings: %v, %v; want one", drawings, err)
	}
}

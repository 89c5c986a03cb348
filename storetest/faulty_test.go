// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
	"tenure.dev/storetest"
)

func TestFaultyWrite(t *testing.T) {
	for _, tc := range []struct {
		name          string
		faults        storetest.Faults
		fails         bool
		atOnce, later string // what the register holds, empty for nothing
	}{
		{"none", storetest.Faults{}, false, "x", "x"},
		{"before", storetest.Faults{Before: 1}, true, "", ""},
		{"after", storetest.Faults{After: 1}, true, "x", "x"},
		{"late", storetest.Faults{Late: 1}, true, "", "x"},
		{"late and delayed", storetest.Faults{Late: 1, Delay: time.Second}, true, "", "x"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				behind := mem.New()
				f := storetest.NewFaulty(behind, tc.faults, 1)
				version, err := f.Write(t.Context(), []byte("x"), "")
				if tc.fails != (err != nil) || tc.fails != errors.Is(err, storetest.ErrInjected) {
					t.Errorf("Write: %v", err)
				}
				if tc.fails == (version != "") {
					t.Errorf("Write returned version %q", version)
				}
				if got := holds(behind); tc.name != "late" && got != tc.atOnce {
					t.Errorf("at once the register holds %q, want %q", got, tc.atOnce)
				}
				f.Wait()
				if got := holds(behind); got != tc.later {
					t.Errorf("later the register holds %q, want %q", got, tc.later)
				}
			})
		})
	}
}

func TestFaultyLateKeepsItsCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := mem.New()
		f := storetest.NewFaulty(behind, storetest.Faults{Late: 1, Delay: time.Minute}, 1)
		if _, err := f.Write(t.Context(), []byte("late"), ""); err == nil {
			t.Fatal("a late write succeeded")
		}
		if _, err := behind.Write(t.Context(), []byte("first"), ""); err != nil {
			t.Fatal(err)
		}
		f.Wait()
		if got := holds(behind); got != "first" {
			t.Errorf("the register holds %q; the late write should have met a conflict", got)
		}
	})
}

func TestFaultyDelayEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := storetest.NewFaulty(mem.New(), storetest.Faults{Delay: 1000 * time.Hour}, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, _, err := f.Read(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Read: %v", err)
		}
		if _, err := f.Write(ctx, nil, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Write: %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("both took %v", took)
		}
	})
}

func TestFaultySeedRepeats(t *testing.T) {
	run := func(seed uint64) (failed string) {
		f := storetest.NewFaulty(mem.New(), storetest.Faults{Before: 0.3, After: 0.3}, seed)
		for range 64 {
			_, _, err := f.Read(t.Context())
			if errors.Is(err, storetest.ErrInjected) {
				failed += "x"
			} else {
				failed += "."
			}
		}
		return failed
	}
	if a, b := run(7), run(7); a != b {
		t.Errorf("one seed, two runs:\n%s\n%s", a, b)
	}
	if a, b := run(7), run(8); a == b {
		t.Errorf("two seeds, one run: %s", a)
	}
}

func holds(r tenure.Register) string {
	value, _, _ := r.Read(context.Background())
	return string(value)
}

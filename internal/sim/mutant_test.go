// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build mutant

package sim

import (
	"flag"
	"testing"
	"time"

	"tenure.dev"
)

var flagMutantFaults = flag.Int("sim.mutantfaults", 20_000, "within how many faults a mutant must be caught")

// TestMutants switches on each mistake that somebody could make in the
// election, and runs until a check finds it.
func TestMutants(t *testing.T) {
	for _, name := range tenure.Mutations() {
		t.Run(name, func(t *testing.T) {
			if !tenure.Mutate(name) {
				t.Fatal("there is no such mutation")
			}
			defer tenure.Mutate("")
			master := *flagMaster
			if master == 0 {
				master = uint64(time.Now().UnixNano())
			}
			hunt(t, name, master, *flagMutantFaults)
		})
	}
	tenure.Mutate("")
}

// hunt runs the same scenarios as TestSim, until one fails. It must pass without
// the mutation.
func hunt(t *testing.T, name string, master uint64, faults int) {
	sum := newStats()
	sum.Scenarios = 0
	for i := uint64(1); sum.Injected() < faults; i++ {
		seed := newRNG(master, i).next()
		r := run(t, NewScenario(seed, *flagProfile))
		sum.Add(&r.Stats)
		if r.Finding == nil {
			continue
		}
		tenure.Mutate("")
		if clean := run(t, NewScenario(seed, *flagProfile)); clean.Finding != nil {
			t.Fatalf("seed %d fails without the mutation too: %s", seed, clean.Finding)
		}
		t.Logf("%s: caught after %d faults in %d scenarios, by %s (profile %s, seed %d)",
			name, sum.Injected(), sum.Scenarios, r.Finding.Check, r.Scenario.Profile, seed)
		return
	}
	t.Errorf("%s: not caught by %d faults (master seed %d)", name, sum.Injected(), master)
}

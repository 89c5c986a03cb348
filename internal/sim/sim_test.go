// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	flagFaults  = flag.Int("sim.faults", 4_000, "how many faults to inject in all")
	flagSeed    = flag.Uint64("sim.seed", 0, "replay the scenario of this seed")
	flagMaster  = flag.Uint64("sim.master", 0, "the seed of the run; 0 for one that the time gives")
	flagProfile = flag.String("sim.profile", "", "only this profile")
	flagKeep    = flag.String("sim.keep", "", "with -sim.seed: only these faults of the schedule, as numbers with commas")
	flagVerbose = flag.Bool("sim.v", false, "print the trace")
)

// workers is how many scenarios run at a time, if go test's -parallel allows it.
const workers = 4

// run executes a scenario in a bubble of its own.
func run(t *testing.T, sc *Scenario) *Report {
	var r *Report
	synctest.Test(t, func(t *testing.T) { r = sc.Run(synctest.Wait) })
	return r
}

func TestSim(t *testing.T) {
	if *flagSeed != 0 {
		replay(t)
		return
	}
	master := *flagMaster
	if master == 0 {
		master = uint64(time.Now().UnixNano())
	}
	t.Logf("master seed %d (repeat with -sim.master=%d)", master, master)
	sum := explore(t, master, *flagFaults, Profiles(), func(t *testing.T, r *Report) { report(t, r) })
	t.Logf("%s", sum)
}

// TestReplay: a seed says all. What happens in a scenario, and when, is the same
// each time, or findings could not be replayed and shrunk.
func TestReplay(t *testing.T) {
	for _, profile := range Profiles() {
		t.Run(profile, func(t *testing.T) {
			for seed := range uint64(6) {
				a, b := run(t, NewScenario(seed+1, profile)), run(t, NewScenario(seed+1, profile))
				if a.Hash != b.Hash || a.Stats.requests != b.Stats.requests {
					t.Errorf("seed %d: another run of the same scenario makes %d requests instead of %d%s", seed+1, b.Stats.requests, a.Stats.requests, firstDiff(a.Trace, b.Trace))
				}
			}
		})
	}
}

// firstDiff returns the first lines in which two traces differ.
func firstDiff(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return ":\n" + a[i] + "\n" + b[i]
		}
	}
	return ""
}

// explore runs scenarios until that many faults are injected, and calls found
// for each that fails.
func explore(t *testing.T, master uint64, faults int, profiles []string, found func(*testing.T, *Report)) *Stats {
	sum := newStats()
	sum.Scenarios = 0
	var mu sync.Mutex
	var next, injected atomic.Int64
	t.Run("scenarios", func(t *testing.T) {
		for range workers {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for injected.Load() < int64(faults) && !t.Failed() {
					i := next.Add(1)
					seed := newRNG(master, uint64(i)).next()
					r := run(t, NewScenario(seed, *flagProfile))
					injected.Add(int64(r.Stats.Injected()))
					mu.Lock()
					sum.Add(&r.Stats)
					mu.Unlock()
					if r.Finding != nil {
						found(t, r)
					}
				}
			})
		}
	})
	return &sum
}

// report prints a finding, with the shortest schedule that still brings it about.
func report(t *testing.T, r *Report) {
	t.Helper()
	sc := r.Scenario
	t.Errorf("FINDING %s\nseed %d, profile %s, %d faults; replay: go test ./internal/sim -run 'TestSim$' -v -sim.seed=%d -sim.profile=%q -sim.v\n%s",
		r.Finding, sc.Seed, sc.Profile, len(sc.Faults), sc.Seed, sc.Profile, strings.Join(r.Trace, "\n"))
	keep := shrink(t, sc, r.Finding.Check)
	var lines, numbers []string
	for _, i := range keep {
		lines = append(lines, fmt.Sprintf("%3d %s", i, &sc.Faults[i]))
		numbers = append(numbers, strconv.Itoa(i))
	}
	t.Logf("shrunk to %d faults:\n%s\nreplay: go test ./internal/sim -run 'TestSim$' -v -sim.seed=%d -sim.profile=%q -sim.keep=%s -sim.v",
		len(keep), strings.Join(lines, "\n"), sc.Seed, sc.Profile, strings.Join(numbers, ","))
}

// with returns the scenario with only those faults.
func with(sc *Scenario, keep []int) *Scenario {
	c := *sc
	c.Faults = nil
	for _, i := range keep {
		c.Faults = append(c.Faults, sc.Faults[i])
	}
	return &c
}

// shrink removes faults, by halves and then one by one, while the same check
// still fails.
func shrink(t *testing.T, sc *Scenario, check string) []int {
	keep := make([]int, len(sc.Faults))
	for i := range keep {
		keep[i] = i
	}
	tries := 300
	fails := func(keep []int) bool {
		tries--
		r := run(t, with(sc, keep))
		return r.Finding != nil && r.Finding.Check == check
	}
	for size := (len(keep) + 1) / 2; size > 0 && tries > 0; size /= 2 {
		for from := 0; from < len(keep) && tries > 0; {
			less := append(append([]int(nil), keep[:from]...), keep[min(from+size, len(keep)):]...)
			if fails(less) {
				keep = less
			} else {
				from += size
			}
		}
	}
	return keep
}

// replay runs one scenario again, with its trace.
func replay(t *testing.T) {
	sc := NewScenario(*flagSeed, *flagProfile)
	if *flagKeep != "" {
		var keep []int
		for _, s := range strings.Split(*flagKeep, ",") {
			i, err := strconv.Atoi(s)
			if err != nil || i < 0 || i >= len(sc.Faults) {
				t.Fatalf("-sim.keep: %q is not one of the %d faults", s, len(sc.Faults))
			}
			keep = append(keep, i)
		}
		sc = with(sc, keep)
	}
	if *flagVerbose {
		sc.Print = func(line string) { fmt.Println(line) }
		for i := range sc.Slots {
			fmt.Printf("%+v\n", sc.Slots[i])
		}
	}
	r := run(t, sc)
	if r.Finding != nil {
		t.Errorf("FINDING %s", r.Finding)
	}
	t.Logf("%s", &r.Stats)
}

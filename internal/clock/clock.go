// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package clock reads this machine's clocks for the elector, and lets the
// simulator put its own in their place. It is internal because a clock is no
// part of Tenure's API.
package clock

import "time"

// A Reading is one look at the clocks of this machine. Readings of different
// machines are never compared.
type Reading struct {
	// Mono is the monotonic clock, since an arbitrary instant. It may stand
	// still while the machine is suspended.
	Mono time.Duration
	// Boot counts suspend too where the system can tell, else it equals Mono.
	Boot time.Duration
	// Wall is the wall clock in nanoseconds since 1970. It may jump.
	Wall int64
}

// AtMost returns the least time that can have passed from earlier to r: what a
// wait counts.
func (r Reading) AtMost(earlier Reading) time.Duration { return r.Mono - earlier.Mono }

// AtLeast returns the most time that can have passed from earlier to r: what a
// term counts.
func (r Reading) AtLeast(earlier Reading) time.Duration {
	return max(r.Mono-earlier.Mono, r.Boot-earlier.Boot)
}

// A Clock is a machine's clocks. Its methods are safe for concurrent use.
type Clock interface {
	// Read reads all three clocks.
	Read() Reading
	// Quick reads the monotonic and the wall clock, without allocating.
	Quick() (mono time.Duration, wall int64)
	// Time returns the time at which the monotonic clock reads mono.
	Time(mono time.Duration) time.Time
	// Timer returns a channel that receives once after d, and a function that
	// gives it up.
	Timer(d time.Duration) (<-chan time.Time, func())
}

// Substitutes are what the simulator puts in the place of real parts.
type Substitutes struct {
	Clock Clock
	// Seed makes nonces and jitter repeatable.
	Seed uint64
}

// Substitute puts s into an elector's options, given as *tenure.Options.
// Package tenure sets it.
var Substitute func(options any, s Substitutes)

// System returns the clocks of this machine.
func System() Clock { return system{base: time.Now()} }

type system struct{ base time.Time }

func (s system) Read() Reading {
	now := time.Now()
	mono := now.Sub(s.base)
	return Reading{Mono: mono, Boot: boottime(mono), Wall: now.UnixNano()}
}

func (s system) Quick() (time.Duration, int64) {
	now := time.Now()
	return now.Sub(s.base), now.UnixNano()
}

func (s system) Time(mono time.Duration) time.Time { return s.base.Add(mono) }

func (s system) Timer(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

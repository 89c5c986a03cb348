// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"tenure.dev/internal/clock"
)

// clockBase is what a machine's monotonic clock counts from, as a time.
var clockBase = time.Unix(0, 0)

// wallBase is the true wall clock at the start of a scenario: after the date
// from which the elector believes its own clock.
var wallBase = time.Date(2027, time.March, 1, 12, 0, 0, 0, time.UTC).UnixNano()

// machine has the clocks of one candidate's machine. True time is the bubble's,
// since the start of the scenario.
type machine struct {
	start time.Time
	seg   atomic.Pointer[segment]
}

// segment is a stretch of true time in which the clocks run evenly. The wall
// clock runs at the true rate; it is set wrong, and stepped.
type segment struct {
	before     *segment // the one that it ended
	from       time.Duration
	mono, boot time.Duration
	wall       int64
	rate       float64
	suspended  bool // the monotonic clock stands still
}

func newMachine(start time.Time, rate float64, uptime, wallOffset time.Duration) *machine {
	m := &machine{start: start}
	m.seg.Store(&segment{mono: uptime, boot: uptime + time.Hour, wall: wallBase + int64(wallOffset), rate: rate})
	return m
}

// look returns the readings at a true time, without blocking.
func (m *machine) look(t time.Duration) clock.Reading {
	s := m.seg.Load()
	d := time.Duration(float64(t-s.from) * s.rate)
	r := clock.Reading{Mono: s.mono + d, Boot: s.boot + d, Wall: s.wall + int64(t-s.from)}
	if s.suspended {
		r.Mono = s.mono
	}
	return r
}

func (m *machine) now() clock.Reading { return m.look(time.Since(m.start)) }

// trueAt returns the true time at which the monotonic clock read mono, or will
// if it goes on as it does.
func (m *machine) trueAt(mono time.Duration) time.Duration {
	s := m.seg.Load()
	for mono < s.mono && s.before != nil {
		s = s.before
	}
	return s.from + time.Duration(math.Ceil(float64(mono-s.mono)/s.rate))
}

// trueFor returns how long, in true time, d lasts on this machine, rounded so
// that the clock has advanced by d then.
func (m *machine) trueFor(d time.Duration) time.Duration {
	return time.Duration(math.Ceil(float64(d)/m.seg.Load().rate)) + 1
}

// change begins a new segment.
func (m *machine) change(f func(s *segment)) {
	now := time.Since(m.start)
	r := m.look(now)
	old := m.seg.Load()
	s := &segment{before: old, from: now, mono: r.Mono, boot: r.Boot, wall: r.Wall, rate: old.rate, suspended: old.suspended}
	f(s)
	m.seg.Store(s)
}

// processClock is the clock that an elector is given: the machine's, but a
// frozen process does not get to see it.
type processClock struct{ p *process }

func (c processClock) Read() clock.Reading {
	c.p.gate(rankLoop)
	return c.p.slot.machine.now()
}

func (c processClock) Quick() (time.Duration, int64) {
	if !c.p.peek.Load() {
		c.p.gate(rankLoop)
	}
	r := c.p.slot.machine.now()
	return r.Mono, r.Wall
}

func (c processClock) Time(mono time.Duration) time.Time { return clockBase.Add(mono) }

// Timer fires in a frozen process too; the process meets the gate when it next
// looks at the clock. So does one that has crashed, at once: else a loop that
// waits for nothing soon would stay as a ghost in its slot.
func (c processClock) Timer(d time.Duration) (<-chan time.Time, func()) {
	fired := make(chan time.Time, 1)
	fire := func() {
		select {
		case fired <- time.Now():
		default:
		}
	}
	t := time.AfterFunc(c.p.slot.machine.trueFor(d), fire)
	alive := context.AfterFunc(c.p.life, fire)
	return fired, func() { t.Stop(); alive() }
}

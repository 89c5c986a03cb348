// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// A Fault is one entry of a schedule. Whom it hits and with what is decided
// when it is due, from N and from who leads then.
type Fault struct {
	At   time.Duration
	Kind Kind
	Who  role
	Dur  time.Duration
	N    uint64
}

func (f *Fault) String() string {
	return fmt.Sprintf("%10.6fs %-16s %-8s for %-12v n=%d", f.At.Seconds(), f.Kind, f.Who, f.Dur, f.N)
}

// A Kind of faults.
type Kind string

// The kinds of faults.
const (
	Cut           Kind = "cut"         // a candidate cannot reach the store
	Outage        Kind = "outage"      // nobody can
	Noise         Kind = "noise"       // requests of a candidate are lost, late, slow, failed
	NoiseAll      Kind = "noiseAll"    // everybody's
	Freeze        Kind = "freeze"      // SIGSTOP
	Suspend       Kind = "suspend"     // the machine sleeps
	FreezeTaker   Kind = "freezeTaker" // whoever takes the lock next, at once
	Crash         Kind = "crash"
	Stop          Kind = "stop" // Run's context ends
	Twin          Kind = "twin" // a second process of the same identity
	WallStep      Kind = "wallStep"
	StoreStep     Kind = "storeStep" // the store's clock is stepped
	Blackout      Kind = "blackout"  // everybody crashes, and starts again much later
	RateChange    Kind = "rateChange"
	Update        Kind = "update" // of D, R and P
	Delete        Kind = "delete"
	DeleteCreated Kind = "deleteCreated" // delete what is created next, soon after
	Empty         Kind = "empty"         // ``, {} and null
	Truncate      Kind = "truncate"
	Garble        Kind = "garble"
	Restore       Kind = "restore"      // an earlier state
	RestoreOwn    Kind = "restoreOwn"   // the last record of a candidate
	OlderClient   Kind = "olderClient"  // rewrites the record with the fields that it knows
	OlderKeeps    Kind = "olderKeeps"   // takes it in its own name, and keeps unknown fields
	Prefer        Kind = "prefer"       // an order to hand over
	PauseOrder    Kind = "pauseOrder"   // an order that nobody takes the lock
	NoteOrder     Kind = "noteOrder"    // a change that orders nothing
	Stopper       Kind = "stopper"      // a forced release
	ForeignOnce   Kind = "foreignOnce"  // a stock elector's record, once
	OversizeValue Kind = "oversizeOnce" // larger than a record may be
)

// role says whom a fault hits.
type role string

const (
	anyone  role = "any"
	leader  role = "leader"
	standby role = "standby"
	chosen  role = "chosen" // whom an earlier fault of the schedule has chosen
	nobody  role = "-"
)

// who resolves a role; it may return nil.
func (w *world) who(f *Fault) *slot {
	var from []*slot
	lead := w.leader()
	for _, s := range w.slots {
		is := lead != nil && lead.slot == s
		switch {
		case s.twin:
		case f.Who == leader && is, f.Who == standby && !is, f.Who == anyone:
			from = append(from, s)
		}
	}
	switch {
	case f.Who == nobody:
		return nil
	case f.Who == chosen:
		return w.saved
	case len(from) == 0 && f.Who == leader: // the one whom the record names
		if rec := w.last().either(); rec != nil {
			for _, s := range w.slots {
				if s.identity == rec.HolderIdentity && !s.twin {
					from = append(from, s)
				}
			}
		}
	}
	if len(from) == 0 {
		return nil
	}
	w.saved = from[f.N%uint64(len(from))]
	return w.saved
}

// apply makes a fault happen. It is called under world.mu, between two steps of
// everybody.
func (w *world) apply(f *Fault) {
	w.stats.Faults[string(f.Kind)]++
	s := w.who(f)
	if s == nil && f.Who != nobody {
		return
	}
	name := "-"
	if s != nil {
		name = s.identity
	}
	w.note("FAULT %s %s for %v", f.Kind, name, f.Dur)
	now := w.now()
	switch f.Kind {
	case Cut:
		s.cutUntil = max(s.cutUntil, now+f.Dur)
	case Outage:
		w.outage = max(w.outage, now+f.Dur)
	case Noise:
		s.noise = append(s.noise, newNoise(now+f.Dur, f.N))
	case NoiseAll:
		w.noise = append(w.noise, newNoise(now+f.Dur, f.N))
	case Freeze, Suspend:
		w.freeze(s, f.Kind, f.Dur)
	case FreezeTaker:
		w.armedFreeze = f.Dur
	case Crash:
		w.crash(s)
		w.backLater(s, f.Dur)
	case Stop:
		w.stop(s)
		w.backLater(s, f.Dur)
	case Twin:
		w.startTwin(s, f.Dur)
	case WallStep:
		s.machine.change(func(g *segment) { g.wall += int64(wallStep(f.N)) })
	case StoreStep:
		w.storeStep += wallStep(f.N)
	case Blackout:
		for i, s := range w.slots {
			w.crash(s)
			if !s.twin {
				w.backLater(s, f.Dur+time.Duration(i)*f.Dur/50)
			}
		}
	case RateChange:
		if s.stock == nil {
			s.machine.change(func(g *segment) { g.rate = rateOf(w.sc.Drift, f.N) })
		}
	case Update:
		w.update(s, f.N)
	default:
		w.applyToRecord(f, s)
	}
}

func (w *world) freeze(s *slot, kind Kind, d time.Duration) {
	p := s.p
	if p == nil || p.ended || p.stock != nil || !p.freeze() {
		return
	}
	if kind == Suspend {
		s.suspended = true
		s.machine.change(func(g *segment) { g.suspended = true })
	}
	time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if s.p == p && p.isFrozen() {
			w.thaw(s)
		}
	})
}

func (w *world) thaw(s *slot) {
	w.note("%s goes on", s.p.name())
	s.machine.change(func(g *segment) { g.suspended = false })
	s.p.thaw()
}

// backLater starts a candidate again, in a new process.
func (w *world) backLater(s *slot, d time.Duration) {
	time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.ending && (!w.quiet || s.n != w.sc.DownAtEnd) {
			s.up = true
			w.startSlot(s)
		}
	})
}

func (w *world) startTwin(s *slot, d time.Duration) {
	for _, t := range w.slots {
		if t.twin && t.identity == s.identity && (t.p == nil || t.p.ended) {
			w.startSlot(t)
			time.AfterFunc(d, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.crash(t)
			})
		}
	}
}

// wallStep is by how much a wall clock is stepped: seconds to hours, both ways.
func wallStep(n uint64) time.Duration {
	r := newRNG(n)
	d := pick(r, []time.Duration{time.Second, 5 * time.Second, 20 * time.Second, 10 * time.Minute, 3 * time.Hour})
	if r.chance(0.5) {
		d = -d
	}
	return d + r.dur(0, time.Second)
}

// update changes D, R and P of a running candidate, from its next term on.
func (w *world) update(s *slot, n uint64) {
	p := s.p
	if p == nil || p.ended || p.crashed || p.elector == nil || p.isFrozen() || s.twin {
		return
	}
	r := newRNG(n)
	d := w.sc.D
	if ds := w.sc.ds(); w.sc.MixedD && n%2 == 0 {
		d = ds[0]
	} else if w.sc.MixedD {
		d = pick(r, ds)
	}
	o := durationsFor(r, d, w.sc.Drift, w.sc.Flavour)
	s.opts.D, s.opts.R, s.opts.P = o.D, o.R, o.P
	e := p.elector
	w.note("%s: D=%v R=%v P=%v from the next term on", p.name(), o.D, o.R, o.P)
	go func() { // it is quick, but it needs the loop to run
		if err := e.Update(o.D, o.R, o.P); err != nil {
			panic("sim: " + err.Error())
		}
	}()
}

// sorted returns the keys of a map in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

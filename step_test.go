// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"reflect"
	"testing"
	"time"

	"tenure.dev/internal/clock"
)

// walk feeds events to step, as the loop does.
type walk struct {
	t    *testing.T
	s    *state
	now  clock.Reading
	n    uint64
	acts []action
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	o := Options{Identity: "me", ClusterUID: "u", Host: "h", Register: nothing{}}
	if err := o.fill(); err != nil {
		t.Fatal(err)
	}
	set, err := o.check()
	if err != nil {
		t.Fatal(err)
	}
	return &walk{t: t, s: &state{set: set, next: set.durations, longest: set.d},
		now: clock.Reading{Wall: builtAfter.Add(time.Hour).UnixNano()}}
}

// nothing is a register that is not asked.
type nothing struct{ Register }

func (w *walk) after(d time.Duration) *walk {
	w.now.Mono += d
	w.now.Boot += d
	w.now.Wall += int64(d)
	return w
}

func (w *walk) send(ev event) *walk {
	w.n++
	ev.now, ev.nonce = w.now, [2]uint64{w.n, 7}
	w.s, w.acts, _ = step(w.s, &ev)
	return w
}

// answer answers the request in flight.
func (w *walk) answer(ev event) *walk {
	ev.kind, ev.op = evAnswer, w.s.op.id
	return w.send(ev)
}

func (w *walk) has(kind actionKind) *action {
	for i := range w.acts {
		if w.acts[i].kind == kind {
			return &w.acts[i]
		}
	}
	return nil
}

func (w *walk) need(kind actionKind) *action {
	w.t.Helper()
	a := w.has(kind)
	if a == nil {
		w.t.Fatalf("no action %d among %+v", kind, w.acts)
	}
	return a
}

const freeRecord = `{"holderIdentity":"","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":"n"}`

// acquiring brings the candidate to where its acquisition is on its way.
func acquiring(t *testing.T) *walk {
	w := newWalk(t).send(event{kind: evTick})
	w.need(actRead)
	w.answer(event{parsed: parse([]byte(freeRecord), nil), version: "v1"})
	w.need(actWrite)
	return w
}

// TestTermBeginsOnlyWithRLeft: the answer to an acquisition may come late, for
// instance because the process was stopped.
func TestTermBeginsOnlyWithRLeft(t *testing.T) {
	// D(1-ρ) - 50ms - R = 3.35 s.
	w := acquiring(t)
	w.after(3350 * time.Millisecond).answer(event{version: "v2"})
	w.need(actBegin)

	w = acquiring(t)
	w.after(3351 * time.Millisecond).answer(event{version: "v2"})
	if w.has(actBegin) != nil {
		t.Error("a term began with less than R left")
	}
	if a := w.need(actWrite); a.version != "v2" {
		t.Errorf("it tried again on version %q, want v2", a.version)
	}
	for _, v := range []Version{"v3", "v4"} { // then it releases, for others to try
		w.after(4 * time.Second).answer(event{version: v})
	}
	rec, err := ParseRecord(w.need(actWrite).value)
	if err != nil || !rec.Released() {
		t.Errorf("after three late answers it wrote %+v, want a release (%v)", rec, err)
	}
}

// TestSuspendedAcquisitionBeginsNoTerm: where the monotonic clock stands
// still while the machine sleeps, boot time tells.
func TestSuspendedAcquisitionBeginsNoTerm(t *testing.T) {
	w := acquiring(t)
	w.now.Boot += time.Hour
	w.now.Wall += int64(time.Hour)
	w.answer(event{version: "v2"})
	if w.has(actBegin) != nil {
		t.Error("a term began after an hour of suspend")
	}
}

func TestSuspendedLeaderStops(t *testing.T) {
	w := acquiring(t)
	w.answer(event{version: "v2"})
	w.need(actBegin)
	w.now.Boot += time.Hour
	w.send(event{kind: evTick})
	w.need(actStop)
	w.need(actEnd)
}

func TestSuspendedStandbyWaitsOn(t *testing.T) {
	w := newWalk(t).send(event{kind: evTick})
	held := `{"holderIdentity":"x","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":"n"}`
	w.answer(event{parsed: parse([]byte(held), nil), version: "v1"})
	w.now.Boot += time.Hour
	w.now.Wall += int64(time.Hour)
	w.after(3 * time.Second).send(event{kind: evTick})
	if a := w.has(actWrite); a != nil {
		t.Error("the time of a suspend was counted as waited")
	}
}

// TestStepChangesNothingItWasGiven: the same state and event give the same
// answer again, so a run can be replayed.
func TestStepChangesNothingItWasGiven(t *testing.T) {
	w := acquiring(t)
	ev := event{kind: evAnswer, op: w.s.op.id, version: "v2", now: w.now, nonce: [2]uint64{9, 9}}
	given := *w.s
	s1, a1, t1 := step(w.s, &ev)
	s2, a2, t2 := step(w.s, &ev)
	if !reflect.DeepEqual(given, *w.s) {
		t.Error("the state that was given has changed")
	}
	if !reflect.DeepEqual(s1, s2) || !reflect.DeepEqual(a1, a2) || t1 != t2 {
		t.Error("two steps from one state differ")
	}
}

func TestTermValidNeedsAllClocks(t *testing.T) {
	c := &stillClock{}
	term := newTerm(t.Context(), c, 1)
	term.extend(clock.Reading{}, 9*time.Second, 10*time.Second)
	check := func(mono, wall time.Duration, want bool) {
		t.Helper()
		c.mono, c.wall = mono, int64(wall)
		if term.Valid() != want {
			t.Errorf("at %v monotonic and %v wall clock Valid is %v", mono, wall, !want)
		}
	}
	check(9*time.Second-1, 0, true)
	check(9*time.Second, 0, false)
	check(time.Second, 10*time.Second-1, true)
	check(time.Second, 10*time.Second, false) // suspended, or set forward
	check(time.Second, -time.Hour, true)
	term.end(ErrTermOver)
	check(time.Second, 0, false)
}

type stillClock struct {
	clock.Clock
	mono time.Duration
	wall int64
}

func (c *stillClock) Quick() (time.Duration, int64) { return c.mono, c.wall }

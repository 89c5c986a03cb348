// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tenure.dev"
)

// applyToRecord makes a fault that changes the record.
func (w *world) applyToRecord(f *Fault, s *slot) {
	m := w.last()
	r := newRNG(f.N, 1)
	switch f.Kind {
	case Delete:
		if m.value != nil {
			w.injure(nil, "deleted")
		}
	case DeleteCreated:
		w.armed = 1 + r.n(3)
	case Empty:
		w.injure(pick(r, [][]byte{{}, []byte("{}"), []byte("null"), []byte("{}\n"), []byte(" ")}), "emptied")
	case Truncate:
		if n := len(m.value); n > 1 {
			w.injure(slices.Clone(m.value[:1+r.n(n-1)]), "truncated")
		}
	case Garble:
		w.garble(r)
	case OversizeValue:
		w.injure([]byte(`{"note":"`+strings.Repeat("x", tenure.MaxRecordSize)+`"}`), "overgrown")
	case Restore:
		w.restore(w.history[max(0, len(w.history)-2-r.n(40))])
	case RestoreOwn:
		for i := len(w.history) - 1; i >= 0; i-- {
			if old := w.history[i]; old.held() && s != nil && old.rec.HolderIdentity == s.identity {
				w.restore(old)
				return
			}
		}
	case OlderClient:
		w.older(r)
	case OlderKeeps:
		if fields := object(m.value); m.rec != nil && fields != nil {
			set(fields, "holderIdentity", "older")
			set(fields, "renewTime", w.storeTime().UTC().Format(time.RFC3339))
			set(fields, "leaseTransitions", number(fields, "leaseTransitions")+1)
			w.injure(marshal(fields), "taken by an older client")
		}
	case ForeignOnce:
		fields := make(map[string]json.RawMessage)
		set(fields, "holderIdentity", "foreign")
		set(fields, "renewTime", w.storeTime().UTC().Format(time.RFC3339))
		set(fields, "leaseDurationSeconds", int64(2+r.n(int(w.sc.MaxD/time.Second)-1)))
		set(fields, "leaseTransitions", w.maxEpoch%1000)
		w.injure(marshal(fields), "replaced by a stock elector's")
	default:
		w.applyOrder(f, r)
	}
}

// older is a client that knows three fields.
func (w *world) older(r *rng) {
	m := w.last()
	old := m.either()
	if old == nil {
		return
	}
	fields := make(map[string]json.RawMessage)
	holder := old.HolderIdentity
	if r.chance(0.6) {
		holder = pick(r, []string{"older", ""})
	}
	set(fields, "holderIdentity", holder)
	set(fields, "renewTime", w.storeTime().UTC().Format(time.RFC3339))
	set(fields, "leaseTransitions", old.LeaseTransitions)
	w.injure(marshal(fields), "rewritten by an older client")
}

// garble changes bytes; what it leaves does not parse.
func (w *world) garble(r *rng) {
	value := slices.Clone(w.last().value)
	if len(value) == 0 {
		value = []byte("{")
	}
	switch r.n(4) {
	case 0:
		value = append(value, value...)
	case 1:
		value[r.n(len(value))] = 0xff
	case 2:
		value = []byte("\ufeff" + string(value))
	default:
		value = []byte(pick(r, []string{"[]", `"x"`, "0", `{"holderIdentity":""}`, `{"holderIdentity":null,"epoch":1,"nonce":"n","leaseDurationSeconds":5}`,
			`{"holderIdentity":"","epoch":0,"nonce":"n","leaseDurationSeconds":5}`, `{"holderIdentity":"","epoch":3,"nonce":"","leaseDurationSeconds":5}`,
			`{"holderidentity":"x","epoch":-1,"nonce":"n"}`, `{"holderIdentity":"","epoch":9223372036854775807,"nonce":"n","leaseDurationSeconds":"5"}`}))
	}
	w.injure(value, "garbled")
}

// restore puts an earlier state back, as a restore of a backup or of an object
// version does; it gets a new version.
//
// Not claimed: I1 for one D after a *released* record was put back. Nobody can
// tell it from a release, and the holder of that moment learns of it only with
// its next renewal. Nor for one D after a *held* record was put back with an
// order on it, or was given one then: a candidate that has seen it without that
// order, and nothing of what came between, takes it for an order on what it is
// waiting out. Nor when it names a shorter D than a living leader may have: a
// process that has seen neither waits by that. Every other held record that is
// put back is waited out anew, and I1 is checked as always.
func (w *world) restore(old *moment) {
	if old.rec != nil && (old.rec.Released() || old.rec.Orders > 0 || old.rec.LeaseDuration < w.longest) {
		w.disclaim()
	}
	w.injure(old.value, fmt.Sprintf("restored to what it was at %.6fs", old.at.Seconds()))
	w.last().restored = true
}

// disclaim: I1 is not claimed for one D from now.
func (w *world) disclaim() {
	w.unclaimed = max(w.unclaimed, w.now()+time.Duration(float64(w.longest)*(1+w.sc.Drift)))
}

// deleteCreated deletes what a candidate has just created, when that is armed.
func (w *world) deleteCreated(prev, next *moment) {
	if prev.value != nil || w.armed == 0 {
		return
	}
	w.armed--
	r := newRNG(w.sc.Seed, 9, w.versions)
	time.AfterFunc(r.dur(time.Millisecond, w.sc.D/20), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.quiet && w.last().value != nil {
			w.injure(nil, "deleted right after it was created")
		}
	})
}

// freezeTaker freezes whoever has just taken the lock, when that is armed: the
// answer is on its way.
func (w *world) freezeTaker(p *process, prev, next *moment) {
	if w.armedFreeze == 0 || !next.held() || prev.either() != nil && prev.either().Epoch == next.rec.Epoch {
		return
	}
	d := w.armedFreeze
	w.armedFreeze = 0
	r := newRNG(w.sc.Seed, 11, w.versions)
	time.AfterFunc(r.dur(time.Microsecond, 2*time.Millisecond), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.quiet && p.slot.p == p {
			w.note("%s is frozen for %v", p.name(), d)
			w.freeze(p.slot, Freeze, d)
		}
	})
}

// applyOrder changes what anybody may change, conditional on the version: the
// order is read and written at one instant here, which is the case in which it
// is not refused.
func (w *world) applyOrder(f *Fault, r *rng) {
	m := w.last()
	fields := object(m.value)
	if m.rec == nil || fields == nil {
		return
	}
	switch f.Kind {
	case NoteOrder:
		w.orderNote(f.N)
		return
	case Prefer:
		to := pick(r, []string{tenure.AnyHolder, "unknown", w.slots[r.n(len(w.slots))].identity, w.slots[r.n(len(w.slots))].identity, ""})
		set(fields, "preferredHolder", to)
		w.lastHandover = w.now()
	case PauseOrder:
		now := w.storeTime().UTC()
		set(fields, "paused", tenure.Pause{By: "sim", Why: "test", At: now, Until: now.Add(r.dur(time.Second, 4*w.sc.D))})
	case Stopper:
		w.forceRelease(m, fields, r)
		return
	}
	w.ordered(m, fields, string(f.Kind))
}

// ordered writes the record of m with other fields, as an order.
func (w *world) ordered(m *moment, fields map[string]json.RawMessage, what string) {
	if m.restored {
		w.disclaim()
	}
	set(fields, "orders", number(fields, "orders")+1)
	next := w.putLock(marshal(fields), m.owner, m.injured)
	next.restored = m.restored
	w.note("store: order %s: %s", what, short(next.value))
}

// orderNote changes a field that nobody knows.
func (w *world) orderNote(n uint64) {
	m := w.last()
	fields := object(m.value)
	if m.rec == nil || fields == nil {
		return
	}
	fields = maps.Clone(fields)
	set(fields, "note", n)
	w.ordered(m, fields, "note")
}

// orderResume ends a pause.
func (w *world) orderResume() {
	m := w.last()
	fields := object(m.value)
	if m.rec == nil || m.rec.Paused == nil || fields == nil {
		return
	}
	delete(fields, "paused")
	w.ordered(m, fields, "resume")
}

// forceRelease puts a stopper over a held record, waits it out as everybody
// does, and empties it.
func (w *world) forceRelease(m *moment, fields map[string]json.RawMessage, r *rng) {
	if !m.held() {
		return
	}
	nonce := func() string { return hex.EncodeToString(fmt.Appendf(nil, "%016x", r.next())[:16]) }
	set(fields, "holderIdentity", "release/sim")
	set(fields, "nonce", nonce())
	set(fields, "epoch", m.rec.Epoch+1)
	set(fields, "clusterUID", "sim")
	w.ordered(&moment{}, fields, "stopper")
	version := w.last().version
	if r.chance(0.3) {
		return // the command dies half way
	}
	wait := m.rec.LeaseDuration*3/2 + 50*time.Millisecond + r.dur(0, time.Second)
	// To who takes the stopper for a stranger's record, the wait begins again.
	w.lastArrival = max(w.lastArrival, w.now()+wait)
	time.AfterFunc(wait, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.last().version != version {
			return
		}
		set(fields, "holderIdentity", "")
		set(fields, "nonce", nonce())
		w.ordered(&moment{}, fields, "stopper, emptied")
	})
}

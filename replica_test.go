// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"fmt"
	"testing"
	"time"
)

// siblingRecord is a term of this identity and cluster, renewed by another
// process.
func siblingRecord(nonce string) *parsed {
	return parse(fmt.Appendf(nil, `{"holderIdentity":"me","clusterUID":"u","candidate":"other","leaseDurationSeconds":10,`+
		`"leaseTransitions":3,"epoch":41,"nonce":%q,"lineage":"l"}`, nonce), nil)
}

// continuing brings a replica to where its continuation is on its way.
func continuing(t *testing.T) *walk {
	w := newWalk(t)
	w.s.set.replicas = true
	w.send(event{kind: evTick, may: MustWait})
	w.answer(event{parsed: siblingRecord("n1"), version: "v1", may: MustWait})
	if w.has(actWrite) != nil {
		t.Fatal("a replica that must wait wrote")
	}
	w.after(2 * time.Second).send(event{kind: evTick, may: MayContinue})
	w.need(actWrite)
	return w
}

// TestReplicaContinues: the same epoch, lineage, transitions and D, another
// nonce, and a term from its own write on.
func TestReplicaContinues(t *testing.T) {
	w := continuing(t)
	a := w.need(actWrite)
	rec, err := ParseRecord(a.value)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Epoch != 41 || rec.LeaseTransitions != 3 || rec.Lineage != "l" || rec.Nonce == "n1" || rec.Candidate != "me" || a.version != "v1" {
		t.Errorf("it wrote %+v at version %q", rec, a.version)
	}
	if w.has(actBegin) != nil {
		t.Error("the term began before the write was answered")
	}
	w.answer(event{version: "v2", may: MayContinue})
	if b := w.need(actBegin); b.att.rec.Epoch != 41 || b.att.nonce != rec.Nonce {
		t.Errorf("the term counts from %+v", b.att)
	}
}

// TestReplicaMustWait: however long the record stands still.
func TestReplicaMustWait(t *testing.T) {
	w := newWalk(t).send(event{kind: evTick, may: MustWait})
	w.answer(event{parsed: siblingRecord("n1"), version: "v1", may: MustWait})
	for range 60 {
		w.after(time.Second).send(event{kind: evTick, may: MustWait})
		if w.has(actWrite) != nil {
			t.Fatal("it tried to take the lock")
		}
		if w.has(actRead) != nil {
			w.answer(event{version: "v1", may: MustWait})
		}
	}
	// Nobody's replica any more: the wait is over long since.
	w.after(2 * time.Second).send(event{kind: evTick})
	rec, err := ParseRecord(w.need(actWrite).value)
	if err != nil || rec.Epoch <= 41 {
		t.Errorf("it wrote %+v, want an acquisition above 41 (%v)", rec, err)
	}
}

// TestReplicaContinuesOnlyItsOwn: another identity, another cluster of the same
// identity, a released record and a stopper are waited out or taken as ever.
func TestReplicaContinuesOnlyItsOwn(t *testing.T) {
	for name, value := range map[string]string{
		"another holder":   `{"holderIdentity":"you","clusterUID":"u","leaseDurationSeconds":10,"leaseTransitions":3,"epoch":41,"nonce":"n","lineage":"l"}`,
		"another cluster":  `{"holderIdentity":"me","clusterUID":"v","leaseDurationSeconds":10,"leaseTransitions":3,"epoch":41,"nonce":"n","lineage":"l"}`,
		"a stopper":        `{"holderIdentity":"release/me","clusterUID":"u","leaseDurationSeconds":10,"leaseTransitions":3,"epoch":41,"nonce":"n","lineage":"l"}`,
		"an unreadable":    `{"holderIdentity":"me","clusterUID":"u","leaseDurationSeconds":10,"epoch":0}`,
		"nothing readable": `{`,
	} {
		w := newWalk(t).send(event{kind: evTick, may: MayContinue})
		w.answer(event{parsed: parse([]byte(value), nil), version: "v1", may: MayContinue})
		w.after(3 * time.Second).send(event{kind: evTick, may: MayContinue})
		if w.has(actWrite) != nil {
			t.Errorf("%s: it wrote 3 s after it had first seen the record", name)
		}
	}
}

// TestReplicaLate: a continuation that is answered too late begins no term, is
// not released, since work may go on under it, and is not a hot loop.
func TestReplicaLate(t *testing.T) {
	w := continuing(t)
	w.after(3400 * time.Millisecond).answer(event{version: "v2", may: MayContinue}) // D(1-ρ) - 50ms - R = 3.35 s
	if w.has(actBegin) != nil || w.has(actWrite) != nil || w.has(actRead) != nil {
		t.Fatalf("after a late answer: %+v", w.acts)
	}
	w.after(time.Second).send(event{kind: evTick, may: MayContinue})
	w.need(actRead)
	w.answer(event{version: "v2", may: MayContinue})
	w.need(actWrite) // by its own nonce or the replica's term: the same epoch
	w.answer(event{version: "v3", may: MayContinue})
	if b := w.need(actBegin); b.att.rec.Epoch != 41 {
		t.Errorf("epoch %d", b.att.rec.Epoch)
	}
}

// TestReplicaStopsInMidContinuation: the lock is not released.
func TestReplicaStopsInMidContinuation(t *testing.T) {
	w := continuing(t)
	w.send(event{kind: evStop, may: MayContinue})
	if w.has(actWrite) != nil || w.s.phase != done {
		t.Errorf("phase %d, actions %+v", w.s.phase, w.acts)
	}
}

// TestReplicaConflict: somebody else was quicker; the record is read again and
// judged anew.
func TestReplicaConflict(t *testing.T) {
	w := continuing(t)
	w.answer(event{err: ErrConflict, may: MayContinue})
	w.need(actRead)
	w.answer(event{parsed: parse([]byte(`{"holderIdentity":"you","clusterUID":"w","leaseDurationSeconds":10,"leaseTransitions":4,"epoch":42,"nonce":"m","lineage":"l"}`), nil),
		version: "v2", may: MayContinue})
	if w.has(actWrite) != nil || w.has(actBegin) != nil {
		t.Errorf("it acted on another's term: %+v", w.acts)
	}
}

// TestReplicaKeepsDuration: the term's D stays what it was, also when this
// process was configured with another.
func TestReplicaKeepsDuration(t *testing.T) {
	w := continuing(t)
	w.s.next = durations{d: 20 * time.Second, r: 13 * time.Second, p: 4 * time.Second}
	w.answer(event{err: ErrConflict, may: MayContinue})
	w.answer(event{parsed: siblingRecord("n2"), version: "v2", may: MayContinue})
	w.answer(event{version: "v3", may: MayContinue})
	b := w.need(actBegin)
	if d := b.att.rec.LeaseDuration; d != 10*time.Second || w.s.set.r != 6500*time.Millisecond {
		t.Errorf("D = %v, R = %v; want the term's 10s and 6.5s", d, w.s.set.r)
	}
}

// TestSeen: what was known before this process began holds as if it had seen it.
func TestSeen(t *testing.T) {
	w := newWalk(t)
	w.s.highest, w.s.lineage = 1<<40, "l"
	w.send(event{kind: evTick})
	w.answer(event{parsed: siblingRecord("n1"), version: "v1"}) // epoch 41: restored
	if w.s.sight.kind != unreadable {
		t.Errorf("a record below the highest epoch seen is of kind %d", w.s.sight.kind)
	}
	w.after(15*time.Second + 100*time.Millisecond).send(event{kind: evTick})
	rec, err := ParseRecord(w.need(actWrite).value)
	if err != nil || rec.Epoch != 1<<40+1 || rec.Lineage != "l" {
		t.Errorf("it wrote %+v (%v)", rec, err)
	}
}

// TestReplicaLostContinuation: a continuation that was applied, and whose answer
// was lost, is no acquisition: the replica that was stopped may still believe in
// its term, so no new one begins. (Found by the simulator.)
func TestReplicaLostContinuation(t *testing.T) {
	w := continuing(t)
	value := w.need(actWrite).value
	w.answer(event{err: ErrConflict, may: MayContend})
	w.answer(event{parsed: parse(value, nil), version: "v2", may: MayContend})
	rec, err := ParseRecord(w.need(actWrite).value)
	if err != nil || rec.Epoch != 41 {
		t.Errorf("it wrote %+v, want the same epoch (%v)", rec, err)
	}
}

// TestReplicaReleasesLate: a lock that was a sibling's a moment ago is not given
// up while the sibling, stopped, may believe in its term.
func TestReplicaReleasesLate(t *testing.T) {
	w := continuing(t)
	w.answer(event{version: "v2", may: MayContinue})
	w.need(actBegin)
	w.after(time.Second).send(event{kind: evStop})
	w.after(time.Second).send(event{kind: evDrained})
	for range 4 {
		if w.has(actWrite) != nil {
			t.Fatalf("it wrote %v after it had gone on with the term", w.now.Mono)
		}
		w.after(2 * time.Second).send(event{kind: evTick})
	}
}

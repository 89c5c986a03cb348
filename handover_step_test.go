// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"fmt"
	"testing"
	"time"
)

func recordOf(holder, preferred, nonce string) []byte {
	return fmt.Appendf(nil, `{"holderIdentity":%q,"leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":%q,"preferredHolder":%q}`,
		holder, nonce, preferred)
}

// looks makes the candidate read a record, and returns when it looks again.
func (w *walk) looks(value []byte, version Version) time.Duration {
	w.t.Helper()
	w.need(actRead)
	w.answer(event{parsed: parse(value, nil), version: version, jitter: 0})
	return w.s.nextAt - w.now.Mono
}

// TestPreferredCandidatePollsOften: whoever may lead next by an order sees the
// release within 200 ms of it; everybody else goes on polling once per P.
func TestPreferredCandidatePollsOften(t *testing.T) {
	for _, c := range []struct {
		what  string
		value []byte
		want  time.Duration
	}{
		{"held, no order", recordOf("x", "", "n"), 2 * time.Second},
		{"held, for us", recordOf("x", "me", "n"), preferredPoll},
		{"held, for another", recordOf("x", "y", "n"), 2 * time.Second},
		{"held, for anyone", recordOf("x", AnyHolder, "n"), preferredPoll},
		{"released to us", recordOf("", "me", "n"), 0},
		{"released to another", recordOf("", "y", "n"), 2 * time.Second},
		{"a stopper, for us", recordOf(stopperRelease+"x", "me", "n"), preferredPoll},
	} {
		w := newWalk(t).send(event{kind: evTick})
		if got := w.looks(c.value, "v1"); got != c.want && c.want != 0 {
			t.Errorf("%s: it looks again after %v, want %v", c.what, got, c.want)
		}
		if took := w.has(actWrite) != nil; took != (c.want == 0) {
			t.Errorf("%s: it tries to take the lock: %v", c.what, took)
		}
	}
}

// TestPreferenceEndsWithTheOrder: the frequent polls end when the order does.
func TestPreferenceEndsWithTheOrder(t *testing.T) {
	w := newWalk(t).send(event{kind: evTick})
	w.looks(recordOf("x", "me", "n"), "v1")
	w.after(preferredPoll).send(event{kind: evTick})
	if got := w.looks(recordOf("x", "", "o"), "v2"); got != 2*time.Second {
		t.Errorf("without the order it looks again after %v", got)
	}
}

// TestWatchNeedsNoPoll: a store that watches tells of the release, and the lock
// is taken after one read, whenever the next poll would have been.
func TestWatchNeedsNoPoll(t *testing.T) {
	w := newWalk(t).send(event{kind: evTick})
	w.looks(recordOf("x", "", "n"), "v1")
	w.after(time.Millisecond).send(event{kind: evPoke})
	w.looks(recordOf("", "", "o"), "v2")
	w.need(actWrite)
}

// leadingWalk brings the candidate to where it leads, at version v2.
func leadingWalk(t *testing.T) *walk {
	w := acquiring(t)
	w.answer(event{version: "v2"})
	w.need(actBegin)
	return w
}

// renewing brings it to where its first renewal is on its way.
func renewing(t *testing.T) *walk {
	w := leadingWalk(t)
	w.after(2 * time.Second).send(event{kind: evTick})
	w.need(actWrite)
	return w
}

func (w *walk) told(kind EventKind) int {
	n := 0
	for i := range w.acts {
		if w.acts[i].kind == actTell && w.acts[i].event.Kind == kind {
			n++
		}
	}
	return n
}

// TestSurprisingWriteIsReadBack: success with no new version proves nothing.
func TestSurprisingWriteIsReadBack(t *testing.T) {
	for _, version := range []Version{"", "v2"} {
		w := renewing(t)
		sent := w.has(actWrite).value
		w.answer(event{version: version})
		if w.told(EventSurprised) != 1 || w.has(actExtend) != nil {
			t.Fatalf("version %q: %d surprises, extended %v", version, w.told(EventSurprised), w.has(actExtend) != nil)
		}
		w.after(200 * time.Millisecond).send(event{kind: evTick})
		w.need(actRead)
		w.answer(event{parsed: parse(sent, nil), version: "v3"})
		w.need(actExtend) // it was applied after all
	}
	w := acquiring(t)
	w.answer(event{version: "v1"})
	if w.told(EventSurprised) != 1 || w.has(actBegin) != nil {
		t.Error("a term began with a write that returned the version it replaced")
	}
}

// TestChangedUnderItsVersion: a holder that reads compares what it reads.
func TestChangedUnderItsVersion(t *testing.T) {
	w := renewing(t)
	w.answer(event{err: ErrConflict})
	w.need(actRead)
	w.answer(event{parsed: parse(recordOf("x", "", "other"), nil), version: "v2"})
	if w.told(EventSurprised) == 0 {
		t.Error("another value with the known version surprised nobody")
	}
	w.need(actStop) // it is another holder's
}

// TestRefusedForTheCurrentVersion: a store that refuses a write for the version
// that it shows is told of, and not asked in a hot loop.
func TestRefusedForTheCurrentVersion(t *testing.T) {
	w := renewing(t)
	own := w.s.term.confirmed
	value, err := own.rec.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	writes, surprises := 1, 0
	for end := w.now.Mono + 3*time.Second; w.now.Mono < end; {
		w.answer(event{err: ErrConflict})
		surprises += w.told(EventSurprised)
		w.need(actRead)
		w.answer(event{parsed: parse(value, nil), version: "v2"})
		surprises += w.told(EventSurprised)
		for w.has(actWrite) == nil {
			w.after(10 * time.Millisecond).send(event{kind: evTick})
		}
		writes++
	}
	if writes > 9 || surprises == 0 {
		t.Errorf("%d writes in 3 s, %d surprises", writes, surprises)
	}
	w.answer(event{version: "v3"})
	w.need(actExtend)
}

// TestCopiedRecordSurprises: the same bytes under another version were put back
// by somebody, or the answer to the write lied; the term goes on, and it is said.
func TestCopiedRecordSurprises(t *testing.T) {
	w := renewing(t)
	own := w.s.term.confirmed
	value, err := own.rec.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	w.answer(event{err: ErrConflict})
	w.answer(event{parsed: parse(value, nil), version: "v9"})
	if w.told(EventSurprised) != 1 {
		t.Errorf("%d surprises", w.told(EventSurprised))
	}
	if w.need(actWrite).version != "v9" {
		t.Errorf("it renews on %q", w.has(actWrite).version)
	}
}

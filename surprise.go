// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import "fmt"

// A sound store never surprises. One that does was probed when it was sound, is
// another behind the same name, or was tampered with: it is reported, and nothing
// is believed but what a read shows next.

// surprised reports an answer that a sound store does not give.
func (m *machine) surprised(what string) error {
	err := fmt.Errorf("tenure: the store: %s", what)
	m.tell(Event{Kind: EventSurprised, Err: err})
	return err
}

// writes reports whether the operation is a conditional write.
func (op *operation) writes() bool {
	switch op.kind {
	case opCreate, opAcquire, opRenew, opRelease, opContinue:
		return true
	default:
		return false
	}
}

// changedUnderVersion reports whether a holder's read shows another value with
// the version that it knows.
func (m *machine) changedUnderVersion() bool {
	p, known := m.ev.parsed, m.sight.rec
	if m.phase == standby || p == nil || known == nil || p.sum == m.sight.sum {
		return false
	}
	// Not every store keeps a record's bytes; all keep what it says.
	if p.rec != nil && p.rec.Nonce == known.Nonce && p.rec.Epoch == known.Epoch && sameHolder(p.rec, known) {
		return false
	}
	_ = m.surprised("a read returned another value with the version that was known")
	return true
}

// contradicted reports what a holder's read, made after a write that failed, says
// against the answers to its writes. One that is refused again and again for the
// version that is there is not sent in a hot loop.
func (m *machine) contradicted(before Version) {
	s := &m.sight
	switch confirmed := &m.term.confirmed; {
	case m.refusedAt != "" && s.version == m.refusedAt:
		if m.contradictions++; m.contradictions > 1 {
			m.nextAt += m.backoff(m.contradictions-1, nil)
			_ = m.surprised("a write was refused for its version, and a read shows that same version (a delete marker, a retention rule or a broken store?)")
		}
	case before != "" && s.version != before && s.kind == held && s.rec.Nonce == confirmed.nonce && s.sum == confirmed.sum:
		_ = m.surprised("the record is as it was written, with another version than the answer to that write had: it was copied or put back, or the answer was wrong")
	}
	m.refusedAt = ""
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"tenure.dev/internal/clock"
)

// sightKind is what a record means to a candidate that reads it.
type sightKind uint8

const (
	unseen      sightKind = iota
	absent                // nothing is there
	held                  // somebody holds the lock, by our rules
	released              // given up
	stranger              // another elector's record
	unreadable            // anything else
	implausible           // an epoch that no run of terms reaches
)

// sighting is the record as it was last read, and since when it has been seen
// unchanged.
type sighting struct {
	kind    sightKind
	rec     *Record // where it parses; never changed
	why     error   // for unreadable and implausible
	sum     [sha256.Size]byte
	version Version
	since   clock.Reading // arrival of the first answer that carried it
	d       time.Duration // the longest D that this holder's term was seen with
	changes int           // nonces that somebody else with our identity has written
}

// stamp is the holder's time in the record, or zero.
func (s *sighting) stamp() time.Time {
	if s.rec == nil {
		return time.Time{}
	}
	return s.rec.RenewTime
}

// parsed is a value that was read, before it is known what it means here.
type parsed struct {
	rec *Record
	err error
	sum [sha256.Size]byte
}

// parse reads what the answer to a read carried. It depends on nothing else, so
// the request's own goroutine does it.
func parse(value []byte, err error) *parsed {
	p := &parsed{err: err, sum: sha256.Sum256(value)}
	if err == nil {
		p.rec, p.err = ParseRecord(value)
	}
	if mutated(emptyObjectReleased) && string(bytes.TrimSpace(value)) == "{}" {
		p.rec, p.err = &Record{}, nil
	}
	return p
}

// classify says what the answer to a read means. It trusts nothing: what is not
// known to be released, held or a stranger's is unreadable, and waited out.
func (m *machine) classify(p *parsed, version Version) sighting {
	rec, err := p.rec, p.err
	if errors.Is(err, ErrNotExist) {
		return sighting{kind: absent}
	}
	s := sighting{kind: unreadable, version: version, sum: p.sum}
	switch {
	case errors.Is(err, errForeign):
		s.kind, s.rec, s.d = stranger, rec, rec.LeaseDuration
		if n := max(rec.Epoch, rec.LeaseTransitions); n > MaxPlausibleEpoch {
			s.kind, s.why = implausible, fmt.Errorf("%w: that of a stranger's record, or its leaseTransitions, is %d", ErrImplausibleEpoch, n)
		}
		return s
	case err != nil:
		s.why = err
		return s
	}
	s.rec, s.d = rec, rec.LeaseDuration
	switch {
	case rec.Epoch > MaxPlausibleEpoch || rec.LeaseTransitions > MaxPlausibleEpoch:
		s.kind, s.why = implausible, fmt.Errorf("%w: epoch is %d", ErrImplausibleEpoch, rec.Epoch)
	case mutated(emptyObjectReleased) && rec.Nonce == "":
		s.kind = released
	case m.lineage != "" && rec.Lineage != m.lineage:
		s.why = fmt.Errorf("tenure: the record is of lineage %q, not of %q: it was made anew, or is another lock's", rec.Lineage, m.lineage)
	case rec.Epoch < m.highest:
		s.why = fmt.Errorf("tenure: the record's epoch %d is below %d, which was seen before: it was restored", rec.Epoch, m.highest)
	case rec.Released():
		s.kind, s.why = released, nil
	default:
		s.kind, s.why = held, nil
	}
	return s
}

// unchanged reports whether next says nothing new about the holder, so that the
// wait goes on. Orders change the version and the bytes but not the nonce. The
// same bytes at another version, or fewer orders, were put back by somebody: a
// restore, after which anything may have happened in between.
func unchanged(prev, next *sighting) bool {
	if prev.kind != next.kind {
		return false
	}
	sameVersion, sameBytes := prev.version == next.version, prev.sum == next.sum
	switch a, b := prev.rec, next.rec; {
	case next.kind == absent:
		return true
	case next.kind == stranger || a == nil || b == nil:
		return sameVersion && sameBytes
	case mutated(waitResetByOrders) && !sameVersion:
		return false
	default: // ours, and maybe unreadable only for its epoch or its lineage
		return a.Nonce == b.Nonce && a.HolderIdentity == b.HolderIdentity && a.ClusterUID == b.ClusterUID &&
			a.Epoch == b.Epoch && (sameVersion || !sameBytes && a.Orders <= b.Orders)
	}
}

// see takes in what a read, or the answer to a write of ours, has shown.
func (m *machine) see(next sighting, arrived clock.Reading) {
	prev := m.sight
	next.since = arrived
	if unchanged(&prev, &next) {
		next.since = prev.since
		next.d = max(prev.d, next.d)
		next.changes = prev.changes
	} else {
		m.noteChange(&prev, &next)
	}
	m.sight = next
	if next.rec != nil && next.kind != implausible { // also of another lineage: its epochs were seen too
		m.highest = max(m.highest, next.rec.Epoch)
	}
	if m.lineage == "" && (next.kind == held || next.kind == released) {
		m.lineage = next.rec.Lineage
	}
	m.longest = max(m.longest, min(next.d, m.set.maxD))
	m.notePause()
	m.forget()
}

// noteChange compares two records of which the second is new.
func (m *machine) noteChange(prev, next *sighting) {
	if prev.kind == held && next.kind == held && sameHolder(prev.rec, next.rec) {
		if prev.rec.Epoch == next.rec.Epoch {
			next.d = max(prev.d, next.d) // until the next term the longer one rules
		}
		next.changes = prev.changes
	}
	if next.kind == held && next.rec.HolderIdentity == m.set.identity &&
		m.attempted(next.rec.Nonce) == nil && !slices.Contains(m.spent, next.rec.Nonce) {
		next.changes++
	}
	switch next.kind {
	case held, released:
		if prev.kind != next.kind || !sameHolder(prev.rec, next.rec) {
			m.tell(Event{Kind: EventFollowing, Holder: next.rec.HolderIdentity, Epoch: next.rec.Epoch})
		}
	default:
		if now := damage(next); prev.kind != next.kind || now.Error() != damage(prev).Error() {
			m.tell(Event{Kind: EventDamaged, Err: now})
		}
	}
}

func damage(s *sighting) error {
	switch s.kind {
	case absent:
		return ErrNotExist
	case stranger:
		return fmt.Errorf("%w, holder %q", errForeign, s.rec.HolderIdentity)
	default:
		return s.why
	}
}

func sameHolder(a, b *Record) bool {
	return a.HolderIdentity == b.HolderIdentity && a.ClusterUID == b.ClusterUID
}

// notePause remembers since when the record's pause has been seen.
func (m *machine) notePause() {
	if m.sight.rec == nil || m.sight.rec.Paused == nil {
		m.pause = pauseSeen{}
		return
	}
	if until := m.sight.rec.Paused.Until.UnixNano(); m.pause.until != until {
		m.pause = pauseSeen{until: until, since: m.now.Mono}
	}
}

// paused reports whether a pause keeps everybody from taking the lock. Its end
// is read on our own clock, which is a matter of liveness only.
func (m *machine) paused() bool {
	return m.pause.until > m.now.Wall && m.now.Mono < m.pause.since+MaxPause
}

// MaxPause is the longest that a pause lasts.
const MaxPause = 24 * time.Hour

// forget drops the attempts that can no longer stand in the record: all but
// the one that does, and those conditional on the version that is there. It
// keeps none that is older than D.
func (m *machine) forget() {
	var keep []attempt
	for _, a := range m.own {
		if m.now.AtLeast(a.sent) > a.rec.LeaseDuration && !mutated(ownNonceAfterD) {
			continue // too old to be retaken
		}
		if a.base == m.sight.version || m.isOurs(&m.sight, &a) {
			keep = append(keep, a)
		}
	}
	m.own = keep
}

// isOurs reports whether the record is what a wrote: holder, cluster and nonce.
func (m *machine) isOurs(s *sighting, a *attempt) bool {
	if s.kind != held || s.rec.Nonce != a.nonce {
		return false
	}
	if mutated(nonceWithoutHolder) {
		return true
	}
	return s.rec.HolderIdentity == m.set.identity && s.rec.ClusterUID == m.set.clusterUID
}

// attempted returns our attempt with that nonce, or nil.
func (m *machine) attempted(nonce string) *attempt {
	for i := range m.own {
		if m.own[i].nonce == nonce {
			return &m.own[i]
		}
	}
	return nil
}

// standing returns the attempt of ours that stands in the record, or nil.
func (m *machine) standing() *attempt {
	for i := range m.own {
		if m.isOurs(&m.sight, &m.own[i]) {
			return &m.own[i]
		}
	}
	return nil
}

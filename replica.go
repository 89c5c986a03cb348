// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"errors"
	"time"
)

var errLateContinuation = errors.New("tenure: going on with a replica's term: the answer left less than R of it")

// Seen is what was known of a lock before this process began, by whoever keeps
// it for the candidate. Zero fields are not known.
type Seen struct {
	// Epoch is the highest epoch seen: a record below it was restored.
	Epoch int64
	// Lineage is the record's lineage: another one was made anew.
	Lineage string
	// LeaseDuration is the longest D that the lock was seen with.
	LeaseDuration time.Duration
}

// A Standing says what a process may do about the lock as it stands, where
// several processes share one identity and one of them acts at a time.
type Standing uint8

const (
	// MayContend is for a process that has no replica, or acts for all of them.
	MayContend Standing = iota
	// MustWait is for one that must not try to take the lock: another acts.
	MustWait
	// MayContinue says that the record is the term of a replica of ours, which
	// acts no more, and that this process has taken its place. It goes on with
	// that term, at the same epoch, from its own conditional write on.
	MayContinue
)

// standing asks whoever knows the replicas what may be done about the record
// that ev carries, or else about the one last seen.
func (l *loop) standing(ev *event) Standing {
	may := l.e.opt.Standing
	if may == nil {
		return MayContend
	}
	rec := l.state.sight.rec
	if ev.parsed != nil {
		rec = ev.parsed.rec
	}
	return may(rec)
}

// continues reports whether the record is the term of a replica of ours that
// this process may go on with.
func (m *machine) continues() bool {
	if a := m.standing(); a != nil && a.continued && m.may != MustWait {
		return true // we have gone on with it, and the answer was lost or late
	}
	return m.may == MayContinue && m.sight.kind == held && !m.sight.rec.Stopper() &&
		m.sight.rec.HolderIdentity == m.set.identity && m.sight.rec.ClusterUID == m.set.clusterUID
}

// replicaRenews reports whether the record may be that of a replica of ours.
// Then whoever answers Standing tells replicas and duplicates apart.
func (m *machine) replicaRenews() bool {
	return m.set.replicas && m.sight.rec != nil && m.sight.rec.ClusterUID == m.set.clusterUID
}

// goOn tries to go on with a replica's term: one conditional write that changes
// the nonce and nothing else that matters. Its D is the term's.
func (m *machine) goOn() {
	m.set.durations = m.next
	if d := m.sight.rec.LeaseDuration; d != m.next.d {
		m.set.durations = durations{d: d, r: d * 65 / 100, p: d / 5}
	}
	rec := m.sight.rec.clone()
	rec.Nonce = m.nonce()
	rec.RenewTime = time.Unix(0, m.now.Wall)
	rec.Candidate, rec.Endpoint, rec.CABundle = m.set.candidate, m.set.endpoint, m.set.caBundle
	m.write(opContinue, rec, m.sight.version)
}

// onContinued takes the answer to that write.
func (m *machine) onContinued(op operation) {
	if err := m.ev.err; err != nil {
		m.notTaken(op, "going on with a replica's term", err)
		return
	}
	m.failures = 0
	m.wrote(op.att)
	left := m.set.valid(op.att.rec.LeaseDuration) - m.now.AtLeast(op.att.sent)
	switch {
	case m.stopping:
		// The gate that the replica opened may be open: nothing is released, it
		// runs out, or another replica goes on.
		m.finish(m.result)
	case left < m.set.r:
		m.tell(Event{Kind: EventFailed, Latency: m.now.AtMost(op.sent), Err: errLateContinuation})
		m.doubt = true
		m.nextAt = m.now.Mono + m.set.p/4
	default:
		m.beginTerm(op.att)
		m.term.shared = op.att.sent.Mono + m.set.wait(op.att.rec.LeaseDuration)
	}
}

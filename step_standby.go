// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
)

// maxLate is how many acquisitions may be answered too late before the lock is
// released again, for others to try.
const maxLate = 3

// preferredPoll is how often a candidate looks that may lead next by an order.
const preferredPoll = 200 * time.Millisecond

// maxOtherNonces is how many nonces under our identity, and not ours, are put
// down to a predecessor: what it left, what it had sent when it died, what a
// restore put back. More than that are a living copy's renewals.
const maxOtherNonces = 3

// maxSpent is how many of our last nonces are known as ours when a write that
// was given up is applied late.
const maxSpent = 31

// never is a time that does not come.
const never = time.Duration(1<<63 - 1)

// proceedStandby polls, and takes the lock at the instant at which it may.
func (m *machine) proceedStandby() {
	if m.op.kind != opNone {
		return
	}
	if m.stopping {
		m.finish(m.result)
		return
	}
	if m.now.Mono < m.nextAt {
		return
	}
	at, why := m.takeAt()
	m.refuse(why)
	switch {
	case m.sight.kind == unseen && m.set.storeClock && !m.dated:
		m.dated = true
		m.begin(opDated, attempt{}, nil)
	case m.sight.kind == unseen || m.doubt || at > m.now.Mono:
		m.begin(opRead, attempt{}, nil)
	case m.continues():
		m.goOn()
	case m.sight.kind == absent && !mutated(absentAtOnce) && !mutated(absentWaitedOut):
		m.createStopper()
	case m.set.hasClock && !m.freshTime():
		m.begin(opTime, attempt{}, nil)
	default:
		m.acquire()
	}
}

// refuse reports, once, why this candidate does not contend.
func (m *machine) refuse(why error) {
	m.refused = why
	if why != nil && (m.told == nil || m.told.Error() != why.Error()) {
		m.tell(Event{Kind: EventRefused, Err: why})
	}
	m.told = why
}

// takeAt returns the instant at which this candidate may try to take the lock,
// on its monotonic clock, and what keeps it from ever doing so as things stand.
func (m *machine) takeAt() (time.Duration, error) {
	switch {
	case m.sight.kind == unseen || m.may == MustWait:
		return never, nil
	case m.continues():
		return m.now.Mono, nil
	case m.peers.conflict != nil:
		return never, m.peers.conflict
	case m.sight.kind == implausible:
		return never, m.sight.why
	case m.nextEpoch() > MaxPlausibleEpoch:
		return never, fmt.Errorf("%w: the next would be above 2^53", ErrImplausibleEpoch)
	case m.paused():
		return never, nil
	case m.set.hasPeers && !m.peers.known:
		return never, nil // their entries say how long an unreadable record may be held
	}
	abstain := m.abstain
	if rec := m.sight.rec; m.sight.kind == released && rec.PreferredHolder == m.set.identity {
		abstain = 0 // handed back since
	}
	if m.retakes() || m.knownDead() {
		return max(m.now.Mono, abstain), nil
	}
	return max(m.sight.since.Mono+m.waiting(), abstain), nil
}

// waiting is how long the record must have been seen unchanged.
func (m *machine) waiting() time.Duration {
	rec := m.sight.rec
	longest := min(max(m.longest, m.peers.longest), m.set.maxD)
	d := min(max(m.sight.d, 0), m.set.maxD)
	switch m.sight.kind {
	case absent:
		if mutated(absentWaitedOut) {
			return m.set.longWait(longest)
		}
		return 0 // a stopper is put there, and that is waited out
	case released:
		p := rec.PreferredHolder
		if p != "" && p != AnyHolder && p != m.set.identity {
			return m.set.d
		}
		return 0
	case held:
		switch {
		case rec.Stopper():
			return m.set.longWait(max(d, longest))
		case mutated(identityShortensWait) && rec.HolderIdentity == m.set.identity:
			return 0
		case mutated(expiryByRecordTimes):
			left := rec.RenewTime.Add(m.set.wait(d)).UnixNano() - m.now.Wall
			return m.now.Mono + time.Duration(left) - m.sight.since.Mono
		}
		return m.set.wait(d)
	case stranger: // it may have displaced a holder of ours, whose term goes on
		return m.set.longWait(max(d, longest))
	default:
		return m.set.longWait(longest)
	}
}

// retakes reports whether the record is our own write, made so recently that
// nobody else can have taken the lock since: no identity, only such a nonce,
// shortens a wait.
func (m *machine) retakes() bool {
	a := m.standing()
	if a == nil || a.continued {
		return false
	}
	if mutated(ownNonceAfterD) {
		return true
	}
	d := m.set.valid(a.rec.LeaseDuration)
	return m.now.AtLeast(a.sent) < d && time.Duration(m.now.Wall-a.sent.Wall) < d
}

// createStopper puts a record that leads nobody where there is none. Absence
// leaves no trace when something came and went between two looks at it; a
// record does, because taking it is conditional on its version.
func (m *machine) createStopper() {
	rec := &Record{
		HolderIdentity: stopperCreate + m.set.identity,
		Candidate:      m.set.candidate,
		LeaseDuration:  min(max(m.longest, m.peers.longest), m.set.maxD),
		RenewTime:      time.Unix(0, m.now.Wall),
		Epoch:          m.nextEpoch(),
		Nonce:          m.nonce(),
		ClusterUID:     m.set.clusterUID,
		Lineage:        m.lineage,
	}
	if rec.Lineage == "" {
		rec.Lineage = rec.Nonce
	}
	m.write(opCreate, rec, "")
}

// acquire tries to take the lock.
func (m *machine) acquire() {
	m.set.durations = m.next
	rec := &Record{
		HolderIdentity:   m.set.identity,
		Candidate:        m.set.candidate,
		LeaseDuration:    m.set.d,
		AcquireTime:      time.Unix(0, m.now.Wall),
		RenewTime:        time.Unix(0, m.now.Wall),
		LeaseTransitions: 1,
		Epoch:            m.nextEpoch(),
		Nonce:            m.nonce(),
		Lineage:          m.lineage,
		ClusterUID:       m.set.clusterUID,
		Endpoint:         m.set.endpoint,
		CABundle:         m.set.caBundle,
	}
	if old := m.sight.rec; old != nil && m.sight.kind != implausible {
		rec.LeaseTransitions = old.LeaseTransitions + 1
		rec.Paused = old.Paused
		rec.Lineage = either(rec.Lineage, old.Lineage) // a stranger's may have kept it
	}
	if rec.Lineage == "" {
		rec.Lineage = rec.Nonce
	}
	m.write(opAcquire, rec, m.sight.version)
}

// write sends a conditional write of rec.
func (m *machine) write(kind opKind, rec *Record, base Version) {
	value, err := rec.Marshal()
	if err != nil {
		// Only what others put into the record can make it too large.
		m.doubt = true
		m.nextAt = m.now.Mono + m.failed(operation{sent: m.now}, err)
		return
	}
	att := attempt{nonce: rec.Nonce, sent: m.now, base: base, rec: rec, sum: sha256.Sum256(value), continued: kind == opContinue}
	if kind == opAcquire || kind == opRenew || kind == opContinue {
		m.own = append(m.own[:len(m.own):len(m.own)], att)
		m.spent = append(slices.Clone(m.spent[max(0, len(m.spent)-maxSpent):]), att.nonce)
	}
	m.begin(kind, att, value)
}

func (m *machine) nonce() string {
	var b [16]byte
	for i := range b {
		b[i] = byte(m.ev.nonce[i/8] >> (i % 8 * 8))
	}
	return hex.EncodeToString(b[:])
}

func (m *machine) freshTime() bool {
	return m.store.known && m.now.AtMost(m.store.at) < m.set.d
}

// onStoreTime takes the store's clock; without it ours has to do.
func (m *machine) onStoreTime() {
	if m.ev.err != nil {
		m.nextAt = m.now.Mono + m.failed(operation{sent: m.now}, fmt.Errorf("tenure: reading the store's clock: %w", m.ev.err))
		return
	}
	m.store = storeTime{known: true, unix: m.ev.unix, at: m.now}
	m.nextAt = m.now.Mono
}

// onRead takes the answer to a read, in any phase.
func (m *machine) onRead(op operation) {
	if err := m.ev.err; err != nil && !errors.Is(err, ErrNotExist) && !errors.Is(err, ErrValueTooLarge) {
		m.readFailures++
		m.tell(Event{Kind: EventFailed, Err: fmt.Errorf("tenure: reading the record: %w", err), Latency: m.now.AtMost(op.sent)})
		m.nextAt = m.now.Mono + m.backoff(m.readFailures, err)
		return
	}
	arrived := m.now
	if mutated(waitFromReadStart) {
		arrived = op.sent
	}
	m.readFailures = 0
	m.doubt = false
	before := m.sight.version
	if before != "" && m.ev.version == before && !m.changedUnderVersion() {
		m.forget() // nothing has changed; the value need not be read again
	} else {
		m.see(m.classify(m.ev.parsed, m.ev.version), arrived)
	}
	if op.kind == opDated {
		m.judgeAge()
	}
	switch m.phase {
	case standby:
		if m.ev.version != before {
			m.failures, m.contradictions = 0, 0
		}
		m.afterPoll()
	case leading, draining, releasing:
		m.readByHolder(before)
	case done:
	}
}

// afterPoll decides when to look again, or to try.
func (m *machine) afterPoll() {
	if m.sight.changes > maxOtherNonces && !m.replicaRenews() {
		m.finish(fmt.Errorf("%w: %q renews the record, and it is not this process; give each candidate an identity of its own",
			ErrDuplicateIdentity, m.set.identity))
		return
	}
	if mutated(leadingFromRead) && m.standing() != nil {
		a := *m.standing()
		a.sent = m.now
		m.beginTerm(a)
		return
	}
	at, why := m.takeAt()
	m.refuse(why)
	poll := m.set.p - time.Duration(m.ev.jitter*float64(m.set.p)/10)
	if m.preferred() {
		poll = min(poll, preferredPoll)
	}
	m.nextAt = max(m.now.Mono, min(at, m.now.Mono+poll))
}

// preferred reports whether this candidate may lead next by the record: it is
// named, or a leader that still holds the lock was asked to give it to whoever
// comes.
func (m *machine) preferred() bool {
	if m.sight.rec == nil || m.sight.kind != held && m.sight.kind != released {
		return false
	}
	switch m.sight.rec.PreferredHolder {
	case m.set.identity:
		return true
	case AnyHolder:
		return m.sight.kind == held
	default:
		return false
	}
}

// onCreated: a stopper stands where nothing was, or somebody was quicker.
func (m *machine) onCreated(op operation) {
	if m.ev.err != nil {
		m.notTaken(op, "creating the record", m.ev.err)
		return
	}
	m.failures = 0
	m.doubt = true
	m.nextAt = m.now.Mono
}

// notTaken notes a standby's write that failed. One that is refused again and
// again, although the record stays as it was, is a store that contradicts
// itself: it is told, and not asked in a hot loop.
func (m *machine) notTaken(op operation, doing string, err error) {
	m.refusedWrite(op, doing, err)
	if !errors.Is(err, ErrConflict) {
		return
	}
	if m.contradictions++; m.contradictions > 1 {
		m.nextAt += m.backoff(m.contradictions-1, nil)
		m.tell(Event{Kind: EventFailed, Latency: m.now.AtMost(op.sent),
			Err: fmt.Errorf("tenure: %s: the store refuses the write for its version, and shows that same version (a delete marker, a retention rule or a broken store?): %w", doing, err)})
	}
}

// onAcquired takes the answer to an acquisition.
func (m *machine) onAcquired(op operation) {
	if err := m.ev.err; err != nil {
		m.notTaken(op, "taking the lock", err)
		return
	}
	m.failures = 0
	m.wrote(op.att)
	left := m.set.valid(m.set.d) - m.now.AtLeast(op.att.sent)
	if (left >= m.set.r || mutated(lateAnswerBegins)) && !m.stopping {
		if mutated(deadlineFromAnswer) {
			op.att.sent = m.now
		}
		m.beginTerm(op.att)
		return
	}
	m.tooLate(op, left)
}

// tooLate handles an acquisition that was answered when less than R of the term
// was left, or when nobody wants the term any more: no term begins.
func (m *machine) tooLate(op operation, left time.Duration) {
	if !m.stopping {
		m.late++
		m.tell(Event{Kind: EventFailed, Latency: m.now.AtMost(op.sent),
			Err: fmt.Errorf("tenure: taking the lock: the answer left %v of the term, less than R = %v", left, m.set.r)})
		if m.late < maxLate {
			m.nextAt = m.now.Mono // our nonce stands: try again at once
			return
		}
	}
	m.late = 0
	m.abstain = m.now.Mono + m.set.d
	m.term = termState{epoch: op.att.rec.Epoch, confirmed: op.att, over: true, voluntary: true}
	m.phase = releasing
	m.nextAt = m.now.Mono
}

// wrote takes in what a successful write of ours has left in the store.
func (m *machine) wrote(a attempt) {
	m.see(a.sighting(held, m.ev.version), m.now)
	m.doubt = false
}

// failed notes a write that did not succeed, and returns how long to leave the
// store alone.
func (m *machine) failed(op operation, err error) time.Duration {
	m.failures++
	m.tell(Event{Kind: EventFailed, Err: err, Latency: m.now.AtMost(op.sent)})
	return m.backoff(m.failures, err)
}

// backoff is how long to leave a store alone after n failures in a row:
// doubling from P/20 up to P, and what the store asks for, up to P too.
func (m *machine) backoff(n int, err error) time.Duration {
	wait := min(m.set.p/20<<min(n-1, 5), m.set.p)
	var ra RetryAfterer
	if errors.As(err, &ra) {
		wait = max(wait, min(ra.RetryAfter(), m.set.p))
	}
	return wait
}

// finish ends Run, with err.
func (m *machine) finish(err error) {
	m.phase = done
	m.result = err
}

// onPeers takes what the other candidates' entries say.
func (m *machine) onPeers() {
	first := !m.peers.known
	m.peers = m.ev.peers
	m.peers.known = true
	if m.phase == standby && m.op.kind == opNone && (first || m.refused != nil) {
		m.nextAt = min(m.nextAt, m.now.Mono)
	}
}

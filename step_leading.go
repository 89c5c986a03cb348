// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// maxOrders is how many renewals per period are sent at once because an order
// came between.
const maxOrders = 3

// maxReleases is how many release writes are tried before the term is left to
// run out.
const maxReleases = 3

// beginTerm starts a term that counts from a, our own applied acquisition.
func (m *machine) beginTerm(a attempt) {
	m.phase = leading
	m.late, m.contradictions = 0, 0
	m.set.d = a.rec.LeaseDuration
	m.term = termState{epoch: a.rec.Epoch, confirmed: a}
	m.do(action{kind: actBegin, att: a})
}

// termLength is how long the term lasts from the sending of its last renewal.
func (m *machine) termLength() time.Duration {
	return m.set.valid(m.term.confirmed.rec.LeaseDuration)
}

// renews reports whether the term is being renewed: while leading, and while
// the work drains of its own will, for at most the drain time.
func (m *machine) renews() bool {
	switch m.phase {
	case leading:
		return true
	case draining:
		return m.term.voluntary && !m.term.lost && !m.term.over && m.now.Mono-m.term.drainFrom < m.set.drain
	default:
		return false
	}
}

// renewAt is when the next renewal, or the read that doubt asks for, is due.
func (m *machine) renewAt() time.Duration {
	if m.doubt || m.term.again {
		return m.nextAt
	}
	return max(m.nextAt, m.term.confirmed.sent.Mono+m.set.p)
}

func (m *machine) proceedLeading() {
	since := m.now.AtLeast(m.term.confirmed.sent)
	switch {
	case since >= m.termLength():
		m.stop(ErrRenewDeadline, false)
		m.endTerm(ErrRenewDeadline)
	case since >= m.set.r:
		m.stop(ErrRenewDeadline, false)
	default:
		m.renew()
	}
}

// renew sends the next renewal, or the read that must come first.
func (m *machine) renew() {
	if m.op.kind != opNone || !m.renews() || m.now.Mono < m.renewAt() {
		return
	}
	if m.doubt {
		m.begin(opRead, attempt{}, nil)
		return
	}
	m.term.again = false
	rec := m.sight.rec.clone()
	rec.Nonce = m.nonce()
	rec.RenewTime = time.Unix(0, m.now.Wall)
	rec.Candidate, rec.Endpoint, rec.CABundle = m.set.candidate, m.set.endpoint, m.set.caBundle
	if mutated(durationShrunkInTerm) {
		rec.LeaseDuration = m.next.d
	}
	if !m.term.voluntary {
		rec.PreferredHolder = ""
	}
	m.write(opRenew, rec, m.sight.version)
}

// onRenewed takes the answer to a renewal.
func (m *machine) onRenewed(op operation) {
	if err := m.ev.err; err != nil {
		m.refusedWrite(op, "renewing", err)
		return
	}
	m.failures, m.contradictions = 0, 0
	m.wrote(op.att)
	m.nextAt = m.now.Mono
	if m.phase != standby { // else the term is over, and our nonce may be retaken
		m.confirm(op.att)
	}
}

// refusedWrite notes that a write was refused or may have been lost: the record
// must be read before the next one. After a refusal that is done at once.
func (m *machine) refusedWrite(op operation, doing string, err error) {
	m.doubt = true
	m.nextAt = m.now.Mono
	m.refusedAt = ""
	if errors.Is(err, ErrConflict) {
		m.refusedAt = op.att.base
	} else {
		m.nextAt += m.failed(op, fmt.Errorf("tenure: %s: %w", doing, err))
	}
}

// confirm counts the term from a, a write of ours that was applied.
func (m *machine) confirm(a attempt) {
	if mutated(deadlineFromAnswer) {
		a.sent = m.now
	}
	if a.sent.Mono <= m.term.confirmed.sent.Mono {
		return
	}
	m.term.confirmed = a
	if !m.term.over && (m.phase == leading || m.phase == draining) {
		m.do(action{kind: actExtend, att: a})
	}
}

// readByHolder takes a read made because a write failed or was refused: our
// own write, an order, or a loss. Before is the version that we knew.
func (m *machine) readByHolder(before Version) {
	m.nextAt = m.now.Mono
	s := &m.sight
	if m.now.AtLeast(m.term.confirmed.sent) >= m.termLength() {
		return // the time is up, whatever the record says
	}
	if m.phase == releasing && m.term.maybeReleased != "" && s.kind == held && s.version != m.term.maybeReleased {
		// Our record, if it is, may have been put back after our release was
		// applied and another took the lock: to release it again would free
		// the lock under that one. It expires instead.
		m.afterTerm(m.term.cause)
		return
	}
	m.contradicted(before)
	if a := m.standing(); a != nil {
		answerLost := a.nonce != m.term.confirmed.nonce
		ordered := !answerLost && s.version != before
		mistaken := answerLost && mutated(lostAnswerIsLoss) || ordered && mutated(orderIsLoss)
		if !mistaken {
			m.confirm(*a)
			m.heed(ordered)
			return
		}
	}
	if mutated(stopperIsOrder) && s.kind == held && s.rec.Stopper() {
		s.rec = m.term.confirmed.rec
		return
	}
	if m.phase == releasing && s.kind == released && s.rec.Epoch == m.term.epoch {
		m.gaveUp() // our release, whose answer was lost
		return
	}
	m.lose()
}

// heed takes orders: the record is ours, and somebody has changed what anybody
// may change. The leader writes again at once, so that its renewal is not late,
// at most three times per period.
func (m *machine) heed(ordered bool) {
	if ordered && m.renews() {
		if m.now.Mono-m.term.period >= m.set.p {
			m.term.period, m.term.orders = m.now.Mono, 0
		}
		m.term.again = true
		if m.term.orders++; m.term.orders > maxOrders {
			m.nextAt = m.term.period + m.set.p
		}
	}
	preferred := m.sight.rec.PreferredHolder
	if m.phase != leading || preferred == "" || preferred == m.set.identity {
		return
	}
	m.tell(Event{Kind: EventOrdered, Holder: preferred, Epoch: m.term.epoch})
	m.term.handTo = preferred
	m.stop(ErrHandover, true)
}

// lose ends the term: the record is not ours.
func (m *machine) lose() {
	e := &LostError{Epoch: m.term.epoch, Err: errors.New("another holder has taken it")}
	switch m.sight.kind {
	case held, stranger:
		e.Holder = m.sight.rec.HolderIdentity
	case released:
		e.Err = fmt.Errorf("the record was released by somebody else: %w", ErrNoLeader)
	default:
		e.Err = damage(&m.sight)
	}
	m.own = nil
	m.term.lost = true
	if m.phase == releasing {
		m.afterTerm(e)
		return
	}
	m.stop(e, false)
	m.endTerm(e)
}

// stop ends the work's context.
func (m *machine) stop(cause error, voluntary bool) {
	if m.phase != leading {
		return
	}
	m.phase = draining
	m.term.cause, m.term.voluntary = cause, voluntary
	m.term.drainFrom = m.now.Mono
	m.do(action{kind: actStop, err: cause})
	m.tell(Event{Kind: EventStopping, Epoch: m.term.epoch, Err: cause})
	if mutated(releaseBeforeDrain) && voluntary {
		m.phase = releasing
		m.nextAt = m.now.Mono
	}
}

// endTerm makes the term invalid for good.
func (m *machine) endTerm(cause error) {
	if m.term.over {
		return
	}
	m.term.over = true
	m.do(action{kind: actEnd, err: cause})
	m.tell(Event{Kind: EventEnded, Epoch: m.term.epoch, Err: cause})
}

func (m *machine) proceedDraining() {
	if m.now.AtLeast(m.term.confirmed.sent) >= m.termLength() {
		m.endTerm(either(m.term.cause, ErrTermOver))
	}
	m.renew()
}

// onStop: Run's context has ended.
func (m *machine) onStop() {
	if m.stopping {
		return
	}
	m.stopping = true
	switch {
	case m.phase == leading:
		m.stop(ErrStopped, true)
	case m.phase == standby && m.op.kind != opAcquire:
		m.finish(m.result)
	}
}

// onDrained: the work has returned.
func (m *machine) onDrained() {
	switch m.phase {
	case leading: // by itself
		m.stopping = true
		m.result = m.ev.err
		m.stop(ErrWorkEnded, true)
	case draining:
		if errors.Is(m.term.cause, ErrStopped) && !errors.Is(m.ev.err, context.Canceled) {
			m.result = m.ev.err
		}
	default:
		return
	}
	if m.term.lost || m.term.over {
		m.endTerm(m.term.cause)
		m.afterTerm(m.term.cause)
		return
	}
	m.phase = releasing
	m.nextAt = m.now.Mono
}

// proceedReleasing gives the lock up: the work is known to have ended (I7).
func (m *machine) proceedReleasing() {
	if m.op.kind != opNone {
		return
	}
	expired := m.now.AtLeast(m.term.confirmed.sent) >= m.termLength()
	if expired || m.term.releases >= maxReleases {
		m.endTerm(either(m.term.cause, ErrTermOver))
		m.afterTerm(m.term.cause)
		return
	}
	if m.now.Mono < m.nextAt {
		return
	}
	if m.now.Mono < m.term.shared { // a replica that was stopped may believe in the term
		m.nextAt = m.term.shared
		return
	}
	m.endTerm(either(m.term.cause, ErrTermOver))
	if m.doubt {
		m.begin(opRead, attempt{}, nil)
		return
	}
	rec := m.sight.rec.clone()
	rec.HolderIdentity, rec.Candidate, rec.Endpoint, rec.CABundle = "", "", "", ""
	rec.Nonce = m.nonce()
	rec.RenewTime = time.Unix(0, m.now.Wall)
	rec.PreferredHolder = ""
	if m.term.handTo != AnyHolder {
		rec.PreferredHolder = m.term.handTo
	}
	m.term.releases++
	m.write(opRelease, rec, m.sight.version)
}

// onReleased takes the answer to a release.
func (m *machine) onReleased(op operation) {
	if err := m.ev.err; err != nil {
		m.refusedWrite(op, "releasing", err)
		if !errors.Is(err, ErrConflict) {
			m.term.maybeReleased = op.att.base
		}
		return
	}
	m.failures = 0
	m.see(op.att.sighting(released, m.ev.version), m.now)
	m.gaveUp()
}

// gaveUp: the record says that nobody holds the lock.
func (m *machine) gaveUp() {
	m.tell(Event{Kind: EventReleased, Epoch: m.term.epoch, Holder: m.term.handTo})
	if m.term.handTo != "" {
		m.abstain = m.now.Mono + m.set.d
	}
	m.afterTerm(m.term.cause)
}

// afterTerm goes back to standing by, or ends Run.
func (m *machine) afterTerm(cause error) {
	if m.phase == releasing {
		m.own = nil // after a release nothing of ours is evidence any more
	}
	term := m.term
	m.phase, m.term = standby, termState{}
	m.set.durations = m.next
	m.doubt = true
	m.nextAt = m.now.Mono
	early := term.lost || errors.Is(cause, ErrRenewDeadline)
	switch {
	case m.stopping:
		m.finish(m.result)
	case m.set.once && early:
		m.finish(cause)
	case term.lost:
		m.nextAt += m.set.p / 20
	}
}

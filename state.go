// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	"crypto/sha256"
	"time"

	"tenure.dev/internal/clock"
)

// phase is where a candidate stands.
type phase uint8

const (
	// standby: polls, and takes the lock when it may.
	standby phase = iota
	// leading: the term's context is alive.
	leading
	// draining: the context has ended, the work may not have.
	draining
	// releasing: the work has ended, the lock is being given up.
	releasing
	// done: Run returns.
	done
)

// state is all that the election remembers. It is a value: step returns a new
// one and changes nothing that the old one refers to.
type state struct {
	set   settings
	next  durations // in force from the next term on
	phase phase

	sight   sighting
	highest int64         // highest epoch seen (I2)
	lineage string        // pinned for the process' life
	longest time.Duration // longest lease duration known for this lock
	peers   peers
	own     []attempt // writes of ours whose nonce may stand in the record
	spent   []string  // the nonces of our last writes, however old
	pause   pauseSeen
	store   storeTime
	may     Standing // about the record as it was last read

	op       operation
	lastOp   uint64
	nextAt   time.Duration // when standby or a doubtful leader asks again
	failures int           // writes in a row that failed
	// readFailures counts reads in a row that failed.
	readFailures int
	// contradictions counts writes in a row that were refused for a version
	// which the store then showed unchanged.
	contradictions int
	refusedAt      Version       // what the last write that was refused was conditional on
	dated          bool          // the store's times have been asked for
	longDead       Version       // of the record whose holder the store's clock says is long dead
	doubt          bool          // the record must be read before it is written
	abstain        time.Duration // until then we leave the lock to others

	term     termState
	late     int  // acquisitions in a row whose answer came too late
	stopping bool // Run's context has ended, or the work has
	refused  error
	told     error // the last refusal that was reported
	result   error // what Run returns
}

// termState is a term of ours, from its beginning to its release.
type termState struct {
	epoch     int64
	confirmed attempt // the write from which the term is counted
	cause     error   // why the context ended
	voluntary bool    // ended by an order, by Run's context or by the work: renewed while draining
	drainFrom time.Duration
	lost      bool // the record is not ours any more
	over      bool // Valid is false for good
	again     bool // an order came between: renew at once
	orders    int  // orders heeded in this period
	period    time.Duration
	releases  int // release writes sent
	// maybeReleased is what a release was conditional on whose outcome is not
	// known.
	maybeReleased Version
	handTo        string
	// shared is until when the replica whose term this was may believe in it.
	shared time.Duration
}

// attempt is a conditional write of ours, as a holder.
type attempt struct {
	nonce string
	sent  clock.Reading
	base  Version // what it was conditional on
	rec   *Record // what it wrote
	sum   [sha256.Size]byte
	// continued: it goes on with a replica's term, which may be valid in the
	// eyes of a replica that was stopped.
	continued bool
}

// sighting returns what the store shows once the attempt was applied.
func (a *attempt) sighting(kind sightKind, version Version) sighting {
	return sighting{kind: kind, rec: a.rec, version: version, sum: a.sum, d: a.rec.LeaseDuration}
}

// operation is the request in flight; there is at most one.
type operation struct {
	id   uint64
	kind opKind
	sent clock.Reading
	att  attempt
}

type opKind uint8

const (
	opNone opKind = iota
	opRead
	opCreate  // a stopper in the place of nothing
	opAcquire // an acquisition
	opRenew
	opRelease
	opTime     // the store's clock
	opDated    // the first read, with the store's times
	opContinue // going on with a replica's term
)

// peers is what the other candidates' entries say.
type peers struct {
	known    bool
	longest  time.Duration
	epoch    int64
	newest   int64 // wall clock of the newest entry, ns
	conflict error // settings that must agree and do not
}

// pauseSeen remembers since when a pause has been seen: it is believed for at
// most 24 hours.
type pauseSeen struct {
	until int64
	since time.Duration
}

// storeTime is the store's clock, read when our own read at.
type storeTime struct {
	known bool
	unix  int64
	at    clock.Reading
}

// event is what step answers to.
type event struct {
	now    clock.Reading
	nonce  [2]uint64 // fresh random bits
	jitter float64   // from 0 to 1
	kind   eventKind

	op       uint64
	parsed   *parsed // of a read that was answered with another version
	version  Version
	err      error
	unix     int64
	written  time.Time // by the store's clock, with storeNow
	storeNow time.Time
	peers    peers
	update   durations
	may      Standing
}

type eventKind uint8

const (
	evTick eventKind = iota
	evAnswer
	evDrained // the work has returned, with err
	evStop    // Run's context has ended
	evPoke    // the store says that the record may have changed
	evPeers
	evUpdate
)

// action is what step wants done, in order.
type action struct {
	kind    actionKind
	op      uint64
	value   []byte
	version Version
	timeout time.Duration
	nonce   string
	att     attempt
	err     error
	event   Event
}

type actionKind uint8

const (
	actRead actionKind = iota
	actWrite
	actTime
	actDated
	actBegin  // start the work in a term that counts from att
	actExtend // the term counts from att
	actStop   // end the term's context, with err as its cause
	actEnd    // the term is over
	actTell
)

// step is the election: the state after an event, what to do about it, and
// when to send the next tick. It reads no clock, does no I/O and changes neither
// s nor ev; the elector, the simulator and the tests run this same function.
// The state is passed by reference only to keep an elector's stack small.
func step(s *state, ev *event) (next *state, acts []action, wake time.Duration) {
	m := &machine{state: *s, ev: *ev, now: ev.now}
	m.handle()
	if m.phase != done {
		m.proceed()
	}
	return &m.state, m.acts, m.wake()
}

// machine is one step being made.
type machine struct {
	state
	ev   event
	now  clock.Reading
	acts []action
}

func (m *machine) handle() {
	m.may = m.ev.may
	switch m.ev.kind {
	case evAnswer:
		if m.op.kind == opNone || m.ev.op != m.op.id {
			return // an answer that was given up: what it did, a read will tell
		}
		op := m.op
		m.op = operation{}
		m.answer(op)
	case evDrained:
		m.onDrained()
	case evStop:
		m.onStop()
	case evPoke:
		if m.phase == standby {
			m.nextAt = min(m.nextAt, m.now.Mono)
		}
	case evPeers:
		m.onPeers()
	case evUpdate:
		m.next = m.ev.update
		m.longest = max(m.longest, m.next.d)
		if m.phase == standby && m.op.kind != opAcquire { // else they are those of the attempt
			m.set.durations = m.next
		}
	case evTick:
	}
}

// proceed does what time has made due.
func (m *machine) proceed() {
	if m.op.kind != opNone && m.now.AtMost(m.op.sent) >= m.giveUp() {
		op := m.op
		m.op = operation{}
		m.ev = event{now: m.ev.now, nonce: m.ev.nonce, jitter: m.ev.jitter, kind: evAnswer, err: context.DeadlineExceeded}
		m.answer(op)
	}
	switch m.phase {
	case standby:
		m.proceedStandby()
	case leading:
		m.proceedLeading()
	case draining:
		m.proceedDraining()
	case releasing:
		m.proceedReleasing()
	case done:
	}
}

// giveUp is how long the answer to a request is waited for. The request's own
// context ends earlier, so this is for drivers that do not heed it.
func (m *machine) giveUp() time.Duration { return m.set.timeout() + margin }

// answer handles the outcome of op, which is in m.ev.
func (m *machine) answer(op operation) {
	if op.writes() && m.ev.err == nil && (m.ev.version == "" || m.ev.version == op.att.base) {
		m.ev.err = m.surprised("a write was answered with success and with the version of what it replaced")
	}
	switch op.kind {
	case opRead, opDated:
		m.onRead(op)
	case opCreate:
		m.onCreated(op)
	case opAcquire:
		m.onAcquired(op)
	case opRenew:
		m.onRenewed(op)
	case opRelease:
		m.onReleased(op)
	case opTime:
		m.onStoreTime()
	case opContinue:
		m.onContinued(op)
	case opNone:
	}
}

// wake returns when the next tick is due, on the monotonic clock.
func (m *machine) wake() time.Duration {
	at := m.now.Mono + time.Hour
	due := func(t time.Duration) { at = min(at, t) }
	if m.op.kind != opNone {
		due(m.op.sent.Mono + m.giveUp())
	}
	if m.op.kind == opNone && (m.phase == standby || m.phase == releasing) {
		due(m.nextAt)
	}
	if m.phase == leading {
		due(m.term.confirmed.sent.Mono + m.set.r)
	}
	if m.renews() {
		if m.op.kind == opNone {
			due(m.renewAt())
		}
		if m.phase == draining {
			due(m.term.drainFrom + m.set.drain)
		}
	}
	if m.phase != standby && m.phase != done && !m.term.over {
		due(m.term.confirmed.sent.Mono + m.termLength())
	}
	return max(at, m.now.Mono+time.Millisecond)
}

func (m *machine) do(a action) { m.acts = append(m.acts, a) }

func (m *machine) tell(e Event) { m.do(action{kind: actTell, event: e}) }

// begin sends a request.
func (m *machine) begin(kind opKind, att attempt, value []byte) {
	m.lastOp++
	m.op = operation{id: m.lastOp, kind: kind, sent: m.now, att: att}
	a := action{op: m.lastOp, kind: actWrite, value: value, version: att.base, timeout: m.set.timeout(), nonce: att.nonce}
	switch kind {
	case opRead:
		a.kind, a.version = actRead, m.sight.version
	case opTime:
		a.kind = actTime
	case opDated:
		a.kind = actDated
	default:
	}
	m.do(a)
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"tenure.dev/internal/clock"
)

// maxHanging is how many requests may hang, given up, in a driver that does
// not heed its context, before no more are sent.
const maxHanging = 4

// errHanging is the outcome of a request that was not sent.
var errHanging = errors.New("tenure: the store's driver does not return: several requests hang beyond their timeout")

// An Elector is one candidate for a lock. Make it with [New].
type Elector struct {
	opt   Options
	set   settings
	clock clock.Clock
	rand  *rand.Rand
	// logger names the lock and this candidate in each line.
	logger *slog.Logger

	events  chan event
	updates chan durations // the newest Update, not taken yet

	mu      sync.Mutex
	status  Status
	running bool
	hanging int
}

// New returns an elector. It makes no request. The error names every option
// that does not fit, with the arithmetic.
func New(o Options) (*Elector, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	set, err := o.check()
	if err != nil {
		return nil, err
	}
	var seed [32]byte
	if o.sub.Seed != 0 {
		binary.LittleEndian.PutUint64(seed[:], o.sub.Seed)
	} else {
		crand.Read(seed[:]) //nolint:errcheck // it never fails, and crashes if it cannot
	}
	e := &Elector{
		opt: o, set: set, clock: o.sub.Clock,
		rand:    rand.New(rand.NewChaCha8(seed)),
		logger:  o.Logger.With("lock", o.Lock, "identity", set.identity),
		events:  make(chan event, 1),
		updates: make(chan durations, 1),
	}
	e.status = Status{Identity: set.identity, State: StateStandby, Durations: set.public()}
	return e, nil
}

// Work is what only the leader may do. It must return soon after ctx, which is
// the term's context, ends; the lock is not given up before it has. When it
// returns by itself the lock is released, and Run returns its error.
type Work func(ctx context.Context, t *Term) error

// Run contends for the lock and calls work, in a goroutine of its own, once per
// term. It blocks until ctx ends and everything is wound up, until work returns
// by itself, or until it must refuse: then the error wraps
// [ErrDuplicateIdentity]. With Options.Once it also returns when a term ends
// early. When ctx ends, a leading elector ends the term's context, waits for
// work, releases the lock and returns work's error, or nil for
// [context.Canceled]. It can be called once at a time.
func (e *Elector) Run(ctx context.Context, work Work) error {
	e.mu.Lock()
	if e.running {
		e.mu.Unlock()
		return errors.New("tenure: Run is already running")
	}
	e.running = true
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.running = false
		e.status.State = StateEnded
		e.mu.Unlock()
	}()
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &loop{e: e, ctx: inner, work: work, parent: ctx}
	defer cancel()
	if e.set.hasPeers {
		l.announcer = &announcer{e: e}
	}
	err := l.run(ctx)
	if l.announcer != nil {
		cancel() // what the last announcement did not finish
		l.announcer.withdraw()
	}
	return err
}

// Update changes the lease duration, the renew deadline and the period; zero
// fields follow the lease duration. A change takes effect at the next term; one
// made while Run does not run, at the next Run. It does not block, is safe for
// concurrent use, and returns what does not fit, with the arithmetic.
func (e *Elector) Update(leaseDuration, renewDeadline, period time.Duration) error {
	d := durations{
		d: leaseDuration,
		r: either(renewDeadline, leaseDuration*65/100),
		p: either(period, leaseDuration/5),
	}
	if err := e.set.fit(d); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	select { // a newer one replaces it
	case <-e.updates:
	default:
	}
	e.updates <- d
	return nil
}

// send hands an event to the loop, if one still runs.
func (e *Elector) send(ctx context.Context, ev event) {
	select {
	case e.events <- ev:
	case <-ctx.Done():
	}
}

// loop is one Run: it tells step what happens, and does what step says.
type loop struct {
	e      *Elector
	ctx    context.Context // ends after everything else
	parent context.Context
	work   Work
	state  *state
	term   *Term
	cancel context.CancelFunc // of the request in flight

	watching  bool // a watch is in flight
	watchAt   time.Duration
	announcer *announcer // or nil
}

func (l *loop) run(ctx context.Context) error {
	e := l.e
	l.state = &state{
		set: e.set, next: e.set.durations, longest: max(e.set.d, min(e.opt.Seen.LeaseDuration, e.set.maxD)),
		highest: e.opt.Seen.Epoch, lineage: e.opt.Seen.Lineage,
	}
	stop := ctx.Done()
	ev := event{kind: evTick}
	select { // an Update made before Run rules the first term too
	case d := <-e.updates:
		ev = event{kind: evUpdate, update: d}
	default:
	}
	for {
		ev.now = e.clock.Read()
		ev.nonce = [2]uint64{e.rand.Uint64(), e.rand.Uint64()}
		ev.jitter = e.rand.Float64()
		ev.may = l.standing(&ev)
		var acts []action
		var wake time.Duration
		l.state, acts, wake = step(l.state, &ev)
		for i := range acts {
			l.perform(&acts[i])
		}
		l.publish()
		if l.state.phase == done {
			if l.term != nil {
				l.term.end(ErrTermOver)
			}
			return l.state.result
		}
		mono, _ := e.clock.Quick()
		if a := l.announcer; a != nil {
			if a.proceed(l.ctx, mono, e.Status()); !a.busy {
				wake = min(wake, a.next)
			}
		}
		wake = min(wake, l.watch(mono))
		timer, giveUp := e.clock.Timer(max(wake-mono, 0))
		select {
		case ev = <-e.events:
			mono, _ := e.clock.Quick()
			switch ev.kind {
			case evPeers:
				l.announcer.announced(mono, &ev)
			case evPoke:
				l.watched(mono, &ev)
			default:
			}
		case d := <-e.updates:
			ev = event{kind: evUpdate, update: d}
		case <-timer:
			ev = event{kind: evTick}
		case <-stop:
			stop = nil
			ev = event{kind: evStop}
		}
		giveUp()
	}
}

// perform does one thing that step asked for.
func (l *loop) perform(a *action) {
	e := l.e
	switch a.kind {
	case actRead, actDated, actWrite, actTime:
		l.request(a)
	case actBegin:
		l.begin(a.att)
	case actExtend:
		l.extend(a.att)
		e.log(Event{Kind: EventRenewed, Epoch: l.term.epoch, Deadline: l.term.Deadline(),
			Latency: e.clock.Read().AtMost(a.att.sent)})
	case actStop:
		l.term.cancel(a.err)
	case actEnd:
		l.term.end(a.err)
	case actTell:
		e.log(a.event)
	}
}

func (l *loop) extend(a attempt) {
	d := a.rec.LeaseDuration
	l.term.extend(a.sent, l.e.set.valid(d), d)
}

// begin starts the work of a term. Renewals do not wait for it.
func (l *loop) begin(a attempt) {
	e := l.e
	t := newTerm(l.parent, e.clock, a.rec.Epoch)
	l.term = t
	l.extend(a)
	e.log(Event{Kind: EventBegan, Epoch: t.epoch, Deadline: t.Deadline()})
	go func() {
		err := l.work(t.ctx, t)
		e.send(l.ctx, event{kind: evDrained, err: err})
	}()
}

// request does a's I/O beside the loop, which never waits for a store.
func (l *loop) request(a *action) {
	e := l.e
	op, kind, value, version, nonce := a.op, a.kind, a.value, a.version, a.nonce
	e.mu.Lock()
	full := e.hanging >= maxHanging
	if !full {
		e.hanging++
	}
	e.mu.Unlock()
	if full {
		go e.send(l.ctx, event{kind: evAnswer, op: op, err: errHanging})
		return
	}
	// A holder reads only when something went wrong: then no version is trusted to
	// stand for its value.
	compare := l.state.phase != standby
	ctx, cancel := context.WithTimeout(l.ctx, a.timeout)
	go func() {
		defer cancel()
		ev := event{kind: evAnswer, op: op}
		switch kind {
		case actRead:
			value, ev.version, ev.err = e.opt.Register.Read(ctx)
			if compare || ev.version == "" || ev.version != version {
				ev.parsed = parse(value, ev.err)
			}
		case actDated:
			var v DatedValue
			v, ev.err = e.opt.Register.(Dater).ReadDated(ctx)
			ev.version, ev.parsed = v.Version, parse(v.Value, ev.err)
			ev.written, ev.storeNow = v.Written, v.Now
		case actWrite:
			if before := e.opt.BeforeWrite; before != nil {
				if ev.err = before(ctx, nonce); ev.err != nil {
					break // not sent
				}
			}
			ev.version, ev.err = e.opt.Register.Write(ctx, value, version)
		case actTime:
			var now time.Time
			now, ev.err = e.opt.Register.(Clock).Now(ctx)
			ev.unix = now.Unix()
		default:
		}
		e.mu.Lock()
		e.hanging--
		e.mu.Unlock()
		e.send(l.ctx, ev)
	}()
}

// publish updates the status.
func (l *loop) publish() {
	e, s := l.e, l.state
	next := Status{Identity: e.set.identity, State: s.publicState(), Lineage: s.lineage, Refused: s.refused, Durations: s.set.public()}
	if rec := s.sight.rec; rec != nil && (s.sight.kind == held || s.sight.kind == released) {
		next.Holder, next.Epoch = rec.HolderIdentity, rec.Epoch
	}
	e.mu.Lock()
	next.LastError, next.Failing = e.status.LastError, e.status.Failing
	if s.failures == 0 && s.readFailures == 0 {
		next.LastError, next.Failing = nil, time.Time{}
	}
	e.status = next
	e.mu.Unlock()
}

// watch has the store tell when the record of a standby may have changed. A
// poll is still made every period, so a watch that fails costs time only.
// It returns when to call it again.
func (l *loop) watch(now time.Duration) time.Duration {
	w, ok := l.e.opt.Register.(Watcher)
	switch {
	case !ok || l.watching || l.state.phase != standby || l.state.sight.kind == unseen:
		return never
	case now < l.watchAt:
		return l.watchAt
	}
	l.watching = true
	version := l.state.sight.version
	go func() {
		err := w.Watch(l.ctx, version)
		l.e.send(l.ctx, event{kind: evPoke, err: err})
	}()
	return never
}

// watched takes the outcome of a watch: a reason to poll, or nothing.
func (l *loop) watched(now time.Duration, ev *event) {
	l.watching, l.watchAt = false, now+watchPause
	if ev.err != nil {
		l.watchAt = now + watchRetry
		*ev = event{kind: evTick}
	}
}

const (
	// watchPause keeps a watch that returns at once from becoming a hot loop.
	watchPause = 50 * time.Millisecond
	// watchRetry is how soon a watch that failed is tried again.
	watchRetry = time.Second
)

// log reports an event to whoever wants to know.
func (e *Elector) log(ev Event) {
	if ev.Kind == EventFailed {
		e.mu.Lock()
		e.status.LastError = ev.Err
		if e.status.Failing.IsZero() {
			mono, _ := e.clock.Quick()
			e.status.Failing = e.clock.Time(mono)
		}
		e.mu.Unlock()
	}
	e.logLine(ev)
	e.opt.Observe(ev)
}

func (e *Elector) logLine(ev Event) {
	log := e.logger
	switch ev.Kind {
	case EventBegan:
		log.Info("leading", "epoch", ev.Epoch)
	case EventStopping:
		log.Info("stopping the work", "epoch", ev.Epoch, "cause", ev.Err)
	case EventEnded:
		log.Info("term ended", "epoch", ev.Epoch, "cause", ev.Err)
	case EventReleased:
		log.Info("released", "epoch", ev.Epoch, "preferredHolder", ev.Holder)
	case EventFollowing:
		if ev.Holder == "" {
			log.Debug("nobody holds the lock", "epoch", ev.Epoch)
		} else if ev.Holder != e.set.identity {
			log.Info("standing by", "holder", ev.Holder, "epoch", ev.Epoch)
		}
	case EventOrdered:
		log.Info("ordered to hand over", "epoch", ev.Epoch, "preferredHolder", ev.Holder)
	case EventDamaged:
		if errors.Is(ev.Err, ErrNotExist) {
			log.Warn("there is no record: the lock is new, or was deleted and may still be held")
			return
		}
		log.Warn("the record is damaged or a stranger's", "error", ev.Err)
	case EventSurprised:
		log.Error("the store contradicts itself: see whether it can be trusted with a lock (tenure doctor)", "error", ev.Err)
	case EventRefused:
		log.Error("not contending", "error", ev.Err)
	case EventFailed:
		log.Warn("request failed", "error", ev.Err, "after", ev.Latency)
	case EventRenewed:
		log.Debug("renewed", "epoch", ev.Epoch, "latency", ev.Latency)
	default:
		panic(fmt.Sprintf("tenure: unknown event %q", ev.Kind))
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"tenure.dev"
	"tenure.dev/internal/clock"
)

// slot is a machine and the identity of the candidate that runs there, one
// process after another.
type slot struct {
	n        int
	identity string
	host     string
	machine  *machine
	stock    *stockConfig // a stock elector runs here
	twin     bool         // has another slot's identity; it runs only when a fault starts it
	opts     SlotOptions

	p         *process
	processes int
	suspended bool // its monotonic clock has stood still
	up        bool // a process that ends is started again
	// cutUntil: the store cannot be reached from here.
	cutUntil time.Duration
	noise    []noiseWindow
}

// process is one run of a candidate.
type process struct {
	w    *world
	slot *slot
	n    int
	uid  string
	self string // of this process, where several share the identity and uid

	elector *tenure.Elector
	stock   *stock
	cancel  context.CancelFunc
	peek    atomic.Bool // the checks look at the clock of a frozen process

	mu     sync.Mutex
	frozen chan struct{} // closed when it goes on
	isDead bool
	dead   chan struct{}
	life   context.Context // ends when it crashes
	crash  context.CancelFunc
	// stopping: the context of Run has ended, or ends when the process goes on.
	stopping bool

	// The rest changes under world.mu.
	ended    bool // Run is over
	crashed  bool
	sent     [lanes]uint64
	second   time.Duration // of the requests counted
	inSecond int
	resumed  time.Duration
	term     *term
	terms    int
	working  int
	seen     int64 // the highest epoch that it has been shown
	acquired acquisition
	readAt   time.Duration // when the last answered read was sent
	// bounds: by epoch, until when a term can last: D after the sending of a
	// write that was applied.
	bounds map[int64]time.Duration
}

// acquisition is the last one of a process that was applied, and the time in
// seconds that its epoch was taken from, at least.
type acquisition struct{ epoch, unix int64 }

// term is a term as the events of its elector tell it.
type term struct {
	epoch   int64
	until   time.Duration // monotonic clock of its machine
	t       *tenure.Term  // nil until the work has begun
	over    bool
	stopped bool // its context has ended
	begun   time.Duration
}

// The order in which the goroutines of a process go on after it was frozen, a
// microsecond apart: which of them is first must not be left to chance.
const (
	rankLoop = iota
	rankLock // and the other lanes of requests
	rankPeers
	rankWatch
	rankWork
	rankStop
)

// gate blocks while the process is frozen, and ends the goroutine of one that
// has crashed.
func (p *process) gate(rank int) {
	for {
		p.mu.Lock()
		frozen, dead := p.frozen, p.isDead
		p.mu.Unlock()
		if dead {
			runtime.Goexit()
		}
		if frozen == nil {
			return
		}
		select {
		case <-frozen:
			if rank > 0 {
				time.Sleep(time.Duration(rank) * time.Microsecond)
			}
		case <-p.dead:
		}
	}
}

func (p *process) isFrozen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.frozen != nil
}

func (p *process) freeze() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil || p.isDead {
		return false
	}
	p.frozen = make(chan struct{})
	return true
}

func (p *process) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
		p.resumed = p.w.now()
		if p.stopping {
			time.AfterFunc(rankStop*time.Microsecond, p.cancel)
		}
	}
}

func (p *process) name() string {
	return p.slot.identity + "/" + p.self
}

// startSlot starts a process in a slot where none runs. It is called under
// world.mu.
func (w *world) startSlot(s *slot) {
	if s.p != nil && !s.p.ended || w.ending {
		return
	}
	s.processes++
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{w: w, slot: s, n: s.processes, cancel: cancel, dead: make(chan struct{}), bounds: make(map[int64]time.Duration)}
	p.uid = "u" + strconv.Itoa(s.n) + "." + strconv.Itoa(p.n)
	p.self = p.uid
	if s.opts.Cluster != "" {
		p.uid = "u-" + s.opts.Cluster
	}
	p.life, p.crash = context.WithCancel(context.Background())
	s.p = p
	w.processes = append(w.processes, p)
	w.running.Add(1)
	w.note("%s starts", p.name())
	if s.stock != nil {
		p.stock = newStock(p)
		go func() {
			defer p.finished()
			p.stock.run(ctx)
		}()
		return
	}
	o := tenure.Options{
		Register: w.open(p), Lock: "sim", Identity: s.identity, ClusterUID: p.uid, Host: s.host,
		LeaseDuration: s.opts.D, RenewDeadline: s.opts.R, Period: s.opts.P, MaxLeaseDuration: w.sc.MaxD,
		Drift: w.sc.Drift, Drain: s.opts.Drain, Once: s.opts.Once, Observe: p.observe,
	}
	if w.sc.Flavour == withDates {
		o.Takeover = tenure.TakeoverStoreClock
	}
	leave := w.join(p, &o)
	clock.Substitute(&o, clock.Substitutes{Clock: processClock{p}, Seed: newRNG(w.sc.Seed, 3, uint64(s.n), uint64(p.n)).next() | 1})
	e, err := tenure.New(o)
	if err != nil {
		panic(fmt.Sprintf("sim: seed %d: %v", w.sc.Seed, err))
	}
	p.elector = e
	go func() {
		defer p.finished()
		err := e.Run(ctx, p.work)
		leave()
		w.mu.Lock()
		defer w.mu.Unlock()
		if p.working > 0 {
			w.find(checkReleased, "%s: Run has returned %v while its work goes on", p.name(), err)
		}
		if errors.Is(err, tenure.ErrDuplicateIdentity) {
			w.stats.Duplicates++
		}
		w.note("%s: Run returns %v", p.name(), err)
	}()
}

// finished: the process is gone; what runs in a machine is started again.
func (p *process) finished() {
	w, s := p.w, p.slot
	w.mu.Lock()
	defer w.mu.Unlock()
	p.ended = true
	p.term = nil
	p.cancel()
	w.running.Done()
	if s.up && !w.ending {
		r := newRNG(w.sc.Seed, 4, uint64(s.n), uint64(p.n))
		w.startLater(s, r.dur(time.Second, restartMax))
	}
}

// restartMax is how long a supervisor takes to start an ended process again.
const restartMax = 2 * time.Second

func (w *world) startLater(s *slot, d time.Duration) {
	time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if s.up {
			w.startSlot(s)
		}
	})
}

// crash ends a process, and its work, at once. What it has sent goes on.
func (w *world) crash(s *slot) {
	p := s.p
	s.up = false
	if p == nil || p.ended || p.crashed {
		return
	}
	w.note("%s crashes", p.name())
	s.machine.change(func(g *segment) { g.suspended = false })
	p.crashed = true
	p.working = 0
	p.term = nil
	if p.stock != nil {
		p.stock.leads = false
	}
	p.mu.Lock()
	p.isDead = true
	close(p.dead)
	p.crash()
	p.mu.Unlock()
	p.cancel()
}

// stop ends the context of Run.
func (w *world) stop(s *slot) {
	s.up = false
	if p := s.p; p != nil && !p.ended {
		w.note("%s is asked to stop", p.name())
		p.stop()
	}
}

// stop ends the context of Run, when the process can notice.
func (p *process) stop() {
	p.mu.Lock()
	frozen := p.frozen != nil
	p.stopping = true
	p.mu.Unlock()
	if !frozen {
		p.cancel()
	}
}

// valid reports whether the process has a term that is valid at this instant,
// whether or not it runs.
func (p *process) valid() bool {
	t := p.term
	if t == nil || t.over || p.crashed || p.ended {
		return false
	}
	if p.slot.machine.now().Mono >= t.until {
		return false
	}
	if t.t == nil {
		return true
	}
	p.peek.Store(true)
	defer p.peek.Store(false)
	return t.t.Valid()
}

// leads reports whether the guarded work of the process goes on, or it is a
// stock elector that leads.
func (p *process) leads() bool {
	if p.stock != nil {
		return p.stock.leads
	}
	return p.valid() && !p.term.stopped
}

// work is what only the leader may do: it changes something now and then, and
// takes its time to end.
func (p *process) work(ctx context.Context, t *tenure.Term) error {
	w := p.w
	w.running.Add(1)
	defer w.running.Done()
	w.mu.Lock()
	p.terms++
	if p.working > 0 {
		w.find(checkOneTerm, "%s: work begins while its last one goes on", p.name())
	}
	p.working++
	if p.term != nil && p.term.epoch == t.Epoch() {
		p.term.t = t
	}
	r := newRNG(w.sc.Seed, 5, uint64(p.slot.n), uint64(p.n), uint64(p.terms))
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !p.crashed {
			p.working--
		}
	}()
	d := p.slot.opts.D
	leave := time.Duration(1 << 62)
	if !w.quietNow() && r.chance(0.04) {
		leave = w.now() + r.dur(d/2, 4*d) // the work ends by itself
	}
	for ctx.Err() == nil {
		if w.now() > leave && !w.quietNow() {
			return pick(r, []error{nil, errNetwork})
		}
		p.tick(ctx, r.dur(d/50, d/8))
		p.mutate(ctx, t)
	}
	for end := w.now() + w.drainTime(r, d); w.now() < end; {
		p.tick(context.Background(), r.dur(d/50, d/8))
		p.mutate(ctx, t)
	}
	return ctx.Err()
}

// drainTime is how long the work takes to end: sometimes longer than the term.
func (w *world) drainTime(r *rng, d time.Duration) time.Duration {
	switch x := r.float(); {
	case w.quietNow():
		return r.dur(0, d/50)
	case x < w.sc.LongDrain:
		return r.dur(d/4, d*3/2)
	case x < 0.6:
		return r.dur(0, d/20)
	default:
		return r.dur(0, d/3)
	}
}

// tick lets time pass in the work.
func (p *process) tick(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-p.dead:
	}
	p.gate(rankWork)
}

// mutate is what a client fence lets through, or not.
func (p *process) mutate(ctx context.Context, t *tenure.Term) {
	ok := t.Valid()
	p.w.mutation(p, t, ok, ctx.Err() == nil)
}

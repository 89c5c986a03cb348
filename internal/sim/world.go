// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// world is a scenario while it runs.
type world struct {
	sc    *Scenario
	wait  func() // until all other goroutines of the bubble are blocked
	start time.Time

	running sync.WaitGroup // processes, and their work

	mu        sync.Mutex
	cells     map[string]*cell
	versions  uint64
	history   []*moment
	slots     []*slot
	processes []*process
	saved     *slot // the one that a fault has chosen, for later ones
	outage    time.Duration
	storeStep time.Duration // by which the store's clock has been stepped
	noise     []noiseWindow
	armed     int // creations that are to be deleted at once
	// armedFreeze is how long who takes the lock next is to be frozen, or 0.
	armedFreeze time.Duration
	quiet       bool
	ending      bool
	settled     bool // faults stopped so long ago that nothing may change any more

	maxEpoch     int64         // of the terms begun
	maxCluster   string        // whose replica began that term
	longest      time.Duration // longest lease duration that anybody has been shown
	damaged      bool
	unclaimed    time.Duration // until when I1 is not claimed
	lastArrival  time.Duration // of a write on its way
	lastHandover time.Duration
	trace        trace
	stats        Stats
	found        *Finding
}

// now is true time since the start.
func (w *world) now() time.Duration { return time.Since(w.start) }

// storeTime is what the clock of the store reads: it is wrong, and even unless a
// fault steps it.
func (w *world) storeTime() time.Time {
	return time.Unix(0, wallBase).Add(w.sc.StoreOffset + w.storeStep + w.now())
}

func (w *world) quietNow() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.quiet
}

// cut reports whether the slot cannot reach the store.
func (w *world) cut(s *slot) bool {
	now := w.now()
	return now < s.cutUntil || now < w.outage
}

func (w *world) cutNow(s *slot) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut(s)
}

// Run executes the scenario and reports. It must be called in a bubble of
// testing/synctest, with synctest.Wait.
func (sc *Scenario) Run(wait func()) *Report {
	w := &world{sc: sc, wait: wait, start: time.Now(), cells: make(map[string]*cell), stats: newStats()}
	w.longest = sc.longestD()
	w.begin()
	for i := range sc.Faults {
		f := &sc.Faults[i]
		w.sleepUntil(f.At)
		w.mu.Lock()
		if w.found != nil {
			w.mu.Unlock()
			break
		}
		w.apply(f)
		w.mu.Unlock()
	}
	if w.found == nil {
		w.sleepUntil(sc.Length)
		w.tail()
	}
	w.end()
	r := &Report{Scenario: sc, Finding: w.found, Stats: w.stats, Hash: w.trace.hash, Trace: w.trace.lines()}
	return r
}

// sleepUntil waits for true time t, and until everybody else is blocked: what
// happens next happens between two steps of everybody.
func (w *world) sleepUntil(t time.Duration) {
	if d := t - w.now(); d > 0 {
		time.Sleep(d)
	}
	w.wait()
}

// begin makes the machines and starts the candidates.
func (w *world) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, o := range w.sc.Slots {
		r := newRNG(w.sc.Seed, 6, uint64(i))
		s := &slot{n: i, opts: o, identity: o.Identity, host: o.Host, twin: o.Twin, stock: o.Stock, up: !o.Twin}
		s.machine = newMachine(w.start, o.Rate, r.dur(time.Hour, 1000*time.Hour), o.WallOffset)
		w.slots = append(w.slots, s)
	}
	if v := w.sc.initial(); v != nil {
		w.putLock(v, nil, false)
	} else {
		w.history = append(w.history, &moment{})
	}
	for i, s := range w.slots {
		if s.up {
			w.startLater(s, time.Duration(i+1)*37*time.Millisecond+w.sc.Slots[i].Start)
		}
	}
}

// tail is the time after the last fault: somebody must lead soon, and go on.
func (w *world) tail() {
	w.mu.Lock()
	w.heal()
	bound := w.bound()
	w.mu.Unlock()
	end := w.now() + bound
	r := newRNG(w.sc.Seed, 7)
	led := time.Duration(0)
	from := w.now()
	for step := 0; w.now() < end; step++ {
		w.sleepUntil(min(end, w.now()+r.dur(w.sc.D/10, w.sc.D/5)))
		w.mu.Lock()
		if led == 0 && w.leader() != nil {
			led = w.now() - from
		}
		if w.sc.TailOrders {
			w.orderNote(r.next())
		}
		w.mu.Unlock()
		if w.found != nil {
			return
		}
	}
	w.mu.Lock()
	w.stats.MaxTakeover = max(w.stats.MaxTakeover, led)
	if w.leader() == nil {
		w.find(checkLiveness, "nobody leads %v after the last fault, with a store that answers: the record is %s", bound, short(w.last().value))
	}
	w.settled = true
	w.mu.Unlock()
	for range 10 {
		w.sleepUntil(w.now() + r.dur(w.sc.D/10, w.sc.D/5))
		w.mu.Lock()
		if w.sc.TailOrders {
			w.orderNote(r.next())
		}
		w.mu.Unlock()
	}
}

// end stops everybody, and waits for them.
func (w *world) end() {
	w.mu.Lock()
	w.quiet, w.ending = true, true
	w.heal()
	w.mu.Unlock()
	w.sleepUntil(w.now() + time.Millisecond)
	w.mu.Lock()
	for _, s := range w.slots {
		s.up = false
		if s.p != nil {
			s.p.stop()
		}
	}
	w.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		w.running.Wait()
		close(gone)
	}()
	limit := time.NewTimer(10 * time.Minute)
	defer limit.Stop()
	select {
	case <-gone:
	case <-limit.C:
		w.mu.Lock()
		for _, p := range w.processes {
			if !p.ended && !p.crashed { // the loop of one that has crashed finds out when it next wakes
				w.find(checkEnds, "%s: Run has not returned 10 minutes after its context has ended", p.name())
				w.crash(p.slot)
			}
		}
		w.mu.Unlock()
		<-gone
	}
	w.wait()
	w.stats.Virtual += w.now()
}

// leader returns a process that leads, or nil.
func (w *world) leader() *process {
	for _, p := range w.processes {
		if p.leads() {
			return p
		}
	}
	return nil
}

// heal ends all faults that last. The rest of the scenario is without any.
func (w *world) heal() {
	w.quiet = true
	w.outage, w.noise, w.armed, w.armedFreeze = 0, nil, 0, 0
	for _, s := range w.slots {
		s.cutUntil, s.noise = 0, nil
		if s.p != nil && s.p.isFrozen() {
			w.thaw(s)
		}
	}
	if w.ending {
		return
	}
	for _, s := range w.slots {
		switch {
		case s.twin || s.stock != nil:
			w.crash(s)
		case s.n == w.sc.DownAtEnd:
			w.crash(s)
		case !s.up:
			s.up = true
			w.startLater(s, time.Duration(s.n+1)*41*time.Millisecond)
		}
	}
	w.orderResume()
	w.note("all faults end")
}

// bound is within what time somebody must lead, from now on, the faults having
// ended. It follows the waits; each addend is for something that may be
// under way.
func (w *world) bound() time.Duration {
	slow := func(d time.Duration) time.Duration { return time.Duration(float64(d) / (1 - w.sc.Drift)) }
	p, longest := w.sc.longestP(), w.longest
	wait := longest*3/2 + 50*time.Millisecond // damaged, a stranger's, a stopper, or not known by all
	m := w.last()
	lineages := make(map[string]bool)
	for _, old := range w.history { // to a candidate of another lineage, a record is unreadable
		if old.rec != nil && old.rec.Lineage != "" {
			lineages[old.rec.Lineage] = true
		}
	}
	if len(lineages) < 2 && !w.damaged && m.rec != nil && m.rec.Epoch >= w.maxEpoch && !m.rec.Stopper() {
		d := m.rec.LeaseDuration
		for _, old := range w.history { // the longest that this term was seen with
			if old.rec != nil && old.rec.Epoch == m.rec.Epoch {
				d = max(d, old.rec.LeaseDuration)
			}
		}
		wait = d + time.Duration(float64(d)*w.sc.Drift) + 50*time.Millisecond
	}
	b := slow(wait+p) + time.Second + restartMax
	b += w.sc.longestD()/3 + 100*time.Millisecond // a request that hangs
	if w.sc.Flavour.peers() {
		b += longest + time.Second // an announcement that hangs, before which a fresh process does not contend
	}
	for _, q := range w.processes {
		if q.term != nil && !q.crashed && !q.ended { // it may be draining, and run out
			b += slow(q.slot.opts.Drain + longest)
			break
		}
	}
	if m.rec != nil && m.rec.PreferredHolder != "" || w.now()-w.lastHandover < slow(longest+w.sc.longestDrain()+longest) {
		b += slow(longest) // kept for a preferred holder, from which the others abstain
	}
	for i := range w.sc.Slots {
		if w.sc.Slots[i].Cluster != "" { // the seat is taken over, or a copy of the cluster is believed to be there
			b += slow(3*longest + 6*p)
			break
		}
	}
	return b + max(0, w.lastArrival-w.now())
}

// trace keeps the last lines, formatted only when they are needed.
type trace struct {
	ring [120]struct {
		at     time.Duration
		format string
		args   []any
	}
	n    int
	hash uint64
}

// note adds a line to the trace.
func (w *world) note(format string, args ...any) {
	t := &w.trace
	l := &t.ring[t.n%len(t.ring)]
	t.n++
	l.at, l.format, l.args = w.now(), format, args
	t.hash += newRNG(uint64(l.at), uint64(len(format))).next() // the order within one instant may vary
	if w.sc.Print != nil {
		w.sc.Print(fmt.Sprintf("%12.6f  ", l.at.Seconds()) + fmt.Sprintf(format, args...))
	}
}

func (t *trace) lines() []string {
	var out []string
	for i := max(0, t.n-len(t.ring)); i < t.n; i++ {
		l := t.ring[i%len(t.ring)]
		out = append(out, fmt.Sprintf("%12.6f  ", l.at.Seconds())+fmt.Sprintf(l.format, l.args...))
	}
	return out
}

// short version of an error, for a trace.
func brief(err error) string {
	if err == nil {
		return ""
	}
	return strings.TrimPrefix(err.Error(), "tenure: ")
}

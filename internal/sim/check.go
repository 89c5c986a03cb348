// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"tenure.dev"
)

// The checks, by the invariant that they are about.
const (
	checkOneTerm  = "I1 one term"
	checkLate     = "I1 a term begins with R left"
	checkEpoch    = "I2 epochs only grow"
	checkMutation = "I3 mutations inside the term"
	checkDeadline = "I3 a term lasts D at most"
	checkReleased = "I7 released means stopped"
	checkWriter   = "a candidate writes for itself only"
	checkNeedless = "needless loss"
	checkLiveness = "liveness"
	checkStable   = "liveness: a term ends without a fault"
	checkHot      = "no hot loop"
	checkEnds     = "goroutines end"
)

// hotLimit is how many requests to the lock a process may make in a second: a
// preferred holder polls every 200 ms, a failing one from every P/20 up to P,
// and a watch may poke every 50 ms.
const hotLimit = 40

// A Finding is a check that failed.
type Finding struct {
	Check string
	At    time.Duration
	What  string
}

func (f *Finding) String() string {
	return fmt.Sprintf("%s, at %.6fs: %s", f.Check, f.At.Seconds(), f.What)
}

// find notes the first finding; what follows may be its consequence.
func (w *world) find(check, format string, args ...any) {
	if w.found != nil {
		return
	}
	w.found = &Finding{Check: check, At: w.now(), What: fmt.Sprintf(format, args...)}
	w.note("FINDING %s", w.found)
}

// observe takes the events of an elector, in its own goroutine.
func (p *process) observe(e tenure.Event) {
	w := p.w
	status := p.elector.Status()
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.crashed {
		return
	}
	switch e.Kind {
	case tenure.EventBegan:
		w.began(p, e, status.Durations.RenewDeadline)
	case tenure.EventRenewed:
		if p.term != nil {
			p.term.until = e.Deadline.Sub(clockBase)
			w.checkBound(p, p.term)
			w.alone(p, "is extended")
		}
	case tenure.EventStopping:
		w.stopping(p, e)
	case tenure.EventEnded:
		if p.term != nil {
			p.term.over = true
		}
		w.note("%s: term %d is over: %s", p.name(), e.Epoch, brief(e.Err))
	case tenure.EventReleased:
		w.note("%s: released term %d for %q", p.name(), e.Epoch, e.Holder)
	case tenure.EventOrdered:
		w.lastHandover = w.now()
		w.note("%s: ordered to hand over to %q", p.name(), e.Holder)
	case tenure.EventFollowing:
		w.note("%s: sees %q, epoch %d", p.name(), e.Holder, e.Epoch)
	default:
		w.note("%s: %s: %s", p.name(), e.Kind, brief(e.Err))
	}
}

// began checks the beginning of a term.
func (w *world) began(p *process, e tenure.Event, r time.Duration) {
	w.stats.Terms++
	if w.maxEpoch > 0 {
		w.stats.Failovers++
	}
	t := &term{epoch: e.Epoch, until: e.Deadline.Sub(clockBase), begun: w.now()}
	w.note("%s: term %d begins, until %v of its clock", p.name(), t.epoch, t.until)
	p.term = t
	if left := t.until - p.slot.machine.now().Mono; left < r {
		w.find(checkLate, "%s: term %d begins with %v left, less than R = %v", p.name(), t.epoch, left, r)
	}
	if c := p.slot.cluster(); c != "" && c == w.maxCluster && t.epoch == w.maxEpoch {
		w.stats.Continued++
	} else {
		w.checkEpoch(p, t)
	}
	if t.epoch > w.maxEpoch {
		w.maxEpoch, w.maxCluster = t.epoch, p.slot.cluster()
	}
	p.seen = max(p.seen, t.epoch)
	w.checkBound(p, t)
	w.alone(p, "begins")
}

// checkEpoch is I2 for a term that begins. Not claimed: every witness lost. A
// process that was never shown as high an epoch, that replaces a record which
// does not carry it any more, and whose clock (the store's, where it has one)
// is behind the one that the highest epoch was taken from, cannot know better.
func (w *world) checkEpoch(p *process, t *term) {
	if t.epoch > w.maxEpoch {
		return
	}
	if p.seen < w.maxEpoch && p.acquired.unix < w.maxEpoch {
		w.stats.NoWitness++
		w.note("%s: no witness was left of epoch %d", p.name(), w.maxEpoch)
		return
	}
	w.find(checkEpoch, "%s: term %d begins after a term of epoch %d (it has been shown %d, its clock read %d)",
		p.name(), t.epoch, w.maxEpoch, p.seen, p.acquired.unix)
}

// checkBound is what a term is: it ends D after the sending of a write of its
// holder's that was applied, at the latest, in true time. On a machine that was
// suspended the deadline by the monotonic clock is too late, and the wall clock
// ends the term: there the mutations are what is checked.
func (w *world) checkBound(p *process, t *term) {
	if p.slot.suspended {
		return
	}
	end := p.slot.machine.trueAt(t.until)
	if bound := p.bounds[t.epoch]; end > bound+time.Microsecond {
		w.find(checkDeadline, "%s: term %d lasts until %.6fs, D after the sending of its last applied write is %.6fs",
			p.name(), t.epoch, end.Seconds(), bound.Seconds())
	}
}

// alone is I1: nobody else has a valid term. A term that is extended to an
// instant that is over, because its process was frozen, is not valid itself.
func (w *world) alone(p *process, what string) {
	if p.stock == nil && !p.valid() {
		return
	}
	for _, q := range w.processes {
		if q == p || q.ended || q.crashed {
			continue
		}
		if c := p.slot.cluster(); c != "" && c == q.slot.cluster() && p.term != nil && q.term != nil && p.term.epoch == q.term.epoch {
			continue // the cluster's one term, which a replica goes on with
		}
		if p.stock != nil && q.stock != nil {
			continue // two stock electors may overlap: they count from the answer
		}
		if q.valid() || q.stock != nil && q.stock.leads {
			if w.now() < w.unclaimed {
				w.stats.Unclaimed++
				w.note("not claimed: %s leads beside %s", p.name(), q.name())
				continue
			}
			w.find(checkOneTerm, "the term of %s %s while the term of %s is valid", p.name(), what, q.name())
		}
	}
}

// stopping checks why a term ends.
func (w *world) stopping(p *process, e tenure.Event) {
	w.note("%s: term %d stops: %s", p.name(), e.Epoch, brief(e.Err))
	if p.term != nil {
		p.term.stopped = true
	}
	if w.settled && !w.ending && !errors.Is(e.Err, tenure.ErrWorkEnded) { // which it may do at any time
		w.find(checkStable, "%s: term %d ends long after the last fault: %v", p.name(), e.Epoch, e.Err)
	}
	var lost *tenure.LostError
	if errors.As(e.Err, &lost) && p.valid() && w.undisputed(p, e.Epoch) {
		w.find(checkNeedless, "%s: term %d ends with %q, but the record is its own, and was since it was read", p.name(), e.Epoch, e.Err)
	}
}

// undisputed reports whether the record was the process' own, of that term,
// ever since it last asked for it.
func (w *world) undisputed(p *process, epoch int64) bool {
	for i := len(w.history) - 1; i >= 0; i-- {
		m := w.history[i]
		if m.owner != p || !m.held() || m.rec.Epoch != epoch {
			return false
		}
		if m.at <= p.readAt {
			return true
		}
	}
	return false
}

// written applies a conditional write by a candidate.
func (w *world) written(p *process, value []byte, sent time.Duration) tenure.Version {
	prev := w.last()
	m := w.putLock(w.stored(value), p, false)
	rec := m.rec
	w.note("store: %s has written %s", p.name(), short(value))
	if rec == nil {
		w.find(checkWriter, "%s writes a record that does not parse: %s", p.name(), short(value))
		return m.version
	}
	switch {
	case rec.Released():
		if p.working > 0 {
			w.find(checkReleased, "%s releases while its work goes on", p.name())
		}
	case rec.HolderIdentity == "create/"+p.slot.identity:
		m.owner = nil
		if prev.value != nil {
			w.find(checkWriter, "%s puts a stopper over %s", p.name(), short(prev.value))
		}
	case rec.HolderIdentity != p.slot.identity || rec.ClusterUID != p.uid:
		w.find(checkWriter, "%s writes a record in the name of %q", p.name(), rec.HolderIdentity)
	default:
		p.bounds[rec.Epoch] = max(p.bounds[rec.Epoch], sent+rec.LeaseDuration)
		if p.acquired.epoch != rec.Epoch {
			p.acquired = acquisition{epoch: rec.Epoch, unix: w.epochTime(p, sent)}
		}
	}
	if old := prev.rec; old != nil && rec.Epoch < old.Epoch && old.Epoch <= tenure.MaxPlausibleEpoch {
		w.find(checkEpoch, "%s writes epoch %d over epoch %d: %s", p.name(), rec.Epoch, old.Epoch, short(prev.value))
	}
	w.deleteCreated(prev, m)
	w.freezeTaker(p, prev, m)
	return m.version
}

// epochTime is the time in seconds that an acquisition sent then can have taken
// its epoch from.
func (w *world) epochTime(p *process, sent time.Duration) int64 {
	if w.sc.Flavour.clock() {
		return w.storeTime().Add(sent - w.now() - time.Second).Unix()
	}
	return p.slot.machine.look(sent).Wall / int64(time.Second)
}

// hasRead notes what an answer has shown to the process.
func (p *process) hasRead(m *moment, sent time.Duration) {
	p.readAt = sent
	if m != nil && m.rec != nil {
		p.seen = max(p.seen, m.rec.Epoch)
	}
}

// mutation checks what a client fence lets through.
func (w *world) mutation(p *process, t *tenure.Term, passes, alive bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.crashed {
		return
	}
	mono := p.slot.machine.now().Mono
	if !passes {
		// The loop may be behind for an instant when the process was frozen.
		if alive && mono >= t.Deadline().Sub(clockBase) && w.now()-p.resumed > 10*time.Millisecond {
			w.find(checkMutation, "%s: the context of term %d outlives it", p.name(), t.Epoch())
		}
		return
	}
	w.stats.Mutations++
	if bound := p.bounds[t.Epoch()]; w.now() > bound {
		w.find(checkMutation, "%s: a mutation passes in term %d, %v too late", p.name(), t.Epoch(), w.now()-bound)
	}
	w.alone(p, "passes a mutation")
}

// checkRate counts the requests to the lock.
func (w *world) checkRate(p *process) {
	if s := w.now().Truncate(time.Second); s != p.second {
		p.second, p.inSecond = s, 0
	}
	p.inSecond++
	w.stats.MaxRate = max(w.stats.MaxRate, p.inSecond)
	if p.inSecond > hotLimit {
		w.find(checkHot, "%s makes more than %d requests in a second", p.name(), hotLimit)
	}
}

// Stats is what a run has seen.
type Stats struct {
	Faults      map[string]int // by kind, those of the schedule
	Requests    map[string]int // by kind, those of single requests
	Terms       int
	Failovers   int
	Continued   int // terms that a replica went on with
	Mutations   int
	requests    int
	MaxTakeover time.Duration // from the last fault to a leader
	MaxRate     int           // requests of a process in a second
	Unclaimed   int           // two leaders after a restore of a released record
	NoWitness   int           // epochs that nobody could know
	Duplicates  int           // Runs ended for a duplicate identity
	Virtual     time.Duration
	Scenarios   int
}

func newStats() Stats {
	return Stats{Faults: make(map[string]int), Requests: make(map[string]int), Scenarios: 1}
}

func (s *Stats) request(k noiseKind) { s.Requests[noiseNames[k]]++ }

// Injected is the number of faults of the schedule.
func (s *Stats) Injected() int { return total(s.Faults) }

func total(m map[string]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

// Add adds another run.
func (s *Stats) Add(o *Stats) {
	for k, v := range o.Faults {
		s.Faults[k] += v
	}
	for k, v := range o.Requests {
		s.Requests[k] += v
	}
	s.Terms += o.Terms
	s.Failovers += o.Failovers
	s.Continued += o.Continued
	s.Mutations += o.Mutations
	s.requests += o.requests
	s.MaxTakeover = max(s.MaxTakeover, o.MaxTakeover)
	s.MaxRate = max(s.MaxRate, o.MaxRate)
	s.Unclaimed += o.Unclaimed
	s.NoWitness += o.NoWitness
	s.Duplicates += o.Duplicates
	s.Virtual += o.Virtual
	s.Scenarios += o.Scenarios
}

func (s *Stats) String() string {
	return fmt.Sprintf("%d scenarios of %v in all, %d requests, %d terms (%d that a replica went on with), %d failovers, %d mutations\n"+
		"faults of the schedule: %d (%s)\nfaults of single requests: %d (%s)\n"+
		"longest takeover after the last fault %v; most requests of a process in a second %d; duplicate identities refused %d\n"+
		"not claimed: %d checks within D of the restore of a released record; %d epochs without a witness",
		s.Scenarios, s.Virtual.Round(time.Second), s.requests, s.Terms, s.Continued, s.Failovers, s.Mutations,
		s.Injected(), list(s.Faults), total(s.Requests), list(s.Requests),
		s.MaxTakeover.Round(time.Millisecond), s.MaxRate, s.Duplicates, s.Unclaimed, s.NoWitness)
}

func list(m map[string]int) string {
	var parts []string
	for _, k := range sorted(m) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}

// A Report is the outcome of a scenario.
type Report struct {
	Scenario *Scenario
	Finding  *Finding // nil if all checks passed
	Stats    Stats
	Hash     uint64 // of all that happened
	Trace    []string
}

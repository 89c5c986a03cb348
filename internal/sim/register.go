// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"tenure.dev"
)

var (
	errStore   = errors.New("sim: the store answers with an error")
	errNetwork = errors.New("sim: the connection was closed")
)

// busyError asks to be left alone.
type busyError struct{ after time.Duration }

func (e *busyError) Error() string             { return "sim: too many requests" }
func (e *busyError) RetryAfter() time.Duration { return e.after }

// lane is a sequence of requests of a process that are made one after another,
// so that their fates do not depend on what else happens at the same time.
type lane int

const (
	laneLock lane = iota
	lanePeers
	laneWatch
	laneSeat
	lanes
)

// fate is what happens to one request.
type fate struct {
	before, after time.Duration // on the way there, on the way back
	refused       bool          // answered with an error, not applied
	lost          bool          // never arrives
	answerLost    bool          // applied, but the answer does not come
	hangs         bool          // what is lost is noticed only by the timeout
	// early: a process that is frozen meanwhile has got the answer already, and
	// meets the gate when it acts on it.
	early bool
	err   error
}

// draw decides about the next request of the process on that lane. It is called
// under world.mu.
func (w *world) draw(p *process, l lane) fate {
	p.sent[l]++
	r := newRNG(w.sc.Seed, 1, uint64(p.slot.n), uint64(p.n), uint64(l), p.sent[l])
	lo, hi := w.sc.Delay[0], w.sc.Delay[1]
	f := fate{before: r.dur(lo, hi), after: r.dur(lo, hi), err: errNetwork, hangs: r.chance(0.6), early: r.chance(0.5)}
	if r.chance(0.2) {
		f.err = &busyError{after: r.dur(0, 3*time.Second)}
	}
	kind := w.noiseFor(p.slot, r)
	if w.quiet {
		f.before, f.after = r.dur(time.Millisecond, 10*time.Millisecond), r.dur(time.Millisecond, 10*time.Millisecond)
		return f
	}
	switch kind {
	case noNoise:
		return f
	case noiseErrors:
		f.refused, f.err = true, errStore
	case noiseLostRequests:
		f.lost = true
	case noiseLostAnswers:
		f.answerLost = true
	case noiseSlow: // seconds, up to and past the timeout of a request
		f.before, f.after = r.dur(lo, w.sc.D*35/100), r.dur(lo, w.sc.D*35/100)
		if r.chance(0.5) {
			f.before = r.dur(lo, hi)
		} else if r.chance(0.5) {
			f.after = r.dur(lo, hi)
		}
	case noiseLate: // arrives after its caller has given up
		f.before = r.dur(w.sc.D*15/100, w.sc.D*3/2)
	}
	w.stats.request(kind)
	return f
}

// do makes one request: it travels, is applied at one instant, and its answer
// travels back. A caller that is gone does not stop a request on its way.
// Apply is called under world.mu.
func (w *world) do(ctx context.Context, p *process, l lane, write bool, apply func()) error {
	p.gate(rankLock + int(l))
	w.mu.Lock()
	f := w.draw(p, l)
	w.stats.requests++
	if l == laneLock {
		w.checkRate(p)
	}
	if write && !f.lost && !f.refused {
		w.lastArrival = max(w.lastArrival, w.now()+f.before)
	}
	w.mu.Unlock()
	start := time.Now()
	arrived := false
	arrive := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !f.lost && !f.refused && !w.cut(p.slot) {
			arrived = true
			apply()
		}
	}
	if !sleep(ctx, f.before) {
		if left := f.before - time.Since(start); left > 0 {
			time.AfterFunc(left, arrive)
		}
		p.gate(rankLock + int(l))
		return ctx.Err()
	}
	arrive()
	fails := !arrived || f.answerLost
	if f.refused && !w.cutNow(p.slot) {
		p.gate(rankLock + int(l))
		return f.err
	}
	if fails && f.hangs {
		<-ctx.Done()
		p.gate(rankLock + int(l))
		return ctx.Err()
	}
	ok := sleep(ctx, f.after)
	if ok && !fails && f.early && !w.cutNow(p.slot) {
		return nil
	}
	p.gate(rankLock + int(l))
	switch {
	case !ok:
		return ctx.Err()
	case fails:
		return f.err
	case w.cutNow(p.slot): // the answer does not come through
		<-ctx.Done()
		p.gate(rankLock + int(l))
		return ctx.Err()
	}
	return nil
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// register is the store as one process sees it.
type register struct {
	w   *world
	p   *process
	key string
}

func (r *register) lane() lane {
	if r.key == lockKey {
		return laneLock
	}
	return lanePeers
}

// Read implements [tenure.Register].
func (r *register) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	v, err := r.read(ctx)
	return v.Value, v.Version, err
}

func (r *register) read(ctx context.Context) (v tenure.DatedValue, err error) {
	w := r.w
	// Not the result itself: a request that was given up may still arrive.
	var got tenure.DatedValue
	var seen *moment
	start := w.now()
	err = w.do(ctx, r.p, r.lane(), false, func() {
		c := w.cell(r.key)
		got = tenure.DatedValue{Value: c.value, Version: c.version, Written: c.stamp, Now: w.storeTime()}
		if r.key == lockKey {
			seen = w.last()
		}
	})
	if err != nil {
		return tenure.DatedValue{}, err
	}
	v = got
	if r.key == lockKey {
		w.mu.Lock()
		r.p.hasRead(seen, start)
		w.mu.Unlock()
		v.Value = w.presented(v.Value)
	}
	switch {
	case v.Version == "":
		return tenure.DatedValue{}, tenure.ErrNotExist
	case len(v.Value) > tenure.MaxRecordSize:
		v.Value = nil
		return v, tenure.ErrValueTooLarge
	}
	v.Value = slices.Clone(v.Value)
	return v, nil
}

// Write implements [tenure.Register].
func (r *register) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	w := r.w
	value = slices.Clone(value)
	var version tenure.Version
	var conflict error
	start := w.now()
	err := w.do(ctx, r.p, r.lane(), true, func() {
		c := w.cell(r.key)
		if c.version != old {
			conflict = tenure.ErrConflict
			return
		}
		if r.key != lockKey {
			version = w.put(r.key, value).version
			return
		}
		version = w.written(r.p, value, start)
	})
	if err != nil {
		return "", err
	}
	return version, conflict
}

// The optional interfaces, each a part that a flavour of store is made of.
type (
	watchPart struct{ r *register }
	clockPart struct{ r *register }
	datesPart struct{ r *register }
	peersPart struct{ r *register }
	stockPart struct{}
)

// Watch implements [tenure.Watcher]. It is late, early or wrong at times.
func (p watchPart) Watch(ctx context.Context, old tenure.Version) error {
	w, proc := p.r.w, p.r.p
	proc.gate(rankWatch)
	w.mu.Lock()
	proc.sent[laneWatch]++
	rnd := newRNG(w.sc.Seed, 2, uint64(proc.slot.n), uint64(proc.n), proc.sent[laneWatch])
	c := w.cell(lockKey)
	version, changed := c.version, c.changed
	w.mu.Unlock()
	limit := time.NewTimer(rnd.dur(w.sc.D/2, w.sc.D*4))
	defer limit.Stop()
	if version == old {
		select {
		case <-changed:
		case <-limit.C:
		case <-ctx.Done():
			proc.gate(rankWatch)
			return ctx.Err()
		}
	}
	ok := sleep(ctx, rnd.dur(time.Millisecond, 100*time.Millisecond))
	proc.gate(rankWatch)
	switch {
	case !ok:
		return ctx.Err()
	case w.cutNow(proc.slot):
		return errNetwork
	}
	return nil
}

// Now implements [tenure.Clock].
func (p clockPart) Now(ctx context.Context) (time.Time, error) {
	var now time.Time
	if err := p.r.w.do(ctx, p.r.p, laneLock, false, func() { now = p.r.w.storeTime() }); err != nil {
		return time.Time{}, err
	}
	return now, nil
}

// ReadDated implements [tenure.Dater].
func (p datesPart) ReadDated(ctx context.Context) (tenure.DatedValue, error) { return p.r.read(ctx) }

// Sibling implements [tenure.Siblinger].
func (p peersPart) Sibling(suffix string) tenure.Register {
	return &register{w: p.r.w, p: p.r.p, key: suffix}
}

// List implements [tenure.Lister].
func (p peersPart) List(ctx context.Context, prefix string) ([]string, error) {
	var keys []string
	err := p.r.w.do(ctx, p.r.p, lanePeers, false, func() { keys = p.r.w.siblings(prefix) })
	if err != nil {
		return nil, err
	}
	slices.Sort(keys)
	return keys, nil
}

// StockElectors implements [tenure.StockElectors].
func (stockPart) StockElectors() bool { return true }

// A flavour of store has some of the optional interfaces.
type flavour string

const (
	plain        flavour = "plain"
	withWatch    flavour = "watch"
	withClock    flavour = "clock"
	withPeers    flavour = "peers"
	withAll      flavour = "watch+clock+peers"
	withDates    flavour = "clock+dates"
	stockLease   flavour = "stock"
	stockWatched flavour = "stock+watch"
)

func (f flavour) peers() bool { return f == withPeers || f == withAll }
func (f flavour) clock() bool { return f == withClock || f == withAll || f == withDates }
func (f flavour) stock() bool { return f == stockLease || f == stockWatched }

// open returns the lock's register for a process.
func (w *world) open(p *process) tenure.Register {
	r := &register{w: w, p: p, key: lockKey}
	switch w.sc.Flavour {
	case withWatch:
		return struct {
			*register
			watchPart
		}{r, watchPart{r}}
	case withClock:
		return struct {
			*register
			clockPart
		}{r, clockPart{r}}
	case withDates:
		return struct {
			*register
			clockPart
			datesPart
		}{r, clockPart{r}, datesPart{r}}
	case withPeers:
		return struct {
			*register
			peersPart
		}{r, peersPart{r}}
	case withAll:
		return struct {
			*register
			watchPart
			clockPart
			peersPart
		}{r, watchPart{r}, clockPart{r}, peersPart{r}}
	case stockLease:
		return struct {
			*register
			stockPart
		}{r, stockPart{}}
	case stockWatched:
		return struct {
			*register
			watchPart
			stockPart
		}{r, watchPart{r}, stockPart{}}
	default:
		return r
	}
}

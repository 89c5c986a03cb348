// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tenure.dev"
)

// open opens the lock twice, as two processes would have it.
func (d *doctor) open(ctx context.Context, f *lockFlags, wrong *error) outcome {
	var o tenure.Options
	var second *tenure.Lock
	lock, err := f.openOnce(ctx)
	if err == nil {
		second, err = f.openOnce(ctx)
	}
	if err == nil {
		o, err = checkedOptions(lock)
	}
	var coded *codedError
	switch {
	case err == nil:
		out := found(tenure.FindingOK, "", "the driver has what it needs to begin: settings and credentials")
		out.set = func(d *doctor) { d.lock, d.opt, d.other = lock, o, second.Register }
		return out
	case errors.Is(err, tenure.ErrURL), errors.As(err, &coded) && coded.code == exitUse:
		out := found(levelFailed, "", "%s", message(err))
		out.set = func(*doctor) { *wrong = &codedError{exitUse, err} }
		return out
	default:
		return unreached("opening the lock", err)
	}
}

// read reads the lock once, which needs name, route, certificate, credentials
// and the right to read.
func (d *doctor) read(ctx context.Context) outcome {
	v, err := tenure.Look(ctx, d.lock.Register)
	if err != nil {
		return unreached("reading the lock", err)
	}
	doc := describe(d.lock.Name, v, d.opt, time.Now())
	switch v.State {
	case tenure.RecordUnreadable, tenure.RecordImplausible:
		return found(tenure.FindingWarning, "see tenure status", "the store answers; of the lock: %s", doc.summary())
	default:
		return found(tenure.FindingOK, "", "the store answers; of the lock: %s", doc.summary())
	}
}

// inspect asks the driver what it thinks of the store's configuration.
func (d *doctor) inspect(ctx context.Context) outcome {
	inspector, ok := d.lock.Register.(tenure.Inspector)
	if !ok {
		return found(tenure.FindingOK, "", "this store has none that matters")
	}
	findings := inspector.Inspect(ctx)
	if len(findings) == 0 {
		return found(tenure.FindingOK, "", "nothing in it concerns a lock")
	}
	return outcome{findings: findings}
}

// clockDoc is how far the store's clock is from this one's: ahead, if positive.
type clockDoc struct {
	OffsetSeconds float64 `json:"offsetSeconds"`
	ErrorSeconds  float64 `json:"errorSeconds"`
}

// Clocks further apart than clockWarn are worth a look, and keep
// takeover=storeclock from working; beyond clockBad stores refuse signed requests.
const (
	clockWarn = time.Minute
	clockBad  = 15 * time.Minute
	clockLook = 5 // readings, of which the quickest counts
)

func (d *doctor) clock(ctx context.Context) outcome {
	store, ok := d.lock.Register.(tenure.Clock)
	if !ok {
		return found(tenure.FindingNote, "", "this store tells no time: epochs come from the clocks of the candidates")
	}
	var offset, slack time.Duration
	whole, got := true, 0
	for range clockLook {
		sent := time.Now()
		now, err := store.Now(ctx)
		trip := time.Since(sent)
		if err != nil {
			if got > 0 {
				break
			}
			return unreached("reading the store's clock", err)
		}
		if got == 0 || trip/2 < slack {
			offset, slack = now.Sub(sent.Add(trip/2)), trip/2
		}
		whole = whole && now.Nanosecond() == 0
		got++
	}
	if whole { // a time to the second is that of the second's begin
		offset, slack = offset+time.Second/2, slack+time.Second/2
	}
	out := judgeClock(offset, slack)
	out.set = func(d *doctor) { d.doc.Clock = &clockDoc{seconds(offset), seconds(slack)} }
	return out
}

func judgeClock(offset, slack time.Duration) outcome {
	text := fmt.Sprintf("the store's is %s ± %.3fs against this host's", signed(offset), slack.Seconds())
	const next = "have both set by a time service (chrony, systemd-timesyncd)"
	switch apart := offset.Abs() - slack; {
	case apart > clockBad:
		return found(tenure.FindingWarning, next, "%s: no lock depends on that, but many stores refuse signed requests then", text)
	case apart > clockWarn:
		return found(tenure.FindingWarning, next, "%s: no lock depends on that, but takeover=storeclock does not act then", text)
	default:
		return found(tenure.FindingOK, "", "%s", text)
	}
}

func signed(d time.Duration) string {
	if d < 0 {
		return fmt.Sprintf("%.3fs behind", -d.Seconds())
	}
	return fmt.Sprintf("%.3fs ahead", d.Seconds())
}

// beside returns the key that doctor writes, by both instances, or nil.
func (d *doctor) beside() (a, b tenure.Register) {
	first, ok := d.lock.Register.(tenure.Siblinger)
	second, ok2 := d.other.(tenure.Siblinger)
	if !ok || !ok2 {
		return nil, nil
	}
	suffix := ".probe/doctor." + hostKey()
	return first.Sibling(suffix), second.Sibling(suffix)
}

// probeAgain is how often a probe is made again that met a failing request.
const probeAgain = 10

func (d *doctor) probe(ctx context.Context) outcome {
	reg, _ := d.beside()
	if reg == nil {
		return found(levelFailed, "use a store that keeps other keys beside the lock",
			"this store keeps nothing beside the lock, so whether its conditional writes work cannot be found out without risk")
	}
	if same, err := d.isLock(ctx, reg); err != nil {
		return unreached("reading beside the lock", err)
	} else if same {
		return found(tenure.FindingUnsafe, "use another store, or report a fault of its driver", "a key beside the lock is the lock itself: nothing was written")
	}
	err := tenure.Probe(ctx, reg, writeInterval(reg))
	for range probeAgain {
		if !errors.Is(err, tenure.ErrCannotProbe) || pause(ctx, 100*time.Millisecond+writeInterval(reg)) != nil {
			break
		}
		err = tenure.Probe(ctx, reg, writeInterval(reg))
	}
	var unsafe *tenure.UnsafeStoreError
	switch {
	case err == nil:
		return found(tenure.FindingOK, "", "a create over a value and a stale write conflict, versions never repeat, reads see what was written")
	case errors.As(err, &unsafe):
		return found(tenure.FindingUnsafe, "use another store, or one that honours conditional writes",
			"it failed the check %q: %s; it could have two leaders", unsafe.Check, unsafe.Detail)
	default:
		return unreached("writing beside the lock", err)
	}
}

// isLock reports whether a key beside the lock shows the lock's record.
func (d *doctor) isLock(ctx context.Context, beside tenure.Register) (bool, error) {
	value, _, err := beside.Read(ctx)
	if err != nil {
		return false, orAbsent(err)
	}
	own, _, err := d.lock.Register.Read(ctx)
	return err == nil && bytes.Equal(value, own), orAbsent(err)
}

// orAbsent is err, unless it says that nothing usable is there.
func orAbsent(err error) error {
	if errors.Is(err, tenure.ErrNotExist) || errors.Is(err, tenure.ErrValueTooLarge) {
		return nil
	}
	return err
}

// writeInterval is the time that a store needs between two writes of a key.
func writeInterval(reg tenure.Register) time.Duration {
	if l, ok := reg.(tenure.WriteLimiter); ok {
		return l.MinWriteInterval()
	}
	return 0
}

// mayWriteLock finds out whether this account may write the lock itself, by a
// creation where there is a record: a sound store refuses that as a conflict, and
// one that refuses the right says something else. The value sent is the one that
// is there.
func (d *doctor) mayWriteLock(ctx context.Context) outcome {
	value, _, err := d.lock.Register.Read(ctx)
	switch {
	case errors.Is(err, tenure.ErrNotExist):
		return found(tenure.FindingNote, "run doctor again after tenure init",
			"there is no record yet, so whether this account may write it is not known; it may write beside it")
	case err != nil:
		return unreached("reading the lock", err)
	}
	_, err = d.lock.Register.Write(ctx, value, "")
	switch {
	case errors.Is(err, tenure.ErrConflict):
		return found(tenure.FindingOK, "", "this account may write it; nothing was changed")
	case err == nil:
		if _, _, err := d.lock.Register.Read(ctx); err == nil {
			return found(tenure.FindingUnsafe, "use another store", "a creation over the lock's record was answered with success")
		}
		return found(levelFailed, "run doctor again", "the record was deleted while doctor looked at it")
	default:
		return unreached("writing the lock", err)
	}
}

// values finds out whether a record comes back as it was written, at the
// largest size that records have.
func (d *doctor) values(ctx context.Context) outcome {
	reg, _ := d.beside()
	_, version, err := reg.Read(ctx)
	if orAbsent(err) != nil {
		return unreached("reading beside the lock", err)
	}
	value := raceBody(newNonce(), 0)
	value = append(value, bytes.Repeat([]byte("\n \t"), (tenure.MaxRecordSize-len(value))/3)...)
	if err := pause(ctx, writeInterval(reg)); err != nil {
		return unreached("waiting", err)
	}
	written, err := reg.Write(ctx, value, version)
	if err != nil {
		return unreached(fmt.Sprintf("writing %d bytes", len(value)), err)
	}
	got, version, err := reg.Read(ctx)
	switch {
	case err != nil:
		return unreached(fmt.Sprintf("reading %d bytes", len(value)), err)
	case version == written && !bytes.Equal(got, value):
		return found(tenure.FindingUnsafe, "use another store, or report a fault of its driver",
			"%d bytes were written, and %d others were read with the version of that write", len(value), len(got))
	}
	return found(tenure.FindingOK, "", "a record of %d bytes comes back as it was written", len(value))
}

// candidates finds out whether the candidates can be listed.
func (d *doctor) candidates(ctx context.Context) outcome {
	if _, ok := d.lock.Register.(tenure.Lister); !ok {
		return found(tenure.FindingNote, "", "this store cannot list keys: status does not name the standbys, and settings are not compared")
	}
	all, err := tenure.Candidates(ctx, d.lock.Register)
	if err != nil {
		return unreached("listing the candidates", err)
	}
	live := 0
	for _, c := range all {
		if c.Live(time.Now()) {
			live++
		}
	}
	return found(tenure.FindingOK, "", "can be listed; %d heard of within 3 minutes", live)
}

// latencyDoc is how long requests took, made one after another.
type latencyDoc struct {
	P50Seconds float64 `json:"p50Seconds"`
	P99Seconds float64 `json:"p99Seconds"`
	MaxSeconds float64 `json:"maxSeconds"`
	Requests   int     `json:"requests"`
	p99        time.Duration
}

// maxSamples is how many requests of each kind are measured, at most.
const maxSamples = 50

// latency measures reads of the lock, and writes beside it.
func (d *doctor) latency(ctx context.Context) outcome {
	share := d.timeout * 2 / 5
	reads := samples(ctx, share, 0, func() error {
		_, _, err := d.lock.Register.Read(ctx)
		return orAbsent(err)
	})
	reg, _ := d.beside()
	var version tenure.Version
	known := false
	writes := samples(ctx, share, writeInterval(reg), func() error {
		var err error
		if !known {
			if _, version, err = reg.Read(ctx); orAbsent(err) != nil {
				return err
			}
		}
		begin := time.Now()
		version, err = reg.Write(ctx, raceBody(newNonce(), 0), version)
		known = err == nil
		if err == nil {
			return timed(time.Since(begin))
		}
		return err
	})
	if len(reads.took) == 0 || len(writes.took) == 0 {
		return unreached("measuring", errors.Join(reads.err, writes.err))
	}
	r, w := reads.summary(), writes.summary()
	out := found(tenure.FindingOK, "", "reads p50 %s, p99 %s of %d; writes p50 %s, p99 %s of %d",
		brief(r.P50Seconds), brief(r.P99Seconds), r.Requests, brief(w.P50Seconds), brief(w.P99Seconds), w.Requests)
	if n := reads.failed + writes.failed; n > 0 {
		out.findings = append(out.findings, tenure.Finding{Check: "failures", Level: tenure.FindingWarning,
			Detail: fmt.Sprintf("%d of %d requests failed, such as: %s", n, n+r.Requests+w.Requests, message(errors.Join(reads.err, writes.err))),
			Next:   "find out why: each costs time, and R allows about three in a row"})
	}
	out.set = func(d *doctor) { d.doc.ReadLatency, d.doc.WriteLatency = r, w }
	return out
}

// sampled are requests made one after another.
type sampled struct {
	took   []time.Duration
	failed int
	err    error // of the last that failed
}

// timed, as an error, is a success that took another time than the whole did.
type timed time.Duration

func (t timed) Error() string { return time.Duration(t).String() }

// samples times requests one after another, for at most d.
func samples(ctx context.Context, d, space time.Duration, request func() error) *sampled {
	s := &sampled{}
	for begin := time.Now(); len(s.took)+s.failed < maxSamples && (len(s.took) == 0 || time.Since(begin)+space < d); {
		if err := pause(ctx, space); err != nil {
			s.err = errors.Join(s.err, err)
			return s
		}
		sent := time.Now()
		err := request()
		var t timed
		switch {
		case errors.As(err, &t):
			s.took = append(s.took, time.Duration(t))
		case err == nil:
			s.took = append(s.took, time.Since(sent))
		default:
			s.failed++
			s.err = err
		}
	}
	return s
}

// summary is of at least one.
func (s *sampled) summary() *latencyDoc {
	all := slices.Sorted(slices.Values(s.took))
	at := func(q float64) time.Duration { return all[min(len(all)-1, int(q*float64(len(all))))] }
	exact := func(d time.Duration) float64 { return float64(d.Round(10*time.Microsecond)) / float64(time.Second) }
	return &latencyDoc{exact(at(0.5)), exact(at(0.99)), exact(all[len(all)-1]), len(all), at(0.99)}
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// brief is a latency for people.
func brief(seconds float64) string {
	if seconds < 0.01 {
		return fmt.Sprintf("%.1f ms", seconds*1000)
	}
	return fmt.Sprintf("%.0f ms", seconds*1000)
}

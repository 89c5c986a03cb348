// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

var (
	// ErrUnknownCandidate says that nobody of that identity has been heard of lately.
	ErrUnknownCandidate = errors.New("tenure: no such candidate")
	// ErrUnusable says that the record cannot be read, or is not ours to change.
	ErrUnusable = errors.New("tenure: the record cannot be used")
	// ErrOtherEpoch says that the lock has another epoch than the one that was named.
	ErrOtherEpoch = errors.New("tenure: the lock has another epoch")
	// ErrPaused says that nobody may take the lock, so that it cannot be handed over.
	ErrPaused = errors.New("tenure: the lock is paused")
	// ErrExists says that the lock has a record already.
	ErrExists = errors.New("tenure: the lock exists")
)

// orderTries is how often an order is written anew because the leader renewed
// in between.
const orderTries = 20

// Handover asks the leader to drain its work and release the lock to the
// candidate of identity to, or, for [AnyHolder], to whoever comes first. It is
// idempotent, blocks until the order is in the record or ctx ends, and does not
// wait for it to be carried out. Where the lock was released to that candidate
// already, nothing is left to be asked. The error wraps [ErrNoLeader] if nobody holds
// the lock, [ErrPaused] if nobody could take it, [ErrUnknownCandidate] if the store lists candidates and to is not
// among those of the last minutes, and [ErrUnusable] for a damaged record.
func Handover(ctx context.Context, reg Register, to string) (*View, error) {
	if to != AnyHolder {
		if why := badIdentity(to); why != "" {
			return nil, fmt.Errorf("tenure: handing over: identity %q %s", to, why)
		}
		if err := known(ctx, reg, to); err != nil {
			return nil, err
		}
	}
	return order(ctx, reg, func(v *View) (bool, error) {
		if v.State == RecordReleased && v.Record.PreferredHolder == to && to != AnyHolder {
			return false, nil // an order before this one is being carried out
		}
		if v.State != RecordHeld {
			return false, fmt.Errorf("tenure: handing over: %w", ErrNoLeader)
		}
		if p := v.Record.Paused; p != nil && time.Now().Before(p.Until) {
			return false, fmt.Errorf("tenure: handing over: %w until %s by %s: the leader would stop and nobody take over; resume first",
				ErrPaused, p.Until.Format(time.RFC3339), either(p.By, "somebody"))
		}
		if v.Record.HolderIdentity == to || v.Record.PreferredHolder == to {
			return false, nil
		}
		v.Record.PreferredHolder = to
		return true, nil
	})
}

// known checks that a candidate has been heard of lately.
func known(ctx context.Context, reg Register, identity string) error {
	if _, ok := reg.(Lister); !ok {
		return nil
	}
	all, err := Candidates(ctx, reg)
	if err != nil {
		return fmt.Errorf("tenure: handing over to %q: %w", identity, err)
	}
	var names []string
	for _, c := range all {
		if c.Live(time.Now()) {
			names = append(names, c.Identity)
		}
	}
	if slices.Contains(names, identity) {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("%w: %q; those heard of lately: %s", ErrUnknownCandidate, identity,
		either(strings.Join(slices.Compact(names), ", "), "none"))
}

// Live reports whether the entry is recent enough for its candidate to be
// taken for alive at now.
func (c *Candidate) Live(now time.Time) bool { return now.Sub(c.Time).Abs() < entryFresh }

// PauseLock keeps everybody from taking the lock until p.Until, which must be
// in the future and at most [MaxPause] away. The leader goes on. It is
// idempotent, and blocks until the order is in the record or ctx ends. The
// error wraps [ErrNotExist] if there is no record, and [ErrUnusable] if it is
// damaged.
func PauseLock(ctx context.Context, reg Register, p Pause) (*View, error) {
	if left := time.Until(p.Until); left <= 0 || left > MaxPause {
		return nil, fmt.Errorf("tenure: pausing: the end %s is %v away; it must be in the future and at most %v away",
			p.Until.Format(time.RFC3339), left.Round(time.Second), MaxPause)
	}
	for _, text := range []string{p.By, p.Why} {
		if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return nil, fmt.Errorf("tenure: pausing: %q has an unprintable character; write it in one line", text)
		}
	}
	p.At, p.Until = p.At.UTC().Round(time.Second), p.Until.UTC().Round(time.Second)
	return order(ctx, reg, func(v *View) (bool, error) {
		if old := v.Record.Paused; old != nil && *old == p {
			return false, nil
		}
		v.Record.Paused = &p
		return true, nil
	})
}

// ResumeLock ends a pause. It is idempotent, and blocks until that is in the
// record or ctx ends; its errors are those of [PauseLock].
func ResumeLock(ctx context.Context, reg Register) (*View, error) {
	return order(ctx, reg, func(v *View) (bool, error) {
		if v.Record.Paused == nil {
			return false, nil
		}
		v.Record.Paused = nil
		return true, nil
	})
}

// order changes what anybody may change of a record, keeping its nonce, D and
// epoch, until that has happened for certain.
func order(ctx context.Context, reg Register, change func(*View) (bool, error)) (*View, error) {
	var last error
	for range orderTries {
		v, err := Look(ctx, reg)
		if err != nil {
			return nil, err
		}
		switch v.State {
		case RecordHeld, RecordReleased, RecordStopper:
		case RecordAbsent:
			return v, fmt.Errorf("tenure: giving an order: there is no such lock: %w", ErrNotExist)
		default:
			return v, fmt.Errorf("tenure: giving an order: %w: %w", ErrUnusable, v.Why)
		}
		v.Record = v.Record.clone()
		if changed, err := change(v); err != nil || !changed {
			return v, err
		}
		v.Record.Orders++
		value, err := v.Record.Marshal()
		if err != nil {
			return v, err
		}
		if v.Version, err = reg.Write(ctx, value, v.Version); err == nil {
			return v, nil
		}
		// Refused because the leader renewed, or its outcome is unknown: what
		// is in the record tells.
		if last = err; ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("tenure: giving an order: it may or may not have been given; look at the status: %w", last)
}

// ForceOptions say how a lock is taken from its holder.
type ForceOptions struct {
	// Who asks for it, for people.
	Who string
	// Epoch is the lock's, as the status shows it: of a holder that has
	// changed meanwhile nothing is taken.
	Epoch int64
	// HolderIsDead skips the wait. If the holder is alive after all, two lead:
	// this is the one exception to I1.
	HolderIsDead bool
	// LeaseDuration is assumed where the record does not say; default
	// DefaultLeaseDuration.
	LeaseDuration time.Duration
	// Waiting, when set, is called once with how long the wait is.
	Waiting func(time.Duration)
}

// ForceRelease takes a lock from its holder: it puts a stopper in the record,
// waits until the holder must have stopped, and releases the lock. It blocks
// for 1.5 D, or until ctx ends; then the lock is taken by candidates after the
// same wait, without its help. The error wraps [ErrOtherEpoch] if the lock has
// another epoch, and [ErrNoLeader] if it is free.
func ForceRelease(ctx context.Context, reg Register, o ForceOptions) (*View, error) {
	v, rec, err := stop(ctx, reg, o)
	if err != nil || o.HolderIsDead {
		return v, err
	}
	return empty(ctx, reg, v, rec, o.Waiting)
}

// stop puts a stopper, or with HolderIsDead the release itself, in the place of
// the holder's record.
func stop(ctx context.Context, reg Register, o ForceOptions) (*View, *Record, error) {
	for {
		v, err := Look(ctx, reg)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case v.State == RecordAbsent:
			return v, nil, fmt.Errorf("tenure: releasing by force: there is no such lock: %w", ErrNotExist)
		case v.State == RecordReleased:
			return v, nil, fmt.Errorf("tenure: releasing by force: %w", ErrNoLeader)
		case v.Epoch() != o.Epoch:
			return v, nil, fmt.Errorf("%w: %d, not %d; look at the status again", ErrOtherEpoch, v.Epoch(), o.Epoch)
		}
		rec := stopperOver(v, stopperRelease+o.Who, either(o.LeaseDuration, DefaultLeaseDuration))
		if o.HolderIsDead {
			rec.HolderIdentity = ""
		}
		value, err := rec.Marshal()
		if err != nil {
			return v, nil, err
		}
		version, err := reg.Write(ctx, value, v.Version)
		switch {
		case err == nil:
			state := RecordStopper
			if o.HolderIsDead {
				state = RecordReleased
			}
			return &View{State: state, Record: rec, Version: version}, rec, nil
		case errors.Is(err, ErrConflict) && ctx.Err() == nil:
			// The holder renewed in between: it is alive, and will see the next one.
		default:
			return v, nil, fmt.Errorf("tenure: releasing by force: it may or may not have begun; look at the status: %w", err)
		}
	}
}

// stopperOver returns the stopper that replaces what v shows.
func stopperOver(v *View, holder string, d time.Duration) *Record {
	rec := &Record{LeaseDuration: d}
	var witnesses []time.Time
	if old := v.Record; old != nil {
		if old.LeaseDuration >= 2*time.Second {
			rec.LeaseDuration = old.LeaseDuration
		}
		rec.Paused, rec.Lineage = old.Paused, old.Lineage
		for _, n := range []int64{old.Epoch, old.LeaseTransitions} {
			if n < MaxPlausibleEpoch {
				rec.Epoch = max(rec.Epoch, n)
			}
		}
		if old.LeaseTransitions <= MaxPlausibleEpoch {
			rec.LeaseTransitions = old.LeaseTransitions
		}
		if !old.RenewTime.IsZero() {
			witnesses = append(witnesses, old.RenewTime)
		}
	}
	now := time.Now()
	rec.HolderIdentity, rec.RenewTime = holder, now
	rec.Epoch = 1 + max(rec.Epoch, ownUnixTime(now, witnesses...))
	rec.Nonce = strings.ToLower(rand.Text())
	rec.Lineage = either(rec.Lineage, rec.Nonce)
	rec.ClusterUID = strings.ToLower(rand.Text())
	return rec
}

// empty waits a stopper out and releases the lock.
func empty(ctx context.Context, reg Register, v *View, stopper *Record, waiting func(time.Duration)) (*View, error) {
	s := settings{drift: DefaultDrift}
	wait := s.longWait(stopper.LeaseDuration)
	if waiting != nil {
		waiting(wait)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return v, fmt.Errorf("tenure: the lock is stopped, and free for candidates %v after they see that: %w", wait, ctx.Err())
	}
	rec := stopper.clone()
	rec.HolderIdentity, rec.Nonce = "", strings.ToLower(rand.Text())
	rec.RenewTime = time.Now()
	value, err := rec.Marshal()
	if err != nil {
		return v, err
	}
	version, err := reg.Write(ctx, value, v.Version)
	if err == nil {
		return &View{State: RecordReleased, Record: rec, Version: version}, nil
	}
	now, lookErr := Look(ctx, reg)
	if lookErr == nil && now.Version != v.Version && now.Epoch() >= rec.Epoch {
		return now, nil // released after all, or taken by a candidate that waited as long
	}
	return v, fmt.Errorf("tenure: releasing the stopped lock; candidates take it by themselves: %w", err)
}

// InitOptions say how a lock is made.
type InitOptions struct {
	// Who makes it, for people.
	Who string
	// LeaseDuration is the longest D of any candidate that may still lead by an
	// earlier record; default DefaultLeaseDuration.
	LeaseDuration time.Duration
	// FirstEver skips the wait, on a person's word that no record of this lock
	// was ever there. If one was, and its holder lives, two lead.
	FirstEver bool
	// Waiting, when set, is called once with how long the wait is.
	Waiting func(time.Duration)
}

// Init makes a lock, released and free to be taken, so that its first leader
// need not wait. It blocks for 1.5 D unless FirstEver, or until ctx ends; then
// candidates take the lock after the same wait. The error wraps [ErrExists],
// with the record's state in the view, if there is a record already, damaged or
// not: nothing is changed then.
func Init(ctx context.Context, reg Register, o InitOptions) (*View, error) {
	d := either(o.LeaseDuration, DefaultLeaseDuration)
	if err := (&settings{drift: DefaultDrift, maxD: maxLeaseSeconds * time.Second}).fit(durations{d, d * 65 / 100, d / 5}); err != nil {
		return nil, err
	}
	v, err := Look(ctx, reg)
	if err != nil {
		return nil, err
	}
	if v.State != RecordAbsent {
		return v, fmt.Errorf("%w: it is %s", ErrExists, v.State)
	}
	rec := stopperOver(v, stopperCreate+o.Who, d)
	if o.FirstEver {
		rec.HolderIdentity = ""
	}
	value, err := rec.Marshal()
	if err != nil {
		return v, err
	}
	version, err := reg.Write(ctx, value, "")
	if err != nil {
		if now, lookErr := Look(ctx, reg); lookErr == nil && now.State != RecordAbsent {
			if now.Record == nil || now.Record.Nonce != rec.Nonce {
				return now, fmt.Errorf("%w: somebody else has just made it", ErrExists)
			}
			version, err = now.Version, nil
		}
	}
	if err != nil {
		return v, fmt.Errorf("tenure: making the lock: %w", err)
	}
	if o.FirstEver {
		return &View{State: RecordReleased, Record: rec, Version: version}, nil
	}
	return empty(ctx, reg, &View{State: RecordStopper, Record: rec, Version: version}, rec, o.Waiting)
}

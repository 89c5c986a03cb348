// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"time"

	"tenure.dev"
	"tenure.dev/api/v1alpha1"
)

// closing is how far the closing of a gate has got.
type closing struct {
	epoch   int64
	written bool
	refused time.Time // when all API servers were known to refuse
	until   time.Time // when whoever held a Lease has stopped
	done    bool
}

// close closes the gate: the closed epoch is written, and seen to be refused at
// every API server, or the last grant is over; then the Leases are read and held;
// and whoever held one is given the time to stop.
func (w *worker) close(ctx context.Context, term *tenure.Term, why error) (time.Duration, error) {
	epoch := w.open
	if epoch == 0 && term != nil {
		epoch = term.Epoch()
	}
	if w.open == 0 && !w.inherits(epoch) {
		return w.closed(ctx, term, epoch)
	}
	if w.closing == nil || w.closing.epoch != epoch {
		w.closing = &closing{epoch: epoch}
		w.log.Info("closing the gate", "epoch", epoch, "cause", why)
		w.probeAt = time.Time{}
	}
	c := w.closing
	if c.done {
		return w.closed(ctx, term, epoch)
	}
	s := w.view().settings
	over := time.Until(s.Over(w.stamp, w.until))
	if w.stamp.At.IsZero() {
		over = time.Hour // the closing write brings a stamp
		if w.obj.Status.ClosedEpoch >= epoch {
			if err := w.touch(ctx); err != nil {
				return 200 * time.Millisecond, err
			}
		}
	}
	if !c.written {
		err := w.write(ctx, func(st *v1alpha1.MultiClusterLeaseStatus) {
			st.Epoch = max(st.Epoch, epoch)
			st.Leading, st.ClosedEpoch, st.State = false, st.Epoch, v1alpha1.StateClosing
		})
		c.written = err == nil
		// A conflict is an answer: somebody has written, and may act in our place.
		if err != nil && (over > 0 || errors.Is(err, errStale)) {
			return min(over, 200*time.Millisecond), err
		}
	}
	if c.refused.IsZero() {
		if w.enforced.state == w.stateNow() && c.written || over <= 0 {
			c.refused = time.Now()
		} else {
			w.probe(ctx)
			return min(max(over, 20*time.Millisecond), 200*time.Millisecond), nil
		}
	}
	if c.until.IsZero() {
		stop, err := w.stopTime(ctx, c.refused, s.StopAfter)
		if err != nil && time.Since(c.refused) < s.StopAfter {
			return 200 * time.Millisecond, err
		}
		c.until = stop
	}
	if left := time.Until(c.until); left > 0 {
		return left, nil
	}
	c.done = true
	return w.closed(ctx, term, epoch)
}

// inherits reports whether the gate was open at an epoch, or was being closed, when this
// process took over, and if so has it closed from the beginning: when its predecessor
// was last refused anything is not known here.
func (w *worker) inherits(epoch int64) bool {
	st := w.obj.Status
	if w.closedAt == epoch || st.Epoch != epoch || !st.Leading && st.ClosedEpoch < epoch {
		return false // closed by ourselves, or never opened
	}
	w.open, w.until, w.opened = epoch, st.ValidUntil.Time, st.Leases
	return true
}

// stopTime reads the Leases, holds them, and returns when their holders have
// stopped.
func (w *worker) stopTime(ctx context.Context, refused time.Time, stopAfter time.Duration) (time.Time, error) {
	stopped := true
	var errs []error
	for _, l := range w.obj.Spec.Leases {
		have, err := w.lease(ctx, l.Name)
		if err == nil {
			stopped = w.stopped(l.Name, l.ReleaseMeansStopped, have) && stopped
			err = w.hold(ctx, l.Name, have, "nobody")
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return refused.Add(stopAfter), err
	}
	if stopped {
		return time.Now(), nil
	}
	return refused.Add(stopAfter), nil
}

// closed tells the runner. What was written at the epoch without ever opening is
// closed too.
func (w *worker) closed(ctx context.Context, term *tenure.Term, epoch int64) (time.Duration, error) {
	if st := w.obj.Status; st.Epoch == epoch && st.ClosedEpoch < epoch || st.Leading {
		err := w.write(ctx, func(st *v1alpha1.MultiClusterLeaseStatus) {
			st.Leading, st.ClosedEpoch = false, st.Epoch
		})
		if err != nil {
			return 200 * time.Millisecond, err
		}
	}
	if w.open != 0 || w.closing != nil {
		w.log.Info("the gate is closed", "epoch", epoch)
	}
	w.open, w.closing, w.mayAt, w.closedAt = 0, nil, 0, epoch
	w.leasesAt = time.Time{}
	if term != nil {
		w.runner.hasClosed(w, term.Epoch())
	}
	if w.obj.DeletionTimestamp != nil {
		return time.Minute, w.finish(ctx)
	}
	if term != nil {
		return 100 * time.Millisecond, nil
	}
	return 0, nil
}

// leftover deals with a grant of an earlier process of this cluster: a replica may
// go on with its term; when it is over for certain, and no replica has gone on for as
// long as one could, it is closed.
func (w *worker) leftover(ctx context.Context) (time.Duration, error) {
	if w.leftAt.IsZero() {
		w.leftAt = time.Now()
		w.log.Info("waiting: an earlier process of this cluster left its gate open; unless a replica goes on with the term, it is waited out like any other's",
			"epoch", w.obj.Status.Epoch, "validUntil", w.obj.Status.ValidUntil)
	}
	if w.stamp.At.IsZero() {
		if err := w.touch(ctx); err != nil {
			return time.Second, err
		}
	}
	v := w.view()
	lock, s := v.status, v.settings
	if left := time.Until(s.Over(w.stamp, w.obj.Status.ValidUntil.Time)); left > 0 {
		return min(left, time.Second), nil
	}
	// A replica goes on within D of having seen its predecessor renew, and could not
	// with a closed epoch.
	mayGoOn := lock.Holder == w.op.opt.Cluster && lock.Epoch == w.obj.Status.Epoch && w.obj.DeletionTimestamp == nil
	if mayGoOn && time.Since(w.leftAt) < s.LeaseDuration+2*s.Period {
		next := time.Second
		w.prove(ctx, &next)
		return next, nil
	}
	return 0, w.write(ctx, func(st *v1alpha1.MultiClusterLeaseStatus) {
		st.Leading, st.ClosedEpoch, st.State = false, st.Epoch, v1alpha1.StateStandby
	})
}

// vanish: the object is gone from the API server. Its gate refuses everybody, since
// the policies have no parameter; a term ends as if the grant had run out.
func (w *worker) vanish(ctx context.Context) (time.Duration, bool) {
	w.setAble(false)
	if w.runner == nil {
		return 0, true
	}
	term, _ := w.runner.current()
	if term == nil || w.open == 0 {
		if term != nil {
			w.runner.hasClosed(w, term.Epoch())
		}
		w.runner.drop(w)
		return 0, true
	}
	w.runner.endTerm(errDeleted)
	s := w.view().settings
	stopped := s.Over(w.stamp, w.until).Add(s.StopAfter)
	if left := time.Until(stopped); left > 0 {
		return left, false
	}
	w.open, w.closing = 0, nil
	w.runner.hasClosed(w, term.Epoch())
	w.runner.drop(w)
	return 0, true
}

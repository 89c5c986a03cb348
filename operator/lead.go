// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev"
	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/gate"
)

// lead opens the gate for a term, and keeps it open.
func (w *worker) lead(ctx context.Context, term *tenure.Term) (time.Duration, error) {
	st, epoch := w.obj.Status, term.Epoch()
	v := w.view()
	s := v.settings
	switch {
	case st.ClosedEpoch >= epoch:
		// Closed for good at this epoch: by another replica, or by us before.
		w.runner.endTerm(errSettings)
		return time.Second, nil
	case w.open == epoch:
		return w.stayOpen(ctx, term, s)
	case st.Leading && st.Epoch == epoch: // a replica of ours opened it: we go on
		w.open, w.until, w.opened = epoch, st.ValidUntil.Time, st.Leases
		return 0, nil
	case w.mayAt == epoch: // we have begun
	case v.settingsErr != nil:
		return time.Second, nil
	case !w.may():
		if !w.isEnforced() && w.policiesErr == nil {
			w.probe(ctx)
		}
		return probeRetry / 4, nil
	}
	w.mayAt = epoch
	return w.opening(ctx, term, s)
}

// may reports whether this object may open: refused at the closed state, and gated
// by every member.
func (w *worker) may() bool {
	w.judge()
	return w.mayOpen()
}

// opening writes the epoch, closed, which brings the API server's time; then the
// grant; then the Leases are freed.
func (w *worker) opening(ctx context.Context, term *tenure.Term, s gate.Settings) (time.Duration, error) {
	st, epoch := w.obj.Status, term.Epoch()
	if st.Leading || st.Epoch != epoch || time.Since(w.stamp.At) > s.Full()/2 {
		// Also closes what an earlier term may have left open.
		err := w.write(ctx, func(st *v1alpha1.MultiClusterLeaseStatus) {
			if st.Leading {
				st.Leading, st.ClosedEpoch = false, st.Epoch
			}
			if st.Epoch == epoch { // only for its stamp
				st.ValidUntil = metav1.NewMicroTime(st.ValidUntil.Add(-time.Microsecond))
			}
			st.Epoch = epoch
		})
		if err != nil {
			return time.Second, err
		}
	}
	if err := w.grant(ctx, term, s); err != nil {
		if errors.Is(err, errWaitRenewal) {
			return w.untilRenewal(term, s), nil
		}
		return time.Second, err
	}
	w.log.Info("the gate is open", "epoch", epoch, "validUntil", w.until)
	w.leases = make(map[string]*leaseSight)
	w.leasesAt = time.Now()
	return 0, w.free(ctx)
}

func (w *worker) untilRenewal(term *tenure.Term, s gate.Settings) time.Duration {
	return max(50*time.Millisecond, s.Period-time.Since(term.Renewed()))
}

// errWaitRenewal: a grant stands on a renewal that was sent after the object was
// read, and there is none yet.
var errWaitRenewal = errors.New("no renewal has been sent since the object was read")

// grant writes until when pods of this cluster may renew. It is conditional on the
// version from before the renewal that it stands on: whatever happened to the
// object since makes it fail.
func (w *worker) grant(ctx context.Context, term *tenure.Term, s gate.Settings) error {
	renewed, deadline := term.Renewed(), term.Deadline()
	if renewed.Before(w.baseAt) {
		return errWaitRenewal
	}
	until, err := s.Grant(w.stamp, time.Now(), deadline)
	if err != nil {
		return err
	}
	if w.open != term.Epoch() { // from here on it may be open, whatever the answer
		w.open, w.opened = term.Epoch(), w.grantedLeases()
	}
	if until.After(w.until) {
		w.until = until
	}
	err = w.write(ctx, func(st *v1alpha1.MultiClusterLeaseStatus) {
		st.Leading, st.Epoch = true, term.Epoch()
		st.ValidUntil = metav1.NewMicroTime(until)
		st.Leases = w.opened // a name that was added waits for a new term
		st.State = v1alpha1.StateLeading
	})
	if err == nil {
		w.granted = renewed
	}
	return err
}

// grantedLeases lists the Leases with the settings that the grant was computed with.
func (w *worker) grantedLeases() (out []v1alpha1.GrantedLease) {
	for _, l := range w.obj.Spec.Leases {
		out = append(out, v1alpha1.GrantedLease{
			Name: l.Name, LeaseDurationSeconds: int32(gate.Duration(l) / time.Second), StopAfterSeconds: int32(gate.StopAfter(l) / time.Second),
		})
	}
	return out
}

// stayOpen rewrites the grant when less than half of it is left, and gives the
// term up when there is a reason.
func (w *worker) stayOpen(ctx context.Context, term *tenure.Term, s gate.Settings) (time.Duration, error) {
	next := w.untilRenewal(term, s)
	if why := w.reasonToEnd(s); why != nil {
		w.log.Warn("giving the lock up", "reason", why)
		w.runner.endTerm(why)
		return 0, nil
	}
	if w.stamp.At.IsZero() {
		if err := w.touch(ctx); err != nil {
			return time.Second, err
		}
	}
	if w.grantDue(term, s) {
		err := w.grant(ctx, term, s)
		if err != nil && !errors.Is(err, errWaitRenewal) && !errors.Is(err, gate.ErrNoTime) {
			return min(next, 200*time.Millisecond), err
		}
	}
	if time.Since(w.leasesAt) >= leasesEvery {
		w.leasesAt = time.Now()
		if err := w.watchHolders(ctx); err != nil {
			w.log.Debug("the gated Leases could not be read", "error", err)
		}
	}
	if time.Since(w.enforced.at) >= probeEvery || w.enforced.state != w.stateNow() {
		w.probe(ctx)
	}
	if w.isEnforced() && w.gatedSince.IsZero() {
		w.gatedSince = time.Now()
	}
	w.considerReady(&next)
	return min(next, leasesEvery), nil
}

// grantDue reports whether the grant is to be rewritten: less than half of it is
// left, and the renewal that the next one would stand on is new. Shortly before the
// next renewal it is worth waiting for that one.
func (w *worker) grantDue(term *tenure.Term, s gate.Settings) bool {
	renewed := term.Renewed()
	if !renewed.After(w.granted) {
		return false
	}
	left := w.obj.Status.ValidUntil.Sub(w.stamp.Server.Add(time.Since(w.stamp.At)))
	return !w.obj.Status.Leading || left < s.Full()/2 && (time.Since(renewed) < s.Period/2 || left < s.Period/2)
}

// lag is how long an API server may go by an earlier state of the gate before it
// counts as one that does not refuse.
const lag = 10 * time.Second

// reasonToEnd returns why this cluster should not go on leading, or nil.
func (w *worker) reasonToEnd(s gate.Settings) error {
	if w.obj.Spec.Enforcement != v1alpha1.Advisory {
		switch {
		case errors.Is(w.policiesErr, errPoliciesForbidden):
			return fmt.Errorf("%w: %w", errNotEnforced, w.policiesErr)
		case !w.enforced.failing.IsZero() && time.Since(w.enforced.failing) > lag:
			return fmt.Errorf("%w: %w", errNotEnforced, w.enforced.err)
		}
	}
	if idle := w.runner.idle(); idle > max(w.patience(), s.StopAfter)+5*time.Second {
		return errYield
	}
	if !w.covered() && w.may() {
		return errSettings
	}
	return nil
}

// covered reports whether the grants of this term are for the Leases as the object
// has them now.
func (w *worker) covered() bool {
	now := w.grantedLeases()
	for _, l := range now {
		if !slices.Contains(w.opened, l) {
			return false
		}
	}
	return true
}

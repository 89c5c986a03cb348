// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenure.dev/operator/gate"
)

// holdPrefix begins the holder of a Lease that Tenure keeps: whoever reads it sees
// who leads, and stock electors wait quietly for as long as it says.
const holdPrefix = "tenure: "

const (
	holdSeconds = 3600
	holdAgain   = 20 * time.Minute
)

// leaseSight is what was seen of a gated Lease while its gate was open.
type leaseSight struct {
	uid     types.UID
	holders map[string]bool
	version string
	since   time.Time // when the version was first seen
}

func holderOf(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func isHold(l *coordinationv1.Lease) bool { return strings.HasPrefix(holderOf(l), holdPrefix) }

func (w *worker) lease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	l, err := w.op.kube.CoordinationV1().Leases(w.key.Namespace).Get(bounded, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil {
		return nil, fmt.Errorf("read Lease %s/%s: %w", w.key.Namespace, name, err)
	}
	return l, nil
}

// holdAll puts the hold into all gated Leases where it is not, or says something
// else.
func (w *worker) holdAll(ctx context.Context, leader string) error {
	var errs []error
	for _, l := range w.obj.Spec.Leases {
		have, err := w.lease(ctx, l.Name)
		if err == nil {
			err = w.hold(ctx, l.Name, have, leader)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (w *worker) hold(ctx context.Context, name string, have *coordinationv1.Lease, leader string) error {
	holder := holdPrefix + leader + " leads"
	if have != nil && holderOf(have) == holder && have.Spec.RenewTime != nil && time.Since(have.Spec.RenewTime.Time).Abs() < holdAgain {
		return nil
	}
	return w.put(ctx, name, have, holder, holdSeconds)
}

// put writes a gated Lease as Tenure, conditional on what was read.
func (w *worker) put(ctx context.Context, name string, have *coordinationv1.Lease, holder string, seconds int32) error {
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	leases := w.op.kube.CoordinationV1().Leases(w.key.Namespace)
	now := metav1.NewMicroTime(time.Now())
	var err error
	if have == nil {
		_, err = leases.Create(bounded, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
		}, metav1.CreateOptions{FieldManager: "tenure"})
	} else {
		next := have.DeepCopy()
		next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds, next.Spec.RenewTime = &holder, &seconds, &now
		_, err = leases.Update(bounded, next, metav1.UpdateOptions{FieldManager: "tenure"})
	}
	if err != nil {
		return fmt.Errorf("write Lease %s/%s as %q: %w", w.key.Namespace, name, holder, err)
	}
	return nil
}

// free empties the Leases that Tenure holds, for the pods to elect.
func (w *worker) free(ctx context.Context) error {
	var errs []error
	for _, l := range w.obj.Spec.Leases {
		have, err := w.lease(ctx, l.Name)
		if err == nil && have != nil && isHold(have) {
			err = w.put(ctx, l.Name, have, "", 1)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// watchHolders notes who holds the gated Leases of an open gate, and whether
// anybody does.
func (w *worker) watchHolders(ctx context.Context) error {
	var errs []error
	for _, l := range w.obj.Spec.Leases {
		have, err := w.lease(ctx, l.Name)
		if err != nil || have == nil {
			errs = append(errs, err)
			continue
		}
		s := w.leases[l.Name]
		if s == nil || s.uid != have.UID {
			s = &leaseSight{uid: have.UID, holders: make(map[string]bool)}
			w.leases[l.Name] = s
		}
		if s.version != have.ResourceVersion {
			s.version, s.since = have.ResourceVersion, time.Now()
		}
		switch holder := holderOf(have); {
		case isHold(have):
			errs = append(errs, w.put(ctx, l.Name, have, "", 1))
		case holder != "":
			s.holders[holder] = true
			if time.Since(s.since) < 2*gate.Duration(l) {
				w.runner.live()
			}
		}
	}
	return errors.Join(errs...)
}

// patience is how long a leading cluster goes without a live holder before it
// yields.
func (w *worker) patience() time.Duration {
	var longest time.Duration
	for _, l := range w.obj.Spec.Leases {
		longest = max(longest, gate.Duration(l))
	}
	return 2 * longest
}

// stopped reports whether a Lease that is being closed says by itself that its
// holder has stopped: it was emptied, by the one holder that was seen, in the same
// object, and that was declared to mean it.
func (w *worker) stopped(name string, declared bool, have *coordinationv1.Lease) bool {
	if have == nil || holderOf(have) != "" {
		return false
	}
	if emptiedBelieved() {
		return true
	}
	s := w.leases[name]
	return declared && s != nil && s.uid == have.UID && len(s.holders) == 1
}

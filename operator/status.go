// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/gate"
)

// errStale: the object had changed, and was read again.
var errStale = errors.New("the object has changed meanwhile")

func equalSpec(a, b *v1alpha1.MultiClusterLeaseSpec) bool { return equality.Semantic.DeepEqual(a, b) }

// write changes the status by a full update that is conditional on the version we
// know, and reads the API server's clock off the stamp of the write.
func (w *worker) write(ctx context.Context, change func(*v1alpha1.MultiClusterLeaseStatus)) error {
	next := w.obj.DeepCopy()
	if next.Status == nil {
		next.Status = &v1alpha1.MultiClusterLeaseStatus{}
	}
	change(next.Status)
	if w.obj.Status != nil && equality.Semantic.DeepEqual(w.obj.Status, next.Status) {
		return nil
	}
	w.op.metrics.writes.WithLabelValues(w.key.Namespace, w.key.Name).Inc()
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sent := time.Now()
	err := w.op.objects.Status().Update(bounded, next, client.FieldOwner("tenure"))
	arrived := time.Now()
	if err != nil {
		if apierrors.IsConflict(err) {
			return errors.Join(errStale, w.reread(ctx))
		}
		// Whether it was applied is not known: what is there is read before the next.
		return errors.Join(fmt.Errorf("write the status of MultiClusterLease %s: %w", w.key, err), w.reread(ctx))
	}
	w.obj = next // the chain of writes goes on: baseAt stays
	w.stampOf(next, sent, arrived)
	w.mu.Lock()
	w.epoch, w.lineage = max(w.epoch, next.Status.Epoch), next.Status.Lineage
	w.mu.Unlock()
	w.op.metrics.open.WithLabelValues(w.key.Namespace, w.key.Name).Set(number(next.Status.Leading))
	return nil
}

// stampOf takes the API server's time from a write whose answer has arrived. One
// that did not move the stamp says nothing.
func (w *worker) stampOf(mcl *v1alpha1.MultiClusterLease, sent, arrived time.Time) {
	at := arrived
	if countsFromSending() {
		at = sent
	}
	for _, m := range mcl.ManagedFields {
		if m.Manager == "tenure" && m.Subresource == "status" && m.Time != nil && m.Time.After(w.stamp.Server) {
			w.stamp = gate.Stamp{Server: m.Time.Time, At: at}
		}
	}
}

// reread makes what is stored now the base of further writes.
func (w *worker) reread(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var mcl v1alpha1.MultiClusterLease
	if err := w.op.objects.Get(bounded, w.key, &mcl); err != nil {
		if apierrors.IsNotFound(err) {
			w.gone()
		}
		return fmt.Errorf("read MultiClusterLease %s: %w", w.key, err)
	}
	w.adopt(&mcl)
	return nil
}

// firstStatus writes a closed status before the gate is ever opened.
func (w *worker) firstStatus(ctx context.Context) error {
	epoch, _ := w.known()
	return w.write(ctx, func(st *v1alpha1.MultiClusterLeaseStatus) {
		*st = v1alpha1.MultiClusterLeaseStatus{
			Epoch: epoch, ClosedEpoch: epoch, ValidUntil: metav1.NewMicroTime(time.Unix(0, 0)), State: v1alpha1.StateGating,
		}
	})
}

// touch makes a write that changes nothing that matters, for its stamp.
func (w *worker) touch(ctx context.Context) error {
	return w.write(ctx, func(st *v1alpha1.MultiClusterLeaseStatus) {
		st.ValidUntil = metav1.NewMicroTime(st.ValidUntil.Add(-time.Microsecond))
	})
}

// finish lets an object go whose gate is closed.
func (w *worker) finish(ctx context.Context) error {
	if w.runner != nil {
		w.runner.drop(w)
	}
	var kept []string
	for _, f := range w.obj.Finalizers {
		if f != Finalizer {
			kept = append(kept, f)
		}
	}
	if len(kept) == len(w.obj.Finalizers) {
		return nil
	}
	return w.finalizers(ctx, kept)
}

// finalizers replaces the object's finalizers.
func (w *worker) finalizers(ctx context.Context, list []string) error {
	next := w.obj.DeepCopy()
	next.Finalizers = list
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := w.op.objects.Update(bounded, next, client.FieldOwner("tenure")); err != nil {
		if apierrors.IsNotFound(err) {
			w.gone()
			return nil
		}
		if apierrors.IsConflict(err) {
			return errors.Join(errStale, w.reread(ctx))
		}
		return fmt.Errorf("write the finalizers of MultiClusterLease %s: %w", w.key, err)
	}
	w.obj = next
	return nil
}

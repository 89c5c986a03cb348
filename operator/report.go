// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev"
	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/gate"
	"tenure.dev/operator/probe"
)

// condition is a condition before it is written.
type condition struct {
	kind, reason, message string
	ok                    bool
}

// judge works out whether this object may open, and why not.
func (w *worker) judge() {
	able := true
	conds := make([]condition, 0, 4)
	add := func(kind string, ok bool, reason, message string) {
		conds = append(conds, condition{kind, reason, message, ok})
		able = able && ok
	}
	ok, reason, message := w.judgeEnforced()
	add(v1alpha1.ConditionEnforced, ok, reason, message)
	ok, reason, message = w.judgeLock()
	add(v1alpha1.ConditionLockReachable, ok, reason, message)
	okSettings, settingsReason, settingsMessage := w.judgeSettings()
	ok, reason, message = w.judgeMembers()
	if reason == v1alpha1.ReasonSettingsDiffer {
		okSettings, settingsReason, settingsMessage = false, reason, message
		ok, reason, message = true, v1alpha1.ReasonAllReady, "every member has gated every name"
	}
	add(v1alpha1.ConditionSettingsAccepted, okSettings, settingsReason, settingsMessage)
	add(v1alpha1.ConditionMembersReady, ok, reason, message)
	if w.open == 0 && w.obj.DeletionTimestamp != nil {
		able = false
	}
	w.conditions = conds
	w.op.metrics.refused.WithLabelValues(w.key.Namespace, w.key.Name).Set(number(w.isEnforced()))
	w.setAble(able)
}

func (w *worker) judgeEnforced() (bool, string, string) {
	switch {
	case errors.Is(w.policiesErr, errPoliciesForbidden):
		return false, v1alpha1.ReasonPoliciesForbidden, w.policiesErr.Error()
	case w.policiesErr != nil:
		return false, v1alpha1.ReasonPoliciesMissing, w.policiesErr.Error()
	case w.obj.Spec.Enforcement == v1alpha1.Advisory:
		return true, v1alpha1.ReasonAdvisory, "spec.enforcement is Advisory: nobody has seen the API servers refuse"
	case w.isEnforced():
		return true, v1alpha1.ReasonRefused, "every API server has refused a probe by this gate's policy at its state"
	case errors.Is(w.enforced.err, probe.ErrClockSkew):
		return false, v1alpha1.ReasonClockSkew, w.enforced.err.Error()
	case errors.Is(w.enforced.err, probe.ErrNotRefused):
		return false, v1alpha1.ReasonNotRefused, w.enforced.err.Error()
	case w.enforced.err != nil:
		return false, v1alpha1.ReasonNotProbed, w.enforced.err.Error()
	case w.open != 0:
		return true, v1alpha1.ReasonRefused, "the gate has just changed its state; it was refused at the one before"
	default:
		return false, v1alpha1.ReasonNotProbed, "the API servers have not been asked yet"
	}
}

func (w *worker) judgeLock() (bool, string, string) {
	if w.runner == nil {
		switch {
		case errors.Is(w.lockErr, errGatedTwice):
			return false, v1alpha1.ReasonLeaseGatedTwice, w.lockErr.Error()
		case w.lockErr != nil:
			return false, v1alpha1.ReasonBadLock, w.lockErr.Error()
		}
		return false, v1alpha1.ReasonUnreachable, "the lock has not been opened yet"
	}
	v := w.runner.view()
	st := v.status
	_, memberErr := w.runner.membersOf(w.obj.Spec.Clusters, w.names())
	switch {
	case v.duplicate != nil:
		return false, v1alpha1.ReasonDuplicateIdentity, v.duplicate.Error()
	case errors.Is(memberErr, errIdentityTaken):
		return false, v1alpha1.ReasonDuplicateIdentity, memberErr.Error()
	case st.Identity == "":
		return false, v1alpha1.ReasonUnreachable, "the lock has not been asked yet"
	case st.Refused != nil:
		return false, v1alpha1.ReasonRecordUnusable, st.Refused.Error()
	case st.LastError != nil:
		return w.open != 0, v1alpha1.ReasonUnreachable, st.LastError.Error()
	}
	return true, v1alpha1.ReasonReachable, "the lock store answers"
}

func (w *worker) judgeSettings() (bool, string, string) {
	v := w.view()
	if v.settingsErr != nil {
		return false, v1alpha1.ReasonTooShort, v.settingsErr.Error()
	}
	return true, v1alpha1.ReasonAccepted, v.settings.Arithmetic
}

func (w *worker) judgeMembers() (bool, string, string) {
	if w.runner == nil {
		return false, v1alpha1.ReasonNotReady, "the lock is not open"
	}
	v, err := w.runner.membersOf(w.obj.Spec.Clusters, w.names())
	switch {
	case v.status == nil && err != nil:
		return false, v1alpha1.ReasonNotReady, err.Error()
	case v.status == nil:
		return false, v1alpha1.ReasonNotReady, "the members' entries have not been read yet"
	case v.problem != "":
		return false, v.reason, v.problem
	case !v.ready:
		var waiting []string
		for _, m := range v.status {
			if !m.Ready {
				waiting = append(waiting, fmt.Sprintf("cluster %q %s", m.Name, m.Message))
			}
		}
		return false, v1alpha1.ReasonNotReady, strings.Join(waiting, "; ")
	}
	return true, v1alpha1.ReasonAllReady, "every member has gated every name"
}

// report writes what is known into the status when it differs, with the next grant
// where there is one soon.
func (w *worker) report(ctx context.Context) error {
	if w.obj.Status == nil {
		return nil
	}
	if err := w.wantFinalizer(ctx); err != nil {
		return err
	}
	seen := w.view()
	lock, s := seen.status, seen.settings
	return w.write(ctx, func(st *v1alpha1.MultiClusterLeaseStatus) {
		st.ObservedGeneration = w.obj.Generation
		st.State = w.stateName()
		w.reportLock(st, lock)
		st.LeaseDurationSeconds, st.Arithmetic = int32(s.LeaseDuration/time.Second), s.Arithmetic
		d := lock.Durations
		if d.Failover > 0 {
			st.Failover = (d.Failover + time.Second).Round(100 * time.Millisecond).String()
		}
		st.Outage = w.outage(s).Round(100 * time.Millisecond).String()
		if w.runner != nil {
			v, _ := w.runner.membersOf(w.obj.Spec.Clusters, w.names())
			st.Members = v.status
		}
		w.reportConditions(st)
	})
}

// outage returns how long the lock store may be away at the worst moment, right
// before a grant is rewritten, without a holder losing its Lease.
func (w *worker) outage(s gate.Settings) time.Duration {
	shortest := time.Hour
	for _, l := range w.obj.Spec.Leases {
		deadline := gate.Duration(l) * 2 / 3
		if l.RenewDeadlineSeconds > 0 {
			deadline = time.Duration(l.RenewDeadlineSeconds) * time.Second
		}
		shortest = min(shortest, deadline)
	}
	return max(0, s.Full()/2-s.Period) + shortest
}

func (w *worker) reportLock(st *v1alpha1.MultiClusterLeaseStatus, lock tenure.Status) {
	if !clusterForm.MatchString(lock.Holder) {
		lock.Holder = "" // a stopper, which leads nobody
	}
	if lock.Lineage != "" {
		st.Lineage = lock.Lineage
	}
	if st.Leader != lock.Holder {
		st.Leader = lock.Holder
		st.LeaderSince = nil
		if lock.Holder != "" {
			now := metav1.Now()
			st.LeaderSince = &now
		}
	}
	st.LeaderEpoch = lock.Epoch
}

func (w *worker) stateName() v1alpha1.State {
	switch {
	case w.closing != nil:
		return v1alpha1.StateClosing
	case w.obj.Status.Leading:
		return v1alpha1.StateLeading
	case w.gatedSince.IsZero():
		return v1alpha1.StateGating
	case !w.mayOpen():
		return v1alpha1.StateBlocked
	default:
		return v1alpha1.StateStandby
	}
}

func (w *worker) reportConditions(st *v1alpha1.MultiClusterLeaseStatus) {
	all := append([]condition(nil), w.conditions...)
	lead := condition{kind: v1alpha1.ConditionLeading, reason: string(st.State), ok: st.Leading}
	switch {
	case st.Leading:
		lead.message = "this cluster leads"
	case st.Leader != "":
		lead.message = fmt.Sprintf("cluster %q leads", st.Leader)
	default:
		lead.message = "nobody is known to lead"
	}
	for _, c := range append(all, lead) {
		next := metav1.Condition{Type: c.kind, Status: metav1.ConditionFalse, Reason: c.reason, Message: short(c.message), ObservedGeneration: w.obj.Generation}
		if c.ok {
			next.Status = metav1.ConditionTrue
		}
		was := meta.FindStatusCondition(st.Conditions, c.kind)
		if was == nil || was.Status != next.Status || was.Reason != next.Reason {
			w.event(next)
		}
		if was != nil && was.Status == next.Status && was.Reason == next.Reason && !c.ok && volatile(next.Reason) {
			continue // the words vary with each try: not worth a write each time
		}
		meta.SetStatusCondition(&st.Conditions, next)
	}
}

// volatile reasons are those whose messages carry details of the last try.
func volatile(reason string) bool {
	return reason == v1alpha1.ReasonUnreachable || reason == v1alpha1.ReasonNotProbed || reason == v1alpha1.ReasonNotRefused
}

func short(s string) string {
	const limit = 1024
	if len(s) > limit {
		return s[:limit] + "…"
	}
	return s
}

// event tells people of a condition that changed.
func (w *worker) event(c metav1.Condition) {
	kind := corev1.EventTypeNormal
	if c.Status != metav1.ConditionTrue && c.Type != v1alpha1.ConditionLeading {
		kind = corev1.EventTypeWarning
	}
	w.log.Info("condition", "type", c.Type, "status", c.Status, "reason", c.Reason, "message", c.Message)
	now := metav1.Now()
	ev := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: w.key.Name + ".", Namespace: w.key.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "MultiClusterLease", Namespace: w.key.Namespace, Name: w.key.Name, UID: w.obj.UID, ResourceVersion: w.obj.ResourceVersion,
		},
		Type: kind, Reason: c.Reason, Message: c.Type + " is " + string(c.Status) + ": " + c.Message, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "tenure", Host: w.op.opt.Replica}, ReportingController: "tenure.dev/operator", ReportingInstance: w.op.opt.Replica,
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		defer cancel()
		if _, err := w.op.kube.CoreV1().Events(ev.Namespace).Create(ctx, ev, metav1.CreateOptions{}); err != nil {
			w.log.Debug("the event could not be written", "error", err)
		}
	}()
}

// wantFinalizer keeps the object until its gate is closed.
func (w *worker) wantFinalizer(ctx context.Context) error {
	if w.obj.DeletionTimestamp != nil {
		return nil
	}
	for _, f := range w.obj.Finalizers {
		if f == Finalizer {
			return nil
		}
	}
	return w.finalizers(ctx, append(w.obj.Finalizers, Finalizer))
}

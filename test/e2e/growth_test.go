// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"tenure.dev/api/v1alpha1"
)

// TestGrowth: what the gates are to cover grows while a cluster leads, and its Tenure
// is killed at once.
func TestGrowth(t *testing.T) {
	t.Parallel()
	p := newPair(t, pairOptions{
		lab:   func(o *Options) { o.Clusters = []string{"a", "b", "c"} },
		gate:  func(mcl *v1alpha1.MultiClusterLease) { mcl.Spec.Clusters = []string{"a", "b"} },
		later: []string{"c"},
	})
	p.step("duration raised", "", func(s *scene) {
		longer := func(spec *v1alpha1.MultiClusterLeaseSpec) {
			spec.Leases[0].LeaseDurationSeconds, spec.Leases[0].RenewDeadlineSeconds, spec.Leases[0].RetryPeriodSeconds = 9, 7, 1
		}
		s.change(s.lead, longer)
		s.lead.KillTenure()
		// Its pods believe at once what they were told to be.
		s.lead.StopElectors()
		for _, e := range []string{"e1", "e2"} {
			s.do(s.lead.Elector(e, "-lease-duration", "9s", "-renew-deadline", "7s"))
		}
		pause(s, 2*lockDuration)
		s.Say("figure: turns of clusters after the duration was raised: %v", Leaders(s.Receiver.Beats(s.begin)))
		s.do(s.lead.Tenure("t1"))
		s.change(s.other, longer)
		s.other.StopElectors()
		for _, e := range []string{"e1", "e2"} {
			s.do(s.other.Elector(e, "-lease-duration", "9s", "-renew-deadline", "7s"))
		}
	})
	extra, err := NewReceiver()
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	p.step("Lease name added", "", func(s *scene) {
		args := []string{"-lease", "ctl2", "-receiver", extra.Addr()}
		s.do(s.lead.Elector("x1", args...)) // free to lead until it is gated
		begin := time.Now()
		if _, ok := extra.Await(30*time.Second, begin, func(Beat) bool { return true }); !ok {
			s.Fatal("nobody leads by a Lease that is not gated")
		}
		add := func(spec *v1alpha1.MultiClusterLeaseSpec) {
			spec.Leases = append(spec.Leases, v1alpha1.GatedLease{Name: "ctl2", LeaseDurationSeconds: 6, RenewDeadlineSeconds: 4, RetryPeriodSeconds: 1})
		}
		s.change(s.other, add)
		s.until("the name is gated", func() bool {
			o, err := s.other.Object(s.ctx)
			return err == nil && o.Status.ObservedGeneration == o.Generation && meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionEnforced)
		})
		s.do(s.other.Elector("x1", args...))
		s.change(s.lead, add)
		s.lead.KillTenure()
		pause(s, 2*lockDuration)
		s.do(s.lead.Tenure("t1"))
		if err := s.settle(); err != nil {
			s.Error(err)
		}
		s.handover(s.other.Name)
		pause(s, 5*time.Second)
		for _, o := range Overlaps(extra.Beats(time.Time{})) {
			s.Errorf("OVERLAP of the Lease that was added: %v", o)
		}
		s.Say("figure: turns of clusters by the Lease that was added: %v", Leaders(extra.Beats(time.Time{})))
	})
	p.step("member added", "", func(s *scene) {
		more := func(spec *v1alpha1.MultiClusterLeaseSpec) { spec.Clusters = []string{"a", "b", "c"} }
		s.change(s.lead, more)
		s.lead.KillTenure()
		c := s.Sites[2]
		s.do(c.Gate(s.ctx, func(mcl *v1alpha1.MultiClusterLease) {
			o, err := s.lead.Object(s.ctx)
			s.do(err)
			mcl.Spec.Leases = o.Spec.Leases
		}))
		s.do(c.Tenure("t1"))
		s.do(c.AwaitCondition(s.ctx, v1alpha1.ConditionEnforced, true))
		s.do(c.Elector("e1"))
		pause(s, lockDuration)
		s.change(s.other, more)
		p.later = nil
		pause(s, lockDuration)
		s.Say("figure: turns of clusters after a member was added: %v", Leaders(s.Receiver.Beats(s.begin)))
		s.do(s.lead.Tenure("t1"))
	})
	p.step("good order at the end", "", func(*scene) {})
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"tenure.dev/api/v1alpha1"
)

// TestRelease: pods that were declared to empty their Lease only when they have
// stopped, and are ended, hand over without the wait for those that cannot say so.
func TestRelease(t *testing.T) {
	t.Parallel()
	p := newPair(t, pairOptions{
		electors: -1,
		gate:     func(mcl *v1alpha1.MultiClusterLease) { mcl.Spec.Leases[0].ReleaseMeansStopped = true },
		site:     func(s *Site) error { return s.Elector("e1", "-release") },
	})
	p.step("handover after the pods were ended", "", func(s *scene) {
		pause(s, 6*time.Second) // Tenure looks at who holds the Lease every five
		s.lead.EndElectors()
		s.figure("handover", s.handover(s.other.Name), handoverBound-stopAfter)
		s.do(s.lead.Elector("e1", "-release"))
	})
	p.step("handover while the pods go on", "", func(s *scene) {
		s.figure("handover", s.handover(s.other.Name), handoverBound)
	})
	p.step("all pods ended", "", func(s *scene) {
		// Nobody is there to hold the Lease: the cluster yields.
		at := time.Now()
		s.lead.EndElectors()
		s.figure("yield", s.untilWrites(s.other, at, 2*time.Minute), 4*lockDuration)
		s.do(s.lead.Elector("e1", "-release"))
	})
}

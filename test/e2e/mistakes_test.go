// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/gate"
	"tenure.dev/test/cluster"
)

// TestMistakes has a step for each mistake that somebody could make in the operator,
// which fails with it.
func TestMistakes(t *testing.T) {
	t.Parallel()
	p := newPair(t, pairOptions{lab: func(o *Options) {
		o.Cluster = func(_ string, c *cluster.Options) { c.AuditBodies = true }
	}})
	p.step("grants end before terms", "", func(s *scene) {
		s.lead.Delay(func(r *http.Request) Delay {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/status") {
				return Delay{Before: 2 * time.Second}
			}
			return Delay{}
		})
		pause(s, lockDuration)
		s.lead.Delay(nil)
		s.steady(time.Second)
		s.grantsEnd(s.lead)
	})
	p.step("Lease emptied while its holder works", "", func(s *scene) {
		admin := s.lead.Cluster.AdminClient(0)
		stop := make(chan struct{})
		var emptying sync.WaitGroup
		emptying.Go(func() {
			for n := 0; ; n++ {
				_ = admin.Patch(s.ctx, gated, cluster.MergePatch, `{"spec":{"holderIdentity":""}}`, nil) // it may be empty
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
		out, err := s.handoverCommand(s.other.Name)
		close(stop)
		emptying.Wait()
		if err != nil {
			s.Fatalf("%v\n%s", err, out)
		}
		pause(s, stopAfter)
	})
	p.step("closed epoch stays closed without status", "", func(s *scene) {
		s.handover(s.other.Name)
		s.do(s.settle())
		site := s.other // it led, and has closed
		site.KillTenure()
		admin := site.Cluster.AdminClient(0)
		if os.Getenv("TENURE_MUTANT") == "status-may-go" {
			s.do(admin.Patch(s.ctx, crds+crd, cluster.JSONPatch, `[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations"}]`, nil))
			pause(s, 5*time.Second)
		}
		o, err := site.Object(s.ctx)
		s.do(err)
		closed := o.Status.ClosedEpoch
		o.Status = nil
		_ = admin.Put(s.ctx, site.Objects()+"/demo", o, nil) // refused, or without effect
		o, err = site.Object(s.ctx)
		s.do(err)
		tenure, err := site.Cluster.Client(0, "system:serviceaccount:tenure-system:tenure", "system:serviceaccounts", "system:serviceaccounts:tenure-system", "system:authenticated")
		s.do(err)
		if o.Status == nil {
			o.Status = &v1alpha1.MultiClusterLeaseStatus{}
		}
		o.Status.Leading, o.Status.Epoch, o.Status.ClosedEpoch = true, closed, closed-1
		o.Status.ValidUntil.Time = time.Now().Add(time.Minute)
		for _, path := range []string{"/demo/status", "/demo"} {
			if err := tenure.Put(s.ctx, site.Objects()+path, o, nil); err == nil {
				s.Say("a PUT of %s passes", path)
			}
		}
		if o, err = site.Object(s.ctx); err != nil || o.Status == nil || o.Status.ClosedEpoch < closed || o.Status.Leading {
			s.Errorf("epoch %d was closed, and now: %v %+v", closed, err, o.Status)
		}
		s.do(s.install(site), site.Tenure("t1"))
	})
}

// grantsEnd sees that each grant which was written ends so long before the term, as
// the lock stood when it was written, that all pods have stopped by then.
func (s *scene) grantsEnd(site *Site) {
	s.Helper()
	events, err := site.Cluster.Audit(0)
	s.do(err)
	settings, err := gate.SettingsOf([]v1alpha1.MultiClusterLeaseSpec{{Leases: []v1alpha1.GatedLease{{
		LeaseDurationSeconds: int32(leaseDuration / time.Second), RenewDeadlineSeconds: int32(renewDeadline / time.Second), RetryPeriodSeconds: int32(retryPeriod / time.Second),
	}}}})
	s.do(err)
	n, least := 0, time.Hour
	for _, e := range events {
		var o v1alpha1.MultiClusterLease
		if e.ObjectRef.Subresource != "status" || e.ResponseStatus.Code != http.StatusOK || json.Unmarshal(e.ResponseObject, &o) != nil || o.Status == nil || !o.Status.Leading {
			continue
		}
		var sent time.Time // of the newest renewal before
		for _, r := range s.ways[site.Name].Records() {
			if r.Method != http.MethodGet && r.Upstream == http.StatusOK && r.Start.Before(e.StageTimestamp) && r.Start.After(sent) && strings.Contains(r.Query+r.Path, "name="+object) && !strings.Contains(r.Query+r.Path, object+".") {
				sent = r.Start
			}
		}
		if sent.IsZero() {
			continue
		}
		n++
		ends := sent.Add(settings.LeaseDuration - time.Duration(settings.Drift*float64(settings.LeaseDuration)))
		spare := ends.Sub(o.Status.ValidUntil.Add(settings.StopAfter + settings.Skew))
		if least = min(least, spare); spare < 0 {
			s.Errorf("a grant written at %v is valid until %v: the last renewal was sent at %v, so that the term is over %v before all pods have stopped",
				e.StageTimestamp, o.Status.ValidUntil, sent, -spare)
		}
	}
	s.Say("figure: %d status writes with a grant, the tightest %v before the end of its term", n, least.Round(time.Millisecond))
	if n == 0 {
		s.do(errors.New("the audit log tells of no grant"))
	}
}

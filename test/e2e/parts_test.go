// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/test/cluster"
)

// ends are when the processes of a part ended.
type ends struct {
	mu   sync.Mutex
	list []time.Time
}

// watch notes each end until ctx is over.
func (e *ends) watch(ctx context.Context, c *cluster.Cluster, part string) {
	for ctx.Err() == nil {
		p := c.Process(part)
		if p == nil || p.Err() != nil {
			time.Sleep(10 * time.Millisecond) // it is about to be started again
			continue
		}
		select {
		case <-p.Done():
			e.mu.Lock()
			e.list = append(e.list, time.Now())
			e.mu.Unlock()
		case <-ctx.Done():
		}
	}
}

func (e *ends) between(from, to time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.list, func(t time.Time) bool { return t.After(from) && !t.After(to) })
}

// A taking is a write of a Lease by its own controller that an API server accepted.
type taking struct {
	site, holder string
	at           time.Time
}

// takings reads them from the audit logs, oldest first.
func takings(t *testing.T, sites []*Site, part string) (out []taking) {
	t.Helper()
	for _, s := range sites {
		events, err := s.Cluster.Audit(0)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.User.Username != "system:"+part || e.ObjectRef.Resource != "leases" || e.ObjectRef.Name != part || e.ResponseStatus.Code >= 300 || e.Verb == "get" {
				continue
			}
			var l struct {
				Spec struct{ HolderIdentity string }
			}
			if json.Unmarshal(e.RequestObject, &l) == nil && l.Spec.HolderIdentity != "" {
				out = append(out, taking{s.Name, l.Spec.HolderIdentity, e.RequestReceivedTimestamp})
			}
		}
	}
	slices.SortFunc(out, func(a, b taking) int { return a.at.Compare(b.at) })
	return out
}

// TestParts: the real kube-controller-manager and kube-scheduler elect by gated
// Leases, and know nothing of it. One that loses its Lease ends; the one of the other
// cluster has never been let in before.
func TestParts(t *testing.T) {
	t.Parallel()
	part := func() *cluster.Part {
		return &cluster.Part{LeaderElect: true, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, Respawn: true}
	}
	names := []string{cluster.ControllerManager, cluster.Scheduler}
	p := newPair(t, pairOptions{
		electors: -1,
		lab: func(o *Options) {
			o.Namespace = "kube-system"
			o.Cluster = func(_ string, c *cluster.Options) {
				c.AuditBodies, c.ControllerManager, c.Scheduler = true, part(), part()
			}
		},
		gate: func(mcl *v1alpha1.MultiClusterLease) {
			l := mcl.Spec.Leases[0]
			mcl.Spec.Leases = nil
			for _, name := range names {
				l.Name = name
				mcl.Spec.Leases = append(mcl.Spec.Leases, l)
			}
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	ended := make(map[string]*ends)
	for _, s := range p.Sites {
		for _, name := range names {
			e := &ends{}
			ended[s.Name+"/"+name] = e
			go e.watch(ctx, s.Cluster, name)
		}
	}
	s := &scene{T: t, pair: p, ctx: ctx}
	// Before the gate both clusters' parts led: that is over when the first term begins.
	gateTime := time.Now()
	leads := func(since time.Time, not string) *Site {
		for begin := time.Now(); time.Since(begin) < 2*time.Minute; pause(s, 500*time.Millisecond) {
			both := make(map[string]int)
			for _, name := range names {
				for _, k := range takings(t, p.Sites, name) {
					if k.at.After(since) && k.site != not {
						both[k.site+name]++
					}
				}
			}
			for _, site := range p.Sites {
				mcl, err := site.Object(ctx)
				if err == nil && mcl.Status != nil && mcl.Status.Leading && both[site.Name+names[0]] > 3 && both[site.Name+names[1]] > 3 {
					return site
				}
			}
		}
		p.dump(t)
		t.Fatal("nobody leads by both Leases")
		return nil
	}
	first := leads(gateTime, "")
	p.Say("%s leads", first.Name)
	second := p.Sites[0]
	if second == first {
		second = p.Sites[1]
	}
	s.lead, s.other = first, second
	pause(s, 10*time.Second)
	begin := time.Now()
	if out, err := p.handoverCommand(second.Name); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	leads(begin, first.Name)
	p.Say("figure: handover of controller manager and scheduler: both renew in %s after %v", second.Name, time.Since(begin).Round(time.Second))
	pause(s, 10*time.Second)
	begin = time.Now()
	second.KillTenure()
	leads(begin.Add(leaseDuration), second.Name)
	p.Say("figure: Tenure killed: both renew in %s after %v", first.Name, time.Since(begin).Round(time.Second))
	for _, name := range names {
		all := takings(t, p.Sites, name)
		turns := 0
		for i := 1; i < len(all); i++ {
			if all[i].site == all[i-1].site || all[i].at.Before(gateTime.Add(2*stopAfter)) {
				continue
			}
			turns++
			// Whoever renewed last in the other cluster has ended since.
			if was := all[i-1]; !ended[was.site+"/"+name].between(was.at, all[i].at) {
				t.Errorf("OVERLAP: %s of %s took its Lease, and that of %s, which renewed %v before, had not ended", name, all[i].site, was.site, all[i].at.Sub(was.at))
			}
		}
		p.Say("figure: %s: %d accepted writes, %d turns", name, len(all), turns)
		if turns < 2 {
			t.Errorf("%s: %d turns, want 2", name, turns)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"tenure.dev/test/cluster"
	"tenure.dev/test/fault"
)

// seenTwice is long enough for a replica to have seen its sibling renew twice, which
// it must before it goes on with a term.
const seenTwice = 4 * lockPeriod

// acting returns the replica of a site that acts for the cluster, and the other.
func (s *scene) acting(site *Site) (acts, waits string) {
	s.Helper()
	var l struct {
		Spec struct{ HolderIdentity string }
	}
	s.do(site.Cluster.AdminClient(0).Get(s.ctx, "/apis/coordination.k8s.io/v1/namespaces/tenure-system/leases/tenure", &l))
	if l.Spec.HolderIdentity == "t1" {
		return "t1", "t2"
	}
	return "t2", "t1"
}

// TestReplicas: with two replicas of Tenure in each cluster, and two API servers on
// one etcd, either may go.
func TestReplicas(t *testing.T) {
	t.Parallel()
	cut := make(map[string]*fault.TCP) // before API server 1's etcd, by cluster
	p := newPair(t, pairOptions{replicas: 2, electors: 2, lab: func(o *Options) {
		o.APIServers = 2
		o.Cluster = func(site string, c *cluster.Options) {
			c.EtcdProxy = func(server int, target string) (string, error) {
				if server == 0 {
					return target, nil
				}
				way, err := fault.NewTCP(target)
				if err != nil {
					return "", err
				}
				t.Cleanup(way.Close)
				cut[site] = way
				return way.Addr(), nil
			}
		}
	}})
	// goesOn sees that no pod and no cluster has changed places.
	goesOn := func(s *scene, within time.Duration) {
		s.steady(within)
		for _, r := range Reigns(s.Receiver.Beats(s.begin)) {
			if r.Holder != s.holder {
				s.Errorf("%s writes, and %s did before: the pods changed places", r.Holder, s.holder)
			}
		}
	}
	p.step("acting replica killed", "", func(s *scene) {
		pause(s, seenTwice)
		acts, waits := s.acting(s.lead)
		s.lead.Replica(acts).Kill()
		goesOn(s, 2*lockDuration)
		if now, _ := s.acting(s.lead); now != waits {
			s.Errorf("%s acts, want %s", now, waits)
		}
		s.do(s.lead.Tenure(acts))
	})
	p.step("acting replica frozen", "", func(s *scene) {
		pause(s, seenTwice)
		acts, _ := s.acting(s.lead)
		s.do(s.lead.Replica(acts).Pause())
		goesOn(s, 2*lockDuration)
		s.do(s.lead.Replica(acts).Resume())
		goesOn(s, lockDuration)
	})
	for _, what := range []string{"seat", "store", "status"} {
		p.step("acting replica killed after its write of the "+what, "", func(s *scene) {
			pause(s, seenTwice)
			acts, _ := s.acting(s.lead)
			s.awaitWrite(s.lead, what)
			s.lead.Replica(acts).Kill()
			s.ways[s.lead.Name].SetRule(nil)
			s.lead.Delay(nil)
			s.steady(2 * lockDuration)
			// In mid-step the grant is at its oldest: the pods may elect again.
			s.Say("figure: pods that wrote, one after the other: %d", len(Reigns(s.Receiver.Beats(s.begin))))
			s.do(s.lead.Tenure(acts))
		})
	}
	p.step("acting replica killed while it closes", "", func(s *scene) {
		pause(s, seenTwice)
		acts, _ := s.acting(s.lead)
		s.lead.Delay(func(r *http.Request) Delay {
			if LeaseWrites(r) {
				return Delay{After: renewDeadline - time.Second}
			}
			return Delay{}
		})
		begin := time.Now()
		ordered := make(chan error, 1)
		go func() {
			_, err := s.handoverCommand(s.other.Name)
			ordered <- err
		}()
		s.until("the gate is being closed", func() bool {
			o, err := s.lead.Object(s.ctx)
			return err == nil && o.Status != nil && o.Status.ClosedEpoch == s.epoch
		})
		closing := time.Now()
		s.lead.Replica(acts).Kill()
		s.figure("handover with a replica killed on the way", s.untilWrites(s.other, begin, 90*time.Second), handoverBound+2*lockDuration)
		if b, ok := s.Receiver.Await(time.Second, closing, func(b Beat) bool { return b.Cluster() == s.other.Name }); ok && b.At.Sub(closing) < stopAfter {
			s.Errorf("%s led %v after the gate was closed: pods may go on for %v", s.other.Name, b.At.Sub(closing), stopAfter)
		}
		s.lead.Delay(nil)
		<-ordered
		s.do(s.lead.Tenure(acts))
	})
	p.step("replicas ended one after the other", "", func(s *scene) {
		for range 2 {
			pause(s, seenTwice)
			acts, _ := s.acting(s.lead)
			s.lead.Replica(acts).Stop(10 * time.Second)
			s.do(s.lead.Tenure(acts))
			goesOn(s, 15*time.Second)
		}
	})
	p.step("one of two API servers frozen", "", func(s *scene) {
		s.do(s.lead.Cluster.Pause(cluster.APIServerPart(1)))
		pause(s, 30*time.Second)
		s.handover(s.other.Name)
		s.do(s.lead.Cluster.Resume(cluster.APIServerPart(1)))
		pause(s, 5*time.Second)
	})
	p.step("one of two API servers cut from etcd", "", func(s *scene) {
		cut[s.lead.Name].BlackHole()
		pause(s, 20*time.Second)
		s.Say("figure: handover with a server cut from etcd: %v", s.handover(s.other.Name).Round(10*time.Millisecond))
		pause(s, 10*time.Second)
		cut[s.lead.Name].Pass()
		cut[s.lead.Name].Forget()
		s.do(s.lead.Cluster.Restart(s.ctx, cluster.APIServerPart(1)))
	})
	p.step("one of two API servers of the standby cut from etcd", "", func(s *scene) {
		cut[s.other.Name].BlackHole()
		pause(s, 15*time.Second)
		at := time.Now()
		s.crash(s.lead)
		pause(s, 40*time.Second) // it may lead, or say why not
		s.Say("figure: with a server that cannot be asked: %v", Leaders(s.Receiver.Beats(at.Add(time.Second))))
		cut[s.other.Name].Pass()
		cut[s.other.Name].Forget()
		s.do(s.other.Cluster.Restart(s.ctx, cluster.APIServerPart(1)))
		s.revive(s.lead, "t1", "t2")
	})
	p.step("one of two API servers restarted", "", func(s *scene) {
		s.do(s.lead.Cluster.Restart(s.ctx, cluster.APIServerPart(1)))
		s.steady(30 * time.Second)
	})
}

// awaitWrite returns when a write of Tenure has been carried out whose answer is
// still on its way.
func (s *scene) awaitWrite(site *Site, what string) {
	s.Helper()
	var once sync.Once
	hit := make(chan struct{})
	is := func(r *http.Request) bool {
		switch what {
		case "seat":
			return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/leases/tenure")
		case "status":
			return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/status")
		default:
			return fault.IsWrite(r)
		}
	}
	late := func(r *http.Request) time.Duration {
		if !is(r) {
			return 0
		}
		once.Do(func() { close(hit) })
		return 2 * time.Second
	}
	if what == "store" {
		s.ways[site.Name].SetRule(func(r *http.Request) fault.Action { return fault.Action{DelayAfter: late(r)} })
	} else {
		site.Delay(func(r *http.Request) Delay { return Delay{After: late(r)} })
	}
	select {
	case <-hit:
		pause(s, 150*time.Millisecond) // the write itself takes a few
	case <-s.ctx.Done():
		s.Fatalf("Tenure in %s did not write the %s", site.Name, what)
	}
}

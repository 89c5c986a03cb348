// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tenure.dev/test/cluster"
	"tenure.dev/test/fault"
)

// TestDeaths: pods, Tenure and whole clusters die, freeze and come back.
func TestDeaths(t *testing.T) {
	t.Parallel()
	p := newPair(t, pairOptions{})
	p.step("leading pod killed", "", func(s *scene) {
		p := s.lead.Running(s.holder)
		at := time.Now()
		p.Kill()
		b, ok := s.Receiver.Await(30*time.Second, at.Add(50*time.Millisecond), func(b Beat) bool { return b.Holder != s.holder })
		if !ok || b.Cluster() != s.lead.Name {
			s.Fatalf("next to write: %+v, want another pod of %s", b, s.lead.Name)
		}
		s.figure("another pod of the cluster writes", b.At.Sub(at), leaseDuration+3*retryPeriod+2*time.Second)
		s.steady(5 * time.Second)
	})
	p.step("cluster killed", "", func(s *scene) {
		at := time.Now()
		s.crash(s.lead)
		s.figure("failover", s.untilWrites(s.other, at.Add(50*time.Millisecond), time.Minute), failoverBound)
		s.revive(s.lead, "t1")
	})
	p.step("handover", "", func(s *scene) {
		s.figure("handover", s.handover(s.other.Name), handoverBound)
	})
	p.step("Tenure killed and not restarted", "", func(s *scene) {
		at := time.Now()
		s.lead.KillTenure()
		s.figure("failover", s.untilWrites(s.other, at, time.Minute), failoverBound)
		pause(s, 5*time.Second)
		s.do(s.lead.Tenure("t1"))
	})
	p.step("Tenure frozen for 90 s", "", func(s *scene) {
		at := time.Now()
		s.do(s.lead.Replica("t1").Pause())
		s.figure("failover", s.untilWrites(s.other, at, time.Minute), failoverBound)
		pause(s, time.Until(at.Add(90*time.Second)))
		s.do(s.lead.Replica("t1").Resume())
		pause(s, 10*time.Second)
	})
	p.step("lone Tenure restarted", "", func(s *scene) {
		at := time.Now()
		s.lead.KillTenure()
		s.do(s.lead.Tenure("t2"))
		pause(s, lockDuration)
		// It is a stranger to its own term, whichever cluster leads next.
		b, ok := s.Receiver.Await(90*time.Second, at.Add(lockDuration), func(Beat) bool { return true })
		if !ok {
			s.Fatal("nobody leads")
		}
		s.Say("figure: after the wait %s leads, %v after the restart", b.Cluster(), b.At.Sub(at).Round(10*time.Millisecond))
		if log := s.lead.Tail("t2", 1<<20); !strings.Contains(log, "waited out") {
			s.Errorf("it does not say that it waits:\n%s", log)
		}
	})
	p.step("lone Tenure restarted while the other cluster is down", "", func(s *scene) {
		s.crash(s.other)
		at := time.Now()
		s.lead.KillTenure()
		s.do(s.lead.Tenure("t4"))
		// It waits D from when it sees its own old record, and closes what was open.
		pause(s, lockDuration)
		s.figure("the same cluster leads again", s.untilWrites(s.lead, at.Add(lockDuration), 2*time.Minute)+lockDuration, 2*lockDuration+lockPeriod*4)
		s.revive(s.other, "t4")
	})
	p.step("leading pod frozen while its cluster loses the lead", "", func(s *scene) {
		thaw, err := s.lead.Freeze(s.holder)
		s.do(err)
		s.lead.KillTenure()
		s.untilWrites(s.other, time.Now(), time.Minute)
		pause(s, 10*time.Second)
		s.do(thaw())
		pause(s, 10*time.Second)
		s.do(s.lead.Tenure("t3"))
	})
	p.step("both clusters restarted", "", func(s *scene) {
		at := time.Now()
		s.crash(s.lead)
		s.crash(s.other)
		s.revive(s.lead, "t1")
		s.revive(s.other, "t1")
		b, ok := s.Receiver.Await(2*time.Minute, at.Add(time.Second), func(Beat) bool { return true })
		if !ok {
			s.Fatal("nobody leads")
		}
		s.Say("figure: %s leads %v after both went down", b.Cluster(), b.At.Sub(at).Round(10*time.Millisecond))
	})
}

// TestSlow: what the clusters and the store answer comes late, or not at all.
func TestSlow(t *testing.T) {
	t.Parallel()
	p := newPair(t, pairOptions{site: func(s *Site) error { return s.Elector("e3", "-no-timeout") }})
	for _, d := range []time.Duration{4 * time.Second, 6 * time.Second, 9 * time.Second} {
		p.step(fmt.Sprintf("answers to Lease writes %v late, then a handover", d), "", func(s *scene) {
			s.lead.Delay(func(r *http.Request) Delay {
				if LeaseWrites(r) {
					return Delay{After: d}
				}
				return Delay{}
			})
			pause(s, 2*retryPeriod)
			s.Say("figure: handover with late answers: %v", s.handover(s.other.Name).Round(10*time.Millisecond))
			pause(s, d)
			s.lead.Delay(nil)
		})
	}
	for _, d := range []time.Duration{5 * time.Second, 9 * time.Second, 14 * time.Second} {
		p.step(fmt.Sprintf("API server frozen for %v", d), "", func(s *scene) {
			s.do(s.lead.Cluster.Pause(cluster.APIServerPart(0)))
			pause(s, d)
			s.do(s.lead.Cluster.Resume(cluster.APIServerPart(0)))
			pause(s, 10*time.Second)
		})
	}
	p.step("lock store down for 60 s", "", func(s *scene) {
		for _, w := range s.ways {
			w.SetRule(fault.Always(nil, fault.CutBefore()))
		}
		pause(s, time.Minute)
		if beats := s.Receiver.Beats(time.Now().Add(-20 * time.Second)); len(beats) > 0 {
			s.Errorf("%s still writes without a lock", beats[len(beats)-1].Holder)
		}
		at := time.Now()
		for _, w := range s.ways {
			w.SetRule(nil)
		}
		b, ok := s.Receiver.Await(time.Minute, at, func(Beat) bool { return true })
		if !ok {
			s.Fatal("nobody leads")
		}
		s.Say("figure: %s leads %v after the store came back", b.Cluster(), b.At.Sub(at).Round(10*time.Millisecond))
	})
	p.step("lock store answers nothing to the leader", "", func(s *scene) {
		at, release := time.Now(), make(chan struct{})
		s.ways[s.lead.Name].SetRule(fault.Always(nil, fault.HoldRequest(release)))
		s.figure("failover", s.untilWrites(s.other, at, time.Minute), failoverBound)
		s.ways[s.lead.Name].SetRule(nil)
		close(release) // all that was kept arrives now
		pause(s, 5*time.Second)
	})
	p.step("lock store away for less than a grant", "", func(s *scene) {
		for _, w := range s.ways {
			w.SetRule(fault.Always(nil, fault.CutBefore()))
		}
		pause(s, 4*time.Second)
		for _, w := range s.ways {
			w.SetRule(nil)
		}
		s.steady(20 * time.Second)
	})
}

// TestRecord: the record is damaged under the leader.
func TestRecord(t *testing.T) {
	t.Parallel()
	p := newPair(t, pairOptions{})
	// again waits until a cluster writes that holds a readable record.
	again := func(s *scene, what string) {
		at := time.Now()
		var epoch float64
		for {
			m, _, err := s.record()
			if e, ok := m["epoch"].(float64); err == nil && ok && int64(e) > s.epoch && (m["holderIdentity"] == "a" || m["holderIdentity"] == "b") {
				epoch = e
				break
			}
			select {
			case <-time.After(200 * time.Millisecond):
			case <-s.ctx.Done():
				s.Fatalf("%s: no new term", what)
			}
		}
		b, ok := s.Receiver.Await(time.Minute, time.Now(), func(b Beat) bool { return !b.Late })
		if !ok {
			s.Fatalf("%s: nobody leads", what)
		}
		s.Say("figure: %s: %s leads at epoch %.0f after %v (was %d)", what, b.Cluster(), epoch, b.At.Sub(at).Round(10*time.Millisecond), s.epoch)
	}
	var old []byte
	p.step("kept", "", func(s *scene) {
		var err error
		_, old, err = s.record()
		s.do(err)
		s.handover(s.other.Name)
	})
	for _, c := range []struct {
		what   string
		damage func() error
	}{
		{"deleted", func() error { return p.gcs.Delete(bucket, object) }},
		{"emptied", func() error { return p.gcs.Put(bucket, object, nil) }},
		{"restored", func() error { return p.gcs.Put(bucket, object, old) }},
		{"garbled", func() error { return p.gcs.Put(bucket, object, append([]byte(`{"holder`), old...)) }},
		{"replaced by an empty object", func() error { return p.gcs.Put(bucket, object, []byte("{}")) }},
	} {
		p.step("record "+c.what, "", func(s *scene) {
			s.do(c.damage())
			again(s, c.what)
		})
	}
}

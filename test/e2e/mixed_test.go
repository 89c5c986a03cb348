// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tenure.dev/test/cluster"
	"tenure.dev/test/fault"
)

// mixed are the faults of TestMixed. Each leaves the pair so that it comes into good
// order by itself.
var mixed = []struct {
	name string
	do   func(s *scene, rng *rand.Rand)
}{
	{"pod killed", func(s *scene, _ *rand.Rand) { s.lead.Running(s.holder).Kill() }},
	{"pod frozen", func(s *scene, rng *rand.Rand) {
		thaw, err := s.lead.Freeze(s.holder)
		s.do(err)
		pause(s, between(rng, 2*time.Second, 40*time.Second))
		s.do(thaw())
	}},
	{"cluster killed", func(s *scene, _ *rand.Rand) {
		s.crash(s.lead)
		s.untilWrites(s.other, time.Now(), 90*time.Second)
		s.revive(s.lead, "t1")
	}},
	{"Tenure killed", func(s *scene, rng *rand.Rand) {
		s.lead.KillTenure()
		pause(s, between(rng, 0, 50*time.Second))
		s.do(s.lead.Tenure("t1"))
	}},
	{"Tenure frozen", func(s *scene, rng *rand.Rand) {
		s.do(s.lead.Replica("t1").Pause())
		pause(s, between(rng, time.Second, 70*time.Second))
		s.do(s.lead.Replica("t1").Resume())
	}},
	{"handover", func(s *scene, _ *rand.Rand) { s.handover(s.other.Name) }},
	{"API server frozen", func(s *scene, rng *rand.Rand) {
		s.do(s.lead.Cluster.Pause(cluster.APIServerPart(0)))
		pause(s, between(rng, time.Second, 40*time.Second))
		s.do(s.lead.Cluster.Resume(cluster.APIServerPart(0)))
	}},
	{"API server restarted", func(s *scene, _ *rand.Rand) { s.do(s.lead.Cluster.Restart(s.ctx, cluster.APIServerPart(0))) }},
	{"answers to Lease writes late, and a handover", func(s *scene, rng *rand.Rand) {
		d := between(rng, time.Second, 12*time.Second)
		s.lead.Delay(func(r *http.Request) Delay {
			if LeaseWrites(r) {
				return Delay{After: d}
			}
			return Delay{}
		})
		pause(s, between(rng, 0, 5*time.Second))
		s.handover(s.other.Name)
		pause(s, d)
		s.lead.Delay(nil)
	}},
	{"store cut off from the leader", func(s *scene, rng *rand.Rand) {
		s.ways[s.lead.Name].SetRule(fault.Always(nil, fault.CutBefore()))
		pause(s, between(rng, time.Second, 60*time.Second))
		s.ways[s.lead.Name].SetRule(nil)
	}},
	{"store down", func(s *scene, rng *rand.Rand) {
		for _, w := range s.ways {
			w.SetRule(fault.Always(nil, fault.CutBefore()))
		}
		pause(s, between(rng, time.Second, 60*time.Second))
		for _, w := range s.ways {
			w.SetRule(nil)
		}
	}},
	{"answers of the store late or lost", func(s *scene, rng *rand.Rand) {
		end := time.Now().Add(between(rng, 10*time.Second, 40*time.Second))
		s.ways[s.lead.Name].SetRule(func(*http.Request) fault.Action {
			switch rand.IntN(4) { // requests come in no order that a seed could repeat
			case 0:
				return fault.LoseAnswer()
			case 1:
				return fault.DelayAnswer(2 * time.Second)
			}
			return fault.Pass
		})
		pause(s, time.Until(end))
		s.ways[s.lead.Name].SetRule(nil)
	}},
	{"both clusters killed", func(s *scene, _ *rand.Rand) {
		s.crash(s.lead)
		s.crash(s.other)
		s.revive(s.lead, "t1")
		s.revive(s.other, "t1")
	}},
}

func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}

// TestMixed puts faults in an order that a seed decides, at client-go's default
// durations: TENURE_E2E_FAULTS of them, 2 if not said, with TENURE_E2E_SEED.
func TestMixed(t *testing.T) {
	t.Parallel()
	number := func(name string, otherwise uint64) uint64 {
		if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	faults, seed := number("TENURE_E2E_FAULTS", 2), number("TENURE_E2E_SEED", uint64(time.Now().UnixNano()))
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("figure: seed %d", seed)
	p := newPair(t, pairOptions{lab: func(o *Options) { o.Lease, o.Renew, o.Retry = 15*time.Second, 10*time.Second, 2*time.Second }})
	took := make(map[string][]time.Duration)
	for i := range faults {
		f := mixed[rng.IntN(len(mixed))]
		p.step(fmt.Sprintf("%d %s", i, f.name), "", func(s *scene) {
			f.do(s, rng)
			pause(s, time.Second) // what was killed wrote until now
			if err := s.settle(); err != nil {
				s.Errorf("no good order after %s: %v", f.name, err)
			}
			took[f.name] = append(took[f.name], Gap(s.begin, s.Receiver.Beats(s.begin)))
		})
	}
	var b strings.Builder
	for _, f := range mixed {
		if all := took[f.name]; len(all) > 0 {
			slices.Sort(all)
			fmt.Fprintf(&b, "%-46s %3d times, longest time without a write: median %6.1f s, most %6.1f s\n",
				f.name, len(all), all[len(all)/2].Seconds(), all[len(all)-1].Seconds())
		}
	}
	late := 0
	for _, n := range Late(p.Receiver.Beats(time.Time{})) {
		late += n
	}
	fmt.Fprintf(&b, "%d faults, seed %d, %d reigns, %d overlaps, %d late writes of frozen processes\n",
		faults, seed, len(Reigns(p.Receiver.Beats(time.Time{}))), len(Overlaps(p.Receiver.Beats(time.Time{}))), late)
	t.Logf("figure: report\n%s", b.String())
	if file := os.Getenv("TENURE_E2E_REPORT"); file != "" {
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Error(err)
		}
	}
}

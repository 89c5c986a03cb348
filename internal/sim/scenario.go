// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"tenure.dev"
)

// A Scenario is all that a run depends on; its seed determines it.
type Scenario struct {
	Seed    uint64
	Profile string
	Flavour flavour
	Drift   float64
	MaxD    time.Duration
	// D is the lease duration of most candidates, by which times are scaled.
	D time.Duration
	// MixedD: candidates have different ones.
	MixedD      bool
	Delay       [2]time.Duration // of a message, one way
	Noise       float64          // how likely a request goes wrong at any time
	LongDrain   float64          // how likely the work takes long to end
	StoreOffset time.Duration
	StoreSteps  bool // the store's clock is stepped, else those of the machines
	Slots       []SlotOptions
	Initial     initial
	Faults      []Fault
	Length      time.Duration // until the faults end
	TailOrders  bool          // orders go on after that
	DownAtEnd   int           // the slot that is dead after that, or -1

	// Print, when set, is given each line of the trace.
	Print func(line string)
}

// SlotOptions are those of one candidate.
type SlotOptions struct {
	// Identity and Host are as in tenure.Options.
	Identity, Host string
	// Rate is how fast its clocks run; 1 is true time.
	Rate float64
	// WallOffset is how far its wall clock is ahead at first.
	WallOffset time.Duration
	// Start is when it starts.
	Start time.Duration
	// D, R, P and Drain are as in tenure.Options; 0 is its default.
	D, R, P, Drain time.Duration
	// Once is as in tenure.Options; a new process follows.
	Once bool
	// Twin gives it the identity of another slot, by mistake.
	Twin bool
	// Stock makes it a stock elector.
	Stock *stockConfig
	// Cluster makes it a replica: those of one cluster share its seat, and an
	// identity. A twin of one is a copy of the cluster, with a seat of its own.
	Cluster string
}

// initial is what is in the store at the start.
type initial string

const (
	nothing     initial = "nothing"
	wasReleased initial = "released"
	wasHeld     initial = "held" // by somebody who is gone
	isForeign   initial = "foreign"
)

func (sc *Scenario) initial() []byte {
	now := time.Unix(0, wallBase-int64(time.Minute))
	rec := tenure.Record{LeaseDuration: sc.D, Epoch: 7, LeaseTransitions: 3, Nonce: "initial", Lineage: "l1", RenewTime: now}
	switch sc.Initial {
	case wasHeld:
		rec.HolderIdentity, rec.ClusterUID = "gone", "gone"
	case isForeign:
		return []byte(`{"holderIdentity":"gone","leaseDurationSeconds":` + fmt.Sprint(int(sc.D/time.Second)) +
			`,"renewTime":"2027-03-01T11:59:00.000000Z","leaseTransitions":3}`)
	case nothing:
		return nil
	default:
	}
	value, err := rec.Marshal()
	if err != nil {
		panic("sim: " + err.Error())
	}
	return (&world{sc: sc}).stored(value)
}

func (sc *Scenario) longestD() time.Duration {
	return longestOf(sc, func(o *SlotOptions) time.Duration { return o.D })
}

func (sc *Scenario) longestP() time.Duration {
	return max(sc.D/5, longestOf(sc, func(o *SlotOptions) time.Duration { return o.P }))
}

func (sc *Scenario) longestDrain() time.Duration {
	return longestOf(sc, func(o *SlotOptions) time.Duration { return o.Drain })
}

func longestOf(sc *Scenario, f func(*SlotOptions) time.Duration) time.Duration {
	var longest time.Duration
	for i := range sc.Slots {
		longest = max(longest, f(&sc.Slots[i]))
	}
	return longest
}

// ds are the lease durations that candidates of a mixed scenario have.
func (sc *Scenario) ds() []time.Duration {
	half := max(2*time.Second, (sc.D / 2).Truncate(time.Second))
	return []time.Duration{half, sc.D, min(sc.D*2, sc.MaxD)}
}

// durationsFor draws an R and P that fit D.
func durationsFor(r *rng, d time.Duration, drift float64, f flavour) SlotOptions {
	o := SlotOptions{D: d, R: d * 65 / 100, P: d / 5}
	if r.chance(0.4) {
		o.R = r.dur(d*40/100, d*65/100)
		o.P = r.dur(o.R/5, o.R/3)
	}
	return o
}

// rateOf draws the rate of a clock: the extremes often.
func rateOf(drift float64, n uint64) float64 {
	r := newRNG(n, 3)
	switch r.n(5) {
	case 0, 1:
		return 1 - drift
	case 2, 3:
		return 1 + drift
	default:
		return 1 + drift*(2*r.float()-1)
	}
}

// NewScenario makes the scenario of a seed. An empty profile means that the
// seed chooses.
func NewScenario(seed uint64, profile string) *Scenario {
	r := newRNG(seed, 10)
	p := choose(r, profile)
	sc := &Scenario{Seed: seed, Profile: p.name, DownAtEnd: -1, MaxD: 20 * time.Second}
	sc.Flavour = pick(r, p.flavours)
	sc.Drift = pick(r, []float64{0.01, 0.01, 0.02, 0.05})
	sc.D = pick(r, []time.Duration{2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second, 10 * time.Second})
	sc.Delay = pick(r, [][2]time.Duration{
		{time.Millisecond, 10 * time.Millisecond}, {5 * time.Millisecond, 60 * time.Millisecond}, {time.Millisecond, sc.D / 20}, {time.Millisecond, sc.D / 10}})
	sc.Noise = pick(r, []float64{0, 0.01, 0.05, 0.15})
	sc.LongDrain = 0.2
	sc.StoreOffset = r.dur(-time.Minute, time.Minute)
	sc.Initial = pick(r, []initial{nothing, wasReleased, wasReleased, wasHeld, isForeign})
	sc.TailOrders = r.chance(0.7)
	n := 2 + r.n(4)
	if p.tweak != nil {
		p.tweak(sc, r)
	}
	for i := range n {
		d := sc.D
		if sc.MixedD {
			d = pick(r, sc.ds())
		}
		o := durationsFor(r, d, sc.Drift, sc.Flavour)
		o.Identity, o.Host = fmt.Sprintf("c%d", i), fmt.Sprintf("h%d", i)
		o.Rate = rateOf(sc.Drift, r.next())
		o.WallOffset = r.dur(-2*time.Second, 2*time.Second)
		if p.wallOffset > 0 {
			o.WallOffset = r.dur(-p.wallOffset, p.wallOffset)
		}
		o.Drain = r.dur(d/4, 2*d)
		o.Start = r.dur(0, d/2)
		o.Once = r.chance(0.1)
		sc.Slots = append(sc.Slots, o)
	}
	if p.replicas {
		for i := range sc.Slots {
			c := fmt.Sprintf("c%d", i/2)
			sc.Slots[i].Identity, sc.Slots[i].Host, sc.Slots[i].Cluster = c, "h"+c, c
		}
	}
	if p.twins {
		for i := range n {
			o := sc.Slots[i]
			o.Twin, o.Rate = true, rateOf(sc.Drift, r.next())
			sc.Slots = append(sc.Slots, o)
		}
	}
	if sc.Flavour.stock() {
		for i := range 1 + r.n(2) {
			sc.Slots = append(sc.Slots, SlotOptions{
				Identity: fmt.Sprintf("stock%d", i), Rate: rateOf(0.01, r.next()), Start: r.dur(0, 5*time.Second),
				Stock: &stockConfig{lease: 15 * time.Second, renew: 10 * time.Second, retry: 2 * time.Second, keeps: r.chance(0.5)},
			})
		}
	}
	if r.chance(0.4) {
		sc.DownAtEnd = r.n(n)
	}
	g := &generator{rng: r, sc: sc, at: sc.D}
	events := 12 + r.n(14)
	for range events {
		g.at += g.dur(sc.D/4, sc.D*2)
		g.macro(p)
	}
	slices.SortStableFunc(sc.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	sc.Length = g.at + sc.D/2
	for _, f := range sc.Faults {
		sc.Length = max(sc.Length, f.At)
	}
	sc.Length += g.dur(0, sc.D)
	return sc
}

// generator makes a schedule.
type generator struct {
	*rng
	sc *Scenario
	at time.Duration
}

// add adds a fault, after from now. N is drawn, so that it is never equal.
func (g *generator) add(after time.Duration, k Kind, who role, d time.Duration) *Fault {
	g.sc.Faults = append(g.sc.Faults, Fault{At: g.at + after, Kind: k, Who: who, Dur: d, N: g.next() >> 32})
	return &g.sc.Faults[len(g.sc.Faults)-1]
}

func (g *generator) addNoise(after time.Duration, who role, d time.Duration, kind noiseKind) {
	k := Noise
	if who == nobody {
		k = NoiseAll
	}
	f := g.add(after, k, who, d)
	f.N = f.N/uint64(noiseKinds)*uint64(noiseKinds) + uint64(kind)
}

// Less than an instant of a candidate's: faults that go together.
func (g *generator) moment() time.Duration { return g.dur(0, g.sc.D/50) }

func (g *generator) macro(p *profile) {
	sum := 0
	for _, m := range p.macros {
		sum += m.weight
	}
	x := g.n(sum)
	for _, m := range p.macros {
		if x -= m.weight; x < 0 {
			m.make(g)
			return
		}
	}
}

// choose draws a profile, unless one is named.
func choose(r *rng, name string) *profile {
	sum := 0
	for i := range profiles {
		sum += profiles[i].weight
	}
	x := r.n(sum)
	for i := range profiles {
		x -= profiles[i].weight
		if profiles[i].name == name || name == "" && x < 0 {
			return &profiles[i]
		}
	}
	panic("sim: there is no profile " + name)
}

// Profiles returns the names of all profiles.
func Profiles() []string {
	var names []string
	for i := range profiles {
		names = append(names, profiles[i].name)
	}
	return names
}

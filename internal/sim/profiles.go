// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// profile is a mix of faults, and what suits it. All profiles are part of every
// run; each is there to bring about something that an even mix rarely does.
type profile struct {
	name       string
	weight     int
	flavours   []flavour
	macros     []macro
	wallOffset time.Duration
	twins      bool
	replicas   bool
	tweak      func(*Scenario, *rng)
}

// macro is a group of faults that belong together.
type macro struct {
	weight int
	make   func(*generator)
}

var (
	anyFlavour   = []flavour{plain, plain, withWatch, withClock, withPeers, withAll}
	peersOnly    = []flavour{withPeers, withAll}
	stockFlavour = []flavour{stockLease, stockLease, stockWatched}
)

// single makes a macro of one fault.
func single(weight int, k Kind, who role, lo, hi float64) macro {
	return macro{weight, func(g *generator) { g.add(0, k, who, g.scaled(lo, hi)) }}
}

// scaled returns a duration from lo to hi lease durations.
func (g *generator) scaled(lo, hi float64) time.Duration {
	d := float64(g.sc.D)
	return g.dur(time.Duration(d*lo), time.Duration(d*hi))
}

// The groups.
var (
	processFaults = []macro{
		single(3, Crash, leader, 0.1, 3), single(2, Crash, anyone, 0.1, 3), single(2, Stop, anyone, 0.1, 2), single(2, Stop, leader, 0.1, 2),
		single(3, Freeze, leader, 0.1, 2.5), single(2, Freeze, anyone, 0.1, 2.5), single(1, RateChange, anyone, 0, 0),
	}
	networkFaults = []macro{
		single(4, Cut, leader, 0.1, 2.5), single(3, Cut, anyone, 0.1, 2.5), single(1, Outage, nobody, 0.1, 1.5),
		{3, func(g *generator) { g.addNoise(0, nobody, g.scaled(0.3, 3), noiseKind(g.n(int(noiseKinds)))) }},
		{4, func(g *generator) { g.addNoise(0, leader, g.scaled(0.3, 3), noiseKind(g.n(int(noiseKinds)))) }},
		{2, func(g *generator) { g.addNoise(0, standby, g.scaled(0.3, 3), noiseKind(g.n(int(noiseKinds)))) }},
	}
	recordFaults = []macro{
		single(3, Delete, nobody, 0, 0), single(2, Empty, nobody, 0, 0), single(1, Truncate, nobody, 0, 0), single(1, Garble, nobody, 0, 0),
		single(2, Restore, nobody, 0, 0), single(2, OlderClient, nobody, 0, 0), single(1, OlderKeeps, nobody, 0, 0),
		single(1, ForeignOnce, nobody, 0, 0), single(1, OversizeValue, nobody, 0, 0),
	}
	orders = []macro{
		single(5, Prefer, nobody, 0, 0), single(2, PauseOrder, nobody, 0, 0), single(4, NoteOrder, nobody, 0, 0), single(1, Stopper, nobody, 0, 0),
	}
)

// damageBehindLeader: the record is damaged while its holder cannot see it.
func damageBehindLeader(kinds ...Kind) macro {
	return macro{6, func(g *generator) {
		if g.chance(0.7) {
			g.add(0, Cut, leader, g.scaled(0.5, 2))
		} else {
			g.add(0, Freeze, leader, g.scaled(0.5, 2))
		}
		g.add(g.scaled(0.001, 0.4), pick(g.rng, kinds), nobody, 0)
	}}
}

// deleteTwice: the record is deleted, and what comes in its place too.
var deleteTwice = macro{6, func(g *generator) {
	g.add(0, DeleteCreated, nobody, 0)
	g.add(g.moment(), Delete, nobody, 0)
	g.at += g.scaled(1, 2)
}}

// freshAndCut: the leader is given a shorter D, its answers are lost and it is
// cut off, while a standby restarts: what that one knows is only what the record
// says. Later D grows again.
var freshAndCut = macro{6, func(g *generator) {
	f := g.add(0, Update, leader, 0)
	f.N -= f.N % 2
	after := g.moment() // before it has renewed with the shorter one
	for range 3 {
		g.addNoise(after, leader, g.scaled(0.3, 0.6), noiseLostAnswers)
	}
	g.add(after+g.scaled(0.22, 0.4), Cut, leader, g.scaled(1, 2))
	g.add(after+g.scaled(0.1, 0.3), Crash, standby, g.scaled(0.01, 0.1))
	f = g.add(after+g.scaled(1, 1.5), Update, anyone, 0)
	f.N |= 1
	g.at += g.scaled(1.5, 2.5)
}}

// restoreBehind: a candidate is away while somebody else begins a term, and
// finds its own record again.
var restoreBehind = macro{6, func(g *generator) {
	away := g.scaled(1.1, 2.2)
	g.add(0, pick(g.rng, []Kind{Cut, Freeze, Cut}), leader, away)
	g.add(away-g.scaled(0.01, 0.1), RestoreOwn, chosen, 0)
	if g.chance(0.7) {
		g.add(away-g.scaled(0.001, 0.01), Cut, leader, g.scaled(0.2, 0.8))
	}
	g.at += away
}}

// crashAndOrders: the leader is gone, and orders come all the time.
var crashAndOrders = macro{3, func(g *generator) {
	g.add(0, Crash, leader, g.scaled(1.5, 4))
	for at := g.moment(); at < 3*g.sc.D; at += g.scaled(0.05, 0.3) {
		g.add(at, NoteOrder, nobody, 0)
	}
	g.at += 2 * g.sc.D
}}

var twinOfLeader = macro{6, func(g *generator) {
	g.add(0, Twin, leader, g.scaled(0.5, 2))
	if g.chance(0.4) {
		g.add(g.scaled(0, 0.3), Cut, leader, g.scaled(0.3, 2))
	}
	g.at += g.scaled(0.5, 1.5)
}}

// cloneOfLeader: the leading cluster is cut off from the store, and a copy of it
// starts.
var cloneOfLeader = macro{6, func(g *generator) {
	g.add(0, Cut, leader, g.scaled(0.8, 2))
	g.add(g.scaled(0, 0.3), Twin, leader, g.scaled(0.8, 3))
	g.at += g.scaled(1, 2)
}}

// freezeActing: the process that acts for its cluster is stopped, goes on, and
// maybe stopped again.
var freezeActing = macro{6, func(g *generator) {
	g.add(0, Freeze, leader, g.scaled(0.5, 2))
	if g.chance(0.5) {
		g.add(g.scaled(0.6, 1), Freeze, leader, g.scaled(0.1, 2))
	}
	g.at += g.scaled(0.7, 1.5)
}}

// slowAcquisition: the leader dies, and the others' requests are slow.
var slowAcquisition = macro{4, func(g *generator) {
	g.add(0, Crash, leader, g.scaled(1, 3))
	g.addNoise(g.scaled(0.6, 0.9), nobody, g.scaled(0.3, 1), pick(g.rng, []noiseKind{noiseSlow, noiseLostAnswers, noiseLate}))
	g.at += g.scaled(1, 2)
}}

// slowThenCut: reads are slow, and the leader is cut off.
var slowThenCut = macro{6, func(g *generator) {
	d := g.scaled(0.5, 1.5)
	g.addNoise(0, nobody, d, noiseSlow)
	g.add(d-g.scaled(0, 0.3), Cut, leader, g.scaled(1.2, 2))
	g.at += g.scaled(1, 2)
}}

// frozenTaker: the leader dies, and the one that takes the lock is frozen while
// the answer is on its way.
var frozenTaker = macro{4, func(g *generator) {
	g.add(0, FreezeTaker, nobody, g.scaled(0.1, 1.2))
	g.add(g.moment(), Crash, leader, g.scaled(1, 3))
	g.at += g.scaled(1, 2)
}}

// stepBehindLeader: the store's clock is stepped, or everybody's is, while the
// leader cannot write, and a candidate that starts then finds a record that looks
// old.
var stepBehindLeader = macro{6, func(g *generator) {
	g.add(0, Cut, leader, g.scaled(0.3, 1))
	after := g.scaled(0.05, 0.3)
	if g.sc.StoreSteps {
		g.add(after, StoreStep, nobody, 0)
	} else {
		g.add(after, WallStep, anyone, 0)
	}
	g.add(g.scaled(0, 0.3), Crash, standby, g.scaled(0.05, 0.3))
	g.at += g.scaled(0.5, 2)
}}

// longDead: nobody runs for so long that the store's clock may tell; or only a
// leader that is frozen, and wakes.
var longDead = macro{2, func(g *generator) {
	away := 5*time.Minute + g.dur(-time.Minute, 2*time.Minute)
	if g.chance(0.15) {
		g.add(0, Crash, standby, away)
		g.add(0, Crash, standby, away)
		g.add(g.moment(), Freeze, leader, away+g.scaled(-0.5, 0.5))
	} else {
		g.add(0, Blackout, nobody, away)
	}
	g.at += away
}}

// suspended: the monotonic clock stands still. The wall clock is what tells a
// term that its machine was asleep, so it is not stepped in such scenarios.
var suspendedLeader = single(4, Suspend, leader, 0.1, 2.5)

func join(lists ...[]macro) []macro {
	var all []macro
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// weighted changes the weights of a group.
func weighted(w int, list []macro) []macro {
	var all []macro
	for _, m := range list {
		all = append(all, macro{m.weight * w, m.make})
	}
	return all
}

var profiles = []profile{
	{name: "mixed", weight: 5, flavours: anyFlavour, macros: join(processFaults, networkFaults, recordFaults, orders)},
	{name: "network", weight: 3, flavours: anyFlavour, macros: join(networkFaults, processFaults, []macro{slowAcquisition, slowThenCut, frozenTaker}),
		tweak: func(sc *Scenario, r *rng) { sc.MixedD = r.chance(0.5) }},
	{name: "damage", weight: 4, flavours: anyFlavour, macros: join(recordFaults, networkFaults, []macro{
		damageBehindLeader(Delete, Empty, Truncate, Garble, OlderClient, OlderKeeps, ForeignOnce), deleteTwice, deleteTwice})},
	{name: "damageMixed", weight: 2, flavours: peersOnly, macros: join(recordFaults, networkFaults, processFaults),
		tweak: func(sc *Scenario, _ *rng) { sc.MixedD = true }},
	{name: "restore", weight: 3, flavours: anyFlavour, macros: join(processFaults, networkFaults, orders, []macro{
		restoreBehind, restoreBehind, single(3, Restore, nobody, 0, 0)})},
	{name: "drift", weight: 2, flavours: anyFlavour, macros: join([]macro{single(6, Cut, leader, 1.1, 2), single(3, RateChange, anyone, 0, 0)}, networkFaults),
		tweak: func(sc *Scenario, r *rng) {
			sc.Drift, sc.D = pick(r, []float64{0.02, 0.05, 0.1}), pick(r, []time.Duration{8 * time.Second, 10 * time.Second, 15 * time.Second})
			sc.Delay, sc.Noise, sc.LongDrain = [2]time.Duration{time.Millisecond, 5 * time.Millisecond}, 0, 0.8
		}},
	{name: "slow", weight: 2, flavours: anyFlavour, macros: join([]macro{slowThenCut, slowThenCut, frozenTaker, slowAcquisition}, networkFaults),
		tweak: func(sc *Scenario, r *rng) {
			sc.D, sc.Delay, sc.LongDrain = pick(r, []time.Duration{5 * time.Second, 10 * time.Second}), [2]time.Duration{time.Millisecond, 5 * time.Millisecond}, 0.8
		}},
	{name: "orders", weight: 3, flavours: anyFlavour, macros: join(weighted(3, orders), processFaults, networkFaults, []macro{crashAndOrders, crashAndOrders}),
		tweak: func(sc *Scenario, r *rng) { sc.TailOrders, sc.MixedD = true, r.chance(0.3) }},
	{name: "updates", weight: 2, flavours: anyFlavour, macros: join([]macro{freshAndCut, freshAndCut, single(4, Update, anyone, 0, 0)}, networkFaults, processFaults),
		tweak: func(sc *Scenario, r *rng) {
			sc.MixedD, sc.D = true, pick(r, []time.Duration{5 * time.Second, 10 * time.Second})
			sc.LongDrain = 0.6
		}},
	{name: "twins", weight: 2, flavours: anyFlavour, twins: true, macros: join([]macro{twinOfLeader, twinOfLeader, single(2, Twin, anyone, 0.5, 3)}, processFaults, networkFaults)},
	{name: "replicas", weight: 3, flavours: anyFlavour, twins: true, replicas: true, macros: join([]macro{twinOfLeader, cloneOfLeader, cloneOfLeader, freezeActing, freezeActing}, processFaults, networkFaults, orders),
		tweak: func(sc *Scenario, r *rng) {
			sc.D, sc.Delay = pick(r, []time.Duration{5 * time.Second, 10 * time.Second}), [2]time.Duration{time.Millisecond, 50 * time.Millisecond}
			sc.Noise = pick(r, []float64{0, 0, 0.01, 0.05})
		}},
	{name: "walls", weight: 2, flavours: anyFlavour, wallOffset: 3 * time.Hour, macros: join([]macro{single(20, WallStep, anyone, 0, 0)}, processFaults, networkFaults, recordFaults)},
	{name: "storeClock", weight: 2, flavours: []flavour{withDates}, macros: join([]macro{stepBehindLeader, stepBehindLeader, longDead}, processFaults, networkFaults, orders),
		tweak: func(sc *Scenario, r *rng) {
			sc.StoreSteps, sc.StoreOffset = r.chance(0.5), r.dur(-20*time.Second, 20*time.Second)
			sc.Delay, sc.Initial = [2]time.Duration{time.Millisecond, 20 * time.Millisecond}, wasHeld
		}},
	{name: "suspend", weight: 1, flavours: anyFlavour, macros: join([]macro{suspendedLeader, single(2, Suspend, anyone, 0.1, 2)}, processFaults, networkFaults)},
	{name: "stock", weight: 2, flavours: stockFlavour, macros: join(networkFaults, processFaults, weighted(1, orders)),
		tweak: func(sc *Scenario, r *rng) {
			sc.Drift, sc.D = 0.01, pick(r, []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second})
			if sc.Initial == nothing {
				sc.Initial = wasHeld // a stock elector takes what is absent at once
			}
		}},
}

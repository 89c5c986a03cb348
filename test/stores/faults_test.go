// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"tenure.dev/test/fault"
)

// A proxy is what faults are made with on one side.
type proxy interface {
	// trouble begins faults of a kind, for all requests of the side or a share of
	// them. Heal ends them.
	trouble(r *rand.Rand, d time.Duration)
	heal()
	close()
}

// httpProxy does it to single requests.
type httpProxy struct {
	*fault.HTTP
	mu   sync.Mutex
	held chan struct{} // closed by heal
}

func newHTTPProxy(target string) (*httpProxy, error) {
	p, err := fault.NewHTTP(target, nil)
	if err != nil {
		return nil, err
	}
	return &httpProxy{HTTP: p, held: make(chan struct{})}, nil
}

func (p *httpProxy) trouble(r *rand.Rand, d time.Duration) {
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	busy := http.Header{"Retry-After": {"1"}}
	actions := []func() fault.Action{
		fault.LoseAnswer, fault.LoseAnswer, fault.CutBefore,
		func() fault.Action { return fault.DelayRequest(time.Duration(rand.Int64N(int64(d)))) },
		func() fault.Action { return fault.DelayAnswer(time.Duration(rand.Int64N(int64(d)))) },
		func() fault.Action { return fault.Instead(fault.Answer{Status: 503, Header: busy}) },
		func() fault.Action { return fault.Instead(fault.Answer{Status: 429, Header: busy}) },
		func() fault.Action { return fault.Afterwards(fault.Answer{Status: 500}) },
		func() fault.Action { return fault.Instead(fault.HTML(200)) },
		func() fault.Action { return fault.HoldRequest(held) },
		func() fault.Action { return fault.HoldAnswer(held) },
	}
	share := []float64{0.1, 0.3, 1}[r.IntN(3)]
	one := actions[r.IntN(len(actions))]
	mixed := r.IntN(2) == 0
	p.SetRule(func(*http.Request) fault.Action {
		switch {
		case rand.Float64() > share:
			return fault.Pass
		case mixed:
			return actions[rand.IntN(len(actions))]()
		default:
			return one()
		}
	})
}

func (p *httpProxy) heal() {
	p.SetRule(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.held)
	p.held = make(chan struct{})
}

func (p *httpProxy) close() { p.Close() }

// tcpProxies do it to connections: those of one side, to all servers of a store.
type tcpProxies []*fault.TCP

func newTCPProxies(targets ...string) (tcpProxies, error) {
	var all tcpProxies
	for _, target := range targets {
		p, err := fault.NewTCP(target)
		if err != nil {
			all.close()
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (ps tcpProxies) trouble(r *rand.Rand, d time.Duration) {
	kinds := []func(*fault.TCP){
		(*fault.TCP).BlackHole, (*fault.TCP).DropAnswers, (*fault.TCP).Refuse, (*fault.TCP).Reset,
		func(p *fault.TCP) { p.Hold(fault.ToServer) },
		func(p *fault.TCP) { p.Hold(fault.ToClient) },
		func(p *fault.TCP) { p.Hold(fault.BothWays) },
		func(p *fault.TCP) { p.CutAfter(int64(rand.IntN(4000))) },
		func(p *fault.TCP) { p.Delay(fault.BothWays, time.Duration(rand.Int64N(int64(d/2)))) },
	}
	one := kinds[r.IntN(len(kinds))]
	if r.IntN(3) == 0 { // one server only, if there are several
		one(ps[r.IntN(len(ps))])
		return
	}
	for _, p := range ps {
		one(p)
	}
}

func (ps tcpProxies) heal() {
	for _, p := range ps {
		p.Pass()
	}
}

func (ps tcpProxies) close() {
	for _, p := range ps {
		p.Close()
	}
}

// none is the proxy of stores that have no network.
type none struct{}

func (none) trouble(*rand.Rand, time.Duration) {}
func (none) heal()                             {}
func (none) close()                            {}

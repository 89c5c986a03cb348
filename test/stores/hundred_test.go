// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"tenure.dev"
)

// TestAtDefaults measures, with the default durations and no faults but crashes,
// how long a failover takes, and a handover.
func TestAtDefaults(t *testing.T) {
	n := number("TENURE_STORES_HUNDRED", 0)
	if n == 0 {
		return // minutes; make stores runs it
	}
	seed := uint64(number("TENURE_STORES_SEED", int(time.Now().UnixNano())))
	each(t, func(t *testing.T, s *site) {
		m := &measured{t: t, site: s}
		m.lanes = lanes(t, s, n, "", 300*time.Millisecond, seed)
		side(m.lanes, func(i int) {
			if _, ok := m.lanes[i].see.next(0, time.Minute); !ok {
				t.Errorf("lock %d: nobody leads a minute after the start: %s", i, m.lanes[i].why())
			}
		})
		time.Sleep(3 * time.Second)
		side(m.lanes, m.crash)
		side(m.lanes, func(i int) { must(t, m.lanes[i].restart()) })
		time.Sleep(5 * time.Second) // until the standbys have made themselves known
		side(m.lanes, m.handover)
		finish(t, m.lanes)
		m.report()
	})
}

// measured are the figures of one store.
type measured struct {
	t     *testing.T
	site  *site
	lanes []*lane

	mu        sync.Mutex
	failovers []time.Duration
	orders    []time.Duration // from the order to the next leader
	drains    []time.Duration // from the end of the drain
}

// crash ends a leader at some time within a period, and times the failover.
func (m *measured) crash(i int) {
	l := m.lanes[i]
	time.Sleep(rand.N(l.d.Period))
	leader, ok := l.see.leader(l.alive)
	if !ok {
		m.t.Errorf("lock %d: nobody leads: %s", i, l.why())
		return
	}
	begin := time.Now()
	l.candidate(leader.who).crash()
	next, ok := l.see.next(leader.epoch, 30*time.Second)
	if !ok {
		m.t.Errorf("lock %d: no failover within 30 s: %s", i, l.why())
		return
	}
	took := next.began.Sub(begin)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failovers = append(m.failovers, took)
	if limit := l.d.Failover + answerSlack; took > limit {
		m.t.Errorf("lock %d: the failover took %v, more than %v", i, took, limit)
	}
}

// handover orders one, to the standby by name, and times it.
func (m *measured) handover(i int) {
	l := m.lanes[i]
	time.Sleep(rand.N(10 * l.d.Period)) // as people give orders: not all at once
	leader, ok := l.see.leader(l.alive)
	if !ok {
		m.t.Errorf("lock %d: nobody leads: %s", i, l.why())
		return
	}
	to := l.other(l.candidate(leader.who))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	begin := time.Now()
	if _, err := tenure.Handover(ctx, l.direct, to.name); err != nil {
		m.t.Errorf("lock %d: %v", i, err)
		return
	}
	ordered := time.Now()
	next, ok := l.see.next(leader.epoch, 30*time.Second)
	if !ok || next.who != to.who {
		m.t.Errorf("lock %d: no handover to %s within 30 s: next was %s, epoch %d", i, to.who, next.who, next.epoch)
		return
	}
	order := next.began.Sub(begin)
	drain := next.began.Sub(l.see.of(leader.epoch).drained)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.orders, m.drains = append(m.orders, order), append(m.drains, drain)
	period := l.d.Period
	late := drain > time.Second
	if !m.site.watches {
		late = next.began.Sub(ordered) > period+period/10+300*time.Millisecond && drain > 1500*time.Millisecond
	}
	if late {
		m.t.Errorf("lock %d: the handover took %v from the order, %v from the end of the drain", i, order, drain)
	}
}

func (m *measured) report() {
	for _, all := range [][]time.Duration{m.failovers, m.orders, m.drains} {
		slices.Sort(all)
	}
	figures := func(all []time.Duration) string {
		return fmt.Sprintf("median %v, longest %v", round(quantile(all, 0.5)), round(quantile(all, 1)))
	}
	note(m.t, fmt.Sprintf("%s: %d locks; crash to the next leader: %s; handover from the order: %s, from the end of the drain: %s",
		m.t.Name(), len(m.lanes), figures(m.failovers), figures(m.orders), figures(m.drains)))
}

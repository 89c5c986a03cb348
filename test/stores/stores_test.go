// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tenure.dev"
)

func number(env string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(env)); err == nil {
		return n
	}
	return otherwise
}

// chosen reports whether a store is to be run.
func chosen(name string) bool {
	all := os.Getenv("TENURE_STORES")
	return all == "" || slices.Contains(strings.Split(all, ","), name)
}

// each runs a test for every store that is chosen.
func each(t *testing.T, f func(t *testing.T, s *site)) {
	t.Helper()
	eachOf(t, os.Getenv("TENURE_STORES_LOCKS") == "", f)
}

// eachOf is each, the stores one after another or at the same time.
func eachOf(t *testing.T, atOnce bool, f func(t *testing.T, s *site)) {
	t.Helper()
	for _, s := range sites {
		if !chosen(s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "tenure-stores-")
			must(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) })
			running := s.start(t, dir)
			if atOnce {
				t.Parallel() // after all have been started
			}
			f(t, running)
		})
	}
}

// lanes makes locks side by side.
func lanes(t *testing.T, s *site, n int, params string, drain time.Duration, seed uint64) []*lane {
	t.Helper()
	all := make([]*lane, n)
	errs := make([]error, n)
	side(all, func(i int) { all[i], errs[i] = newLane(t, s, i, params, drain, seed) })
	for _, err := range errs {
		must(t, err)
	}
	return all
}

// side runs f for each lane, side by side.
func side(all []*lane, f func(i int)) {
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// finish ends all lanes and reports what was wrong.
func finish(t *testing.T, all []*lane) {
	t.Helper()
	errs := make([][]error, len(all))
	side(all, func(i int) { errs[i] = all[i].end() })
	for i, list := range errs {
		for _, err := range list {
			t.Errorf("lock %d: %v", i, err)
		}
	}
}

// TestFailovers has locks side by side, round after round: while the proxies lose,
// delay, refuse and cut, something happens to each lock. Then the faults end, and
// each must have a leader in time. All that was seen is checked at the end.
func TestFailovers(t *testing.T) {
	seed := uint64(number("TENURE_STORES_SEED", int(time.Now().UnixNano())))
	t.Logf("seed %d (repeat with TENURE_STORES_SEED=%d)", seed, seed)
	each(t, func(t *testing.T, s *site) {
		r := &rounds{t: t, site: s, rng: rand.New(rand.NewPCG(seed, 99)), kinds: map[event]int{}, begin: time.Now()}
		r.lanes = lanes(t, s, number("TENURE_STORES_LOCKS", 4), "ttl=6s", 300*time.Millisecond, seed)
		r.settle()
		for range number("TENURE_STORES_ROUNDS", 1) {
			r.round()
		}
		r.steady()
		finish(t, r.lanes)
		r.report()
	})
}

// rounds are those of one store.
type rounds struct {
	t     *testing.T
	site  *site
	rng   *rand.Rand
	lanes []*lane

	begin    time.Time
	mu       sync.Mutex
	kinds    map[event]int
	took     []time.Duration // from the end of the faults to a leader
	perRead  string
	perWrite string
	busiest  int           // writes to a lock in 10 s
	stalled  time.Time     // when the server itself was last found not to answer
	stalls   time.Duration // in all
	rate     float64       // writes to a lock in a second, over the run
}

// settle waits until each lock has a leader, before any fault.
func (r *rounds) settle() {
	side(r.lanes, func(i int) {
		if _, ok := r.lanes[i].see.next(0, 30*time.Second); !ok {
			r.t.Errorf("lock %d: nobody leads 30 s after the start: %s", i, r.lanes[i].why())
		}
	})
}

const (
	troubleLasts = 6 * time.Second
	// longestDelay is how long a proxy delays a request, at most.
	longestDelay = 2 * time.Second
	// answerSlack is what the requirement adds to D and P.
	answerSlack = time.Second
)

func (r *rounds) round() {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i, p := range r.site.proxies {
		rng := rand.New(rand.NewPCG(r.rng.Uint64(), uint64(i)))
		wg.Go(func() { trouble(p, rng, stop) })
	}
	before, damaged := make([]int64, len(r.lanes)), make([]bool, len(r.lanes))
	side(r.lanes, func(i int) {
		var what event
		before[i], damaged[i], what = r.lanes[i].round(troubleLasts)
		r.mu.Lock()
		r.kinds[what]++
		r.mu.Unlock()
	})
	close(stop)
	wg.Wait()
	for _, p := range r.site.proxies {
		p.heal()
	}
	// A request that a proxy delays is a fault until it arrives: the renewal of a
	// leader that is dead by then begins the wait anew.
	time.Sleep(longestDelay)
	healthy := make(chan struct{})
	wg.Go(func() { r.monitor(healthy) })
	side(r.lanes, func(i int) { r.recovers(i, before[i], damaged[i]) })
	close(healthy)
	wg.Wait()
	time.Sleep(time.Second)
}

// monitor asks the server itself, past the proxies, until stop. While it does not
// answer, on a machine that is too busy for it, faults have not ended.
func (r *rounds) monitor(stop chan struct{}) {
	const slow = 500 * time.Millisecond
	for {
		select {
		case <-stop:
			return
		case <-time.After(100 * time.Millisecond):
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		begin := time.Now()
		_, err := tenure.Look(ctx, r.lanes[0].direct)
		cancel()
		if took := time.Since(begin); took > slow || err != nil {
			r.mu.Lock()
			r.stalled, r.stalls = time.Now(), r.stalls+took
			r.mu.Unlock()
		}
	}
}

// trouble makes one fault after another on a side, with pauses, until stop.
func trouble(p proxy, rng *rand.Rand, stop chan struct{}) {
	for {
		for _, on := range []bool{false, true} {
			if on {
				p.trouble(rng, longestDelay)
			} else {
				p.heal()
			}
			select {
			case <-time.After(time.Duration(200+rng.IntN(1800)) * time.Millisecond):
			case <-stop:
				return
			}
		}
	}
}

// recovers waits for a leader after the faults, and checks how long that took.
func (r *rounds) recovers(i int, before int64, damaged bool) {
	l := r.lanes[i]
	from := time.Now()
	if err := l.restart(); err != nil {
		r.t.Errorf("lock %d: %v", i, err)
		return
	}
	limit := l.d.LeaseDuration + l.d.Period + answerSlack
	if damaged || l.disturbed() {
		limit += l.d.LeaseDuration / 2
	}
	for {
		if s, ok := l.see.leader(l.alive); ok && s.drained.IsZero() {
			break
		}
		if time.Since(from) > limit+30*time.Second {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.mu.Lock()
	if r.stalled.After(from) {
		from = r.stalled
	}
	took := max(0, time.Since(from))
	r.took = append(r.took, took)
	r.mu.Unlock()
	if took > limit {
		r.t.Errorf("lock %d: a leader %v after the faults ended, the limit is %v (epoch before %d, damaged %v): %s", i, took, limit, before, damaged, l.why())
	}
}

// disturbed reports whether the record is not a holder's: the wait is longer.
func (l *lane) disturbed() bool {
	v, err := tenure.Look(l.t.Context(), l.direct)
	return err != nil || v.State != tenure.RecordHeld && v.State != tenure.RecordReleased
}

// steady counts requests while nothing happens: one per renewal, one per poll.
func (r *rounds) steady() {
	if r.site.served == nil {
		return
	}
	const window = 6 * time.Second
	before := r.counts()
	time.Sleep(window)
	after := r.counts()
	for i := range after {
		after[i] -= before[i]
	}
	reads, polls, writes, renewals := after[0], after[1], after[2], after[3]
	r.perRead = fmt.Sprintf("%d requests for %d polls", reads, polls)
	r.perWrite = fmt.Sprintf("%d requests for %d renewals", writes, renewals)
	// What is under way at the ends of the window may count on one side only.
	slack := int64(2 * len(r.lanes))
	if reads > polls+slack || writes > renewals+slack {
		r.t.Errorf("more than one request: %s, %s", r.perRead, r.perWrite)
	}
}

// counts returns requests that read, polls, requests that write, and renewals.
func (r *rounds) counts() (n [4]int64) {
	n[0], n[2] = r.site.served()
	for _, l := range r.lanes {
		l.mu.Lock()
		all := append(slices.Clone(l.past), l.now[:]...)
		l.mu.Unlock()
		for _, c := range all {
			reads, _ := c.link.figures()
			n[1] += int64(reads)
		}
		n[3] += int64(l.writes.total())
	}
	return n
}

// busy is how many writes a lock may have within the 10 s in which it has most:
// one a second, and what handovers and requests that failed add. Over a whole run
// it is less than one a second.
const busy = 10 + 8

func (r *rounds) report() {
	terms := 0
	for i, l := range r.lanes {
		n, _ := l.see.totals()
		terms += n - 1
		most := l.writes.most(10 * time.Second)
		perSecond := float64(l.writes.total()) / time.Since(r.begin).Seconds()
		r.rate = max(r.rate, perSecond)
		if perSecond > 1 && time.Since(r.begin) > time.Minute { // an event weighs more in a short run
			r.t.Errorf("lock %d: %.2f writes a second over the whole run", i, perSecond)
		}
		r.busiest = max(r.busiest, most)
		if most > busy {
			r.t.Errorf("lock %d: %d writes within 10 s", i, most)
		}
	}
	slices.Sort(r.took)
	line := fmt.Sprintf("%s: %d locks, %d failovers and handovers (%s); a leader after the faults: median %v, longest %v; at most %.2f writes a second to a lock, %d in 10 s",
		r.t.Name(), len(r.lanes), terms, list(r.kinds), round(quantile(r.took, 0.5)), round(quantile(r.took, 1)), r.rate, r.busiest)
	if r.stalls > 0 {
		line += fmt.Sprintf("; the server itself stood still for %v in all", round(r.stalls))
	}
	if r.perRead != "" {
		line += "; " + r.perRead + ", " + r.perWrite
	}
	note(r.t, line)
}

func list(kinds map[event]int) string {
	var all []string
	for k, n := range kinds {
		all = append(all, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// note logs a line of figures, and adds it to the report.
func note(t *testing.T, line string) {
	t.Helper()
	t.Log(line)
	path := os.Getenv("TENURE_STORES_REPORT")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(t, err)
	defer f.Close()
	_, err = fmt.Fprintln(f, line)
	must(t, err)
}

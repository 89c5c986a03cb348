// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tenure.dev"
)

// sides are the two ways to a store, each with faults of its own. The candidates
// of a lock come by different ones.
const sides = 2

// A candidate is one process that contends for a lock.
type candidate struct {
	lane   *lane
	side   int
	name   string // its identity, that of all processes on its side
	who    string // this process
	link   *link
	e      *tenure.Elector
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	close  func()
	dead   atomic.Bool // crashed: what it still does in this process counts for nothing
}

// A lane is one lock, with a candidate on each side.
type lane struct {
	t      *testing.T
	site   *site
	n      int
	params string
	rng    *rand.Rand
	drain  time.Duration // the longest that work takes to end
	writes writeLog
	see    *observer
	direct tenure.Register // past the proxy

	mu   sync.Mutex
	now  [sides]*candidate
	past []*candidate
	d    tenure.Durations
}

func newLane(t *testing.T, s *site, n int, params string, drain time.Duration, seed uint64) (*lane, error) {
	l := &lane{t: t, site: s, n: n, params: params, drain: drain, see: newObserver(), rng: rand.New(rand.NewPCG(seed, uint64(n)))}
	lock, err := tenure.Open(context.Background(), s.url(-1, n, params), tenure.Vars{})
	if err != nil {
		return nil, err
	}
	l.direct = lock.Register
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for try := 0; ; try++ { // many come at once
		_, err := tenure.Init(ctx, l.direct, tenure.InitOptions{Who: "test", LeaseDuration: lock.Settings.LeaseDuration, FirstEver: true})
		if err == nil || errors.Is(err, tenure.ErrExists) {
			break
		}
		if try == 5 {
			return nil, fmt.Errorf("lock %d: %w", n, err)
		}
		time.Sleep(100 * time.Millisecond << try)
	}
	for side := range sides {
		if err := l.start(side); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// start starts a process on a side where none runs.
func (l *lane) start(side int) error {
	lock, err := tenure.Open(context.Background(), l.site.url(side, l.n, l.params), tenure.Vars{})
	if err != nil {
		return err
	}
	c := &candidate{lane: l, side: side, name: fmt.Sprintf("lock%d-%c", l.n, 'a'+side), done: make(chan struct{})}
	l.mu.Lock()
	c.who = fmt.Sprintf("%s.%d", c.name, len(l.past))
	l.mu.Unlock()
	c.link = &link{writes: &l.writes}
	c.close = closerOf(lock.Register)
	o := lock.Options()
	o.Register = behind(lock.Register, c.link)
	o.Identity, o.Host = c.name, fmt.Sprintf("host-%c", 'a'+side)
	o.Observe = l.see.observe(c.who)
	e, err := tenure.New(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.e = cancel, e
	l.mu.Lock()
	l.now[side] = c
	l.d = e.Status().Durations
	l.mu.Unlock()
	go func() {
		defer close(c.done)
		defer func() {
			if p := recover(); p != nil {
				c.err = fmt.Errorf("panic: %v", p)
			}
		}()
		c.err = e.Run(ctx, l.work)
	}()
	return nil
}

// closerOf returns what frees a register's connections.
func closerOf(reg tenure.Register) func() {
	switch c := reg.(type) {
	case interface{ Close() }:
		return c.Close
	case interface{ Close() error }:
		return func() { _ = c.Close() } // the test is over
	default:
		return func() {}
	}
}

// work takes a while to end, and notes when it has.
func (l *lane) work(ctx context.Context, t *tenure.Term) error {
	<-ctx.Done()
	if l.drain > 0 {
		time.Sleep(time.Duration(rand.Int64N(int64(l.drain))))
	}
	l.see.drained(t.Epoch())
	return ctx.Err()
}

func (l *lane) candidate(who string) *candidate {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.now {
		if c != nil && c.who == who {
			return c
		}
	}
	return nil
}

// why says what the candidates have last met, for a failure's message.
func (l *lane) why() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, c := range l.now {
		s := c.e.Status()
		all = append(all, fmt.Sprintf("%s: %s, follows %q, refused: %v, last error: %v", c.who, s.State, s.Holder, s.Refused, s.LastError))
	}
	return strings.Join(all, "; ")
}

func (l *lane) alive(who string) bool {
	c := l.candidate(who)
	return c != nil && !c.dead.Load()
}

func (l *lane) other(c *candidate) *candidate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now[1-c.side]
}

// crash ends a process without a word: nothing that it does from here on
// reaches the store.
func (c *candidate) crash() {
	c.link.cut()
	c.dead.Store(true)
	c.cancel()
}

// restart starts again whoever has crashed or stopped.
func (l *lane) restart() error {
	for side := range sides {
		l.mu.Lock()
		c := l.now[side]
		down := c.dead.Load()
		select {
		case <-c.done:
			down = true
		default:
		}
		if down {
			l.past = append(l.past, c)
		}
		l.mu.Unlock()
		if down {
			if err := l.start(side); err != nil {
				return err
			}
		} else {
			c.link.mend()
		}
	}
	return nil
}

// end stops everybody and returns what was wrong.
func (l *lane) end() (errs []error) {
	l.mu.Lock()
	all := append(l.past, l.now[:]...)
	l.mu.Unlock()
	for _, c := range all {
		c.cancel()
	}
	for _, c := range all {
		if c == nil {
			continue
		}
		select {
		case <-c.done:
			if c.err != nil {
				errs = append(errs, fmt.Errorf("%s: Run returned %w", c.name, c.err))
			}
		case <-time.After(time.Minute):
			errs = append(errs, fmt.Errorf("%s: Run has not returned within a minute", c.name))
		}
		if _, most := c.link.figures(); most > hotLimit {
			errs = append(errs, fmt.Errorf("%s: a hot loop, %d requests to the lock in a second", c.name, most))
		}
		c.close()
	}
	closerOf(l.direct)()
	errs = append(errs, l.see.check()...)
	l.see.mu.Lock()
	defer l.see.mu.Unlock()
	return append(errs, l.see.bad...)
}

// hotLimit is how many requests to the lock a process may make in a second: a
// preferred candidate polls every 200 ms, a failing one every P/20 at first.
const hotLimit = 40

// An event is what happens to one lock in a round of faults.
type event string

const (
	crashLeader  event = "crash"
	cutLeader    event = "cut"
	stopLeader   event = "stop"
	handoverTo   event = "handover"
	handoverAny  event = "handover to any"
	damageRecord event = "damage"
)

var events = []event{crashLeader, crashLeader, crashLeader, cutLeader, cutLeader, stopLeader, handoverTo, handoverTo, handoverAny, damageRecord}

// round makes one event happen to the lock, at some time within d, and returns
// the epoch that stood before it, and whether the record was damaged.
func (l *lane) round(d time.Duration) (before int64, damaged bool, what event) {
	time.Sleep(time.Duration(l.rng.Int64N(int64(d))))
	what = events[l.rng.IntN(len(events))]
	leader, ok := l.see.leader(l.alive)
	if !ok {
		return 0, false, "nobody led"
	}
	c := l.candidate(leader.who)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var err error
	switch what {
	case crashLeader:
		c.crash()
	case cutLeader:
		c.link.cut()
	case stopLeader:
		c.cancel()
	case handoverTo:
		_, err = tenure.Handover(ctx, l.direct, l.other(c).name)
	case handoverAny:
		_, err = tenure.Handover(ctx, l.direct, tenure.AnyHolder)
	case damageRecord:
		kinds := l.site.damages
		k := kinds[l.rng.IntN(len(kinds))]
		what += event(" " + k.name)
		err, damaged = k.do(ctx, l), true
	}
	if err != nil { // the leader may be gone by a fault, or the candidate not known
		what += ", refused"
	}
	return leader.epoch, damaged, what
}

// garble writes what no elector writes, as somebody without manners would.
func garble(value func(*lane) []byte) func(context.Context, *lane) error {
	return func(ctx context.Context, l *lane) error {
		var err error
		for range 50 { // against a leader that renews
			var version tenure.Version
			if _, version, err = l.direct.Read(ctx); err != nil {
				return err
			}
			if _, err = l.direct.Write(ctx, value(l), version); err == nil {
				return nil
			}
		}
		return err
	}
}

var (
	garbled = damage{"garbled", garble(func(*lane) []byte { return []byte(`{"holderIdentity":`) })}
	emptied = damage{"emptied", garble(func(*lane) []byte { return []byte(`{}`) })}
	foreign = damage{"a stranger's", garble(func(l *lane) []byte {
		return fmt.Appendf(nil, `{"holderIdentity":"stranger","leaseDurationSeconds":%d,"renewTime":%q,"leaseTransitions":3}`,
			int(l.d.LeaseDuration.Seconds()), time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
	})}
)

// A damage is something that happens to a record behind its holder's back.
type damage struct {
	name string
	do   func(context.Context, *lane) error
}

// params appends parameters to a lock URL.
func withParams(url, params string) string {
	switch {
	case params == "":
		return url
	case strings.Contains(url, "?"):
		return url + "&" + params
	default:
		return url + "?" + params
	}
}

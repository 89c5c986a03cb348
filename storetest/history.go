// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"tenure.dev"
)

const (
	whyHistory  = "the election is proved for a linearizable register. Each answer below may look right by itself; there is no order of them all that one register could have followed, so two candidates have seen different truths."
	lookHistory = "the drawing whose path is printed: it shows how far the calls could be put in order and the call that does not fit. Then the cases before this one, which take the promises one by one."
)

// historyCases check that all that concurrent clients were told fits together.
var historyCases = []testCase{
	{
		name: "history", why: whyHistory, look: lookHistory,
		run: func(t T, h *Harness) {
			testHistories(t, h, func() []tenure.Register { return []tenure.Register{h.New(t)} })
		},
	},
	{
		name: "history-two-instances", why: whyHistory, look: lookHistory,
		run: func(t T, h *Harness) {
			if h.Open == nil {
				t.Skipf("the harness has no Open")
			}
			testHistories(t, h, func() []tenure.Register {
				a, b := h.Open(t)
				return []tenure.Register{a, b}
			})
		},
	},
}

func testHistories(t T, h *Harness, fresh func() []tenure.Register) {
	t.Helper()
	t.Logf("seed %d: set Harness.Seed to draw the same requests again", h.Seed)
	unanswered := 0
	for i := range h.Histories {
		ops := recordHistory(t, h, fresh(), h.Seed+uint64(i))
		for _, op := range ops {
			if op.outcome == outcomeUnknown {
				unanswered++
			}
		}
		if problem := judge(ops); problem != "" {
			t.Fatalf("history %d of seed %d, %d operations: %s\n%s", i, h.Seed, len(ops), problem, draw(h.Drawings, ops))
		}
	}
	t.Logf("%d histories, %d writes without an answer", h.Histories, unanswered)
}

// An outcome is what a client knows of its request.
type outcome int

const (
	outcomeDone     outcome = iota
	outcomeAbsent           // a read of an empty register
	outcomeConflict         // the write did not happen and will not
	outcomeUnknown          // the write may happen, now or later, or not
)

// An operation is one request and its answer. Every write of a history writes
// another text, so that a text tells which write it is from.
type operation struct {
	client       int
	write        bool
	text         string         // written, or read
	old          tenure.Version // of a write
	version      tenure.Version // answered
	outcome      outcome
	call, answer time.Duration // since the history's start
}

// recordHistory lets clients make requests at once, client i of register i
// modulo their number, and ends with a read of each register.
func recordHistory(t T, h *Harness, registers []tenure.Register, seed uint64) []operation {
	t.Helper()
	start := time.Now()
	var mu sync.Mutex
	var ops []operation
	keep := func(op operation) {
		mu.Lock()
		defer mu.Unlock()
		ops = append(ops, op)
	}
	together(t, h.Clients, func(i int) error {
		c := &client{
			probe: &probe{t, h, registers[i%len(registers)]},
			id:    i,
			rng:   rand.New(rand.NewPCG(seed, uint64(i))),
			start: start,
			keep:  keep,
		}
		for range h.Requests {
			c.request()
		}
		return nil
	})
	for i, r := range registers {
		c := &client{probe: &probe{t, h, r}, id: h.Clients + i, start: start, keep: keep}
		for n := 0; !c.read() && c.again(n); n++ {
		}
	}
	return ops
}

// A client makes random requests and knows what an honest client would.
type client struct {
	*probe
	id      int
	rng     *rand.Rand
	start   time.Time
	keep    func(operation)
	known   tenure.Version   // the newest version that it has seen
	past    []tenure.Version // all that it has seen, the zero version included
	written int
	unsure  bool // the last write left open what the register holds
}

// request mixes reads, writes at the newest known version, and a few writes at
// an old one.
func (c *client) request() {
	p := c.rng.IntN(10)
	switch {
	case p < 3 || c.unsure && p < 8:
		c.read()
	case p < 9 || len(c.past) == 0:
		c.write(c.known)
	default:
		c.write(c.past[c.rng.IntN(len(c.past))])
	}
}

// read reports whether the store answered; a read that got no answer has no
// place in a history.
func (c *client) read() bool {
	op := operation{client: c.id, call: time.Since(c.start)}
	var err error
	runtime.Gosched() // for stores so fast that nothing would overlap
	op.text, op.version, err = c.readOnce()
	runtime.Gosched()
	op.answer = time.Since(c.start)
	switch {
	case errors.Is(err, tenure.ErrNotExist):
		op.outcome = outcomeAbsent
	case err != nil:
		return false
	}
	c.keep(op)
	c.learn(op.version)
	c.unsure = false
	return true
}

func (c *client) write(old tenure.Version) {
	c.written++
	op := operation{client: c.id, write: true, old: old, text: fmt.Sprintf("c%d-%d", c.id, c.written), call: time.Since(c.start)}
	var err error
	runtime.Gosched()
	op.version, err = c.writeOnce(op.text, old)
	runtime.Gosched()
	op.answer = time.Since(c.start)
	switch {
	case err == nil:
		c.learn(op.version)
	case errors.Is(err, tenure.ErrConflict):
		op.outcome, op.version = outcomeConflict, ""
		c.unsure = true
	default:
		op.outcome, op.version = outcomeUnknown, ""
		c.unsure = true
	}
	c.keep(op)
}

func (c *client) learn(version tenure.Version) {
	if version != c.known {
		c.past = append(c.past, c.known)
	}
	c.known = version
}

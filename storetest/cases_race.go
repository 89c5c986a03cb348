// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"tenure.dev"
)

// raceCases are about several clients at once.
var raceCases = []testCase{
	{
		name: "read-fresh",
		why:  "a candidate that is shown an old record waits too long; one that is shown its own released record takes it for the present one; a command that reads after its write reports the state before it.",
		look: "caches and replicas between driver and store: ask for a linearizable read and send no-store.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			var version tenure.Version
			for i := range 30 {
				text := fmt.Sprint("write ", i)
				version = p.mustWrite(text, version)
				together(t, 3, func(int) error {
					got, v, err := p.read()
					if err == nil && (got != text || v != version) {
						err = fmt.Errorf("after the write of %q, version %q, had returned, a read returned %q, version %q", text, version, got, v)
					}
					return err
				})
			}
		},
	},
	{
		name: "concurrent-creates",
		why:  "all copies start at once after an outage and create the lock together. Two winners are two leaders.",
		look: "whether check and write are one step in the store. A driver that reads first and then writes passes every test in which one client is alone.",
		run:  testConcurrentCreates,
	},
	{
		name: "concurrent-increments",
		why:  "epochs are counted by a read and a conditional write. A write that is lost under another is an epoch given twice: the fence cannot tell the two leaders apart.",
		look: "whether check and write are one step in the store, for updates as well as for creates.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			p.mustWrite("", "")
			testMarks(t, h, 20, func(int) *probe { return p })
		},
	},
	{
		name: "two-instances",
		why:  "the candidates are in different clusters. What holds only between the goroutines of one process (a mutex, a cache, a counter) does not hold between leaders.",
		look: "state that the driver keeps in memory: nothing but the store may decide.",
		run:  testTwoInstances,
	},
	{
		name: "version-own",
		why:  "a driver that learns the version of its write by reading afterwards may learn a rival's. Its owner then believes to hold what the rival wrote, and renews over it.",
		look: "that the version comes from the answer to the write itself. If the store's answer does not carry one, make the version yourself and write it.",
		run:  testVersionOwn,
	},
	{
		name: "value-with-its-version",
		why:  "a value with the version of another state lets a candidate write over a record that it has never seen: it judges the old one as expired and replaces the new one.",
		look: "that Read takes both from one answer: metadata and body in one request, one row, one open file.",
		run:  testValueWithItsVersion,
	},
	{
		name: "conflict-is-definite",
		why:  "a candidate that got ErrConflict forgets the write, nonce and all. If it was applied, or is later, the lock is held by a term that nobody runs, or that is over.",
		look: "retries: a client that sends a write again after a lost answer meets its own first write and reports a conflict. Switch retries of writes off. Answers that prove no other version (a 409 of concurrent requests, 429, 5xx) are other errors.",
		run:  testConflictIsDefinite,
	},
}

func testConcurrentCreates(t T, h *Harness) {
	for round := range 5 {
		p := open(t, h)
		var mu sync.Mutex
		won := map[string]tenure.Version{}
		maybe := map[string]bool{} // writes without an answer
		together(t, 10, func(i int) error {
			text := fmt.Sprintf("round %d client %d", round, i)
			version, err := p.writeOnce(text, "")
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won[text] = version
			case errors.Is(err, tenure.ErrNotExist):
				return fmt.Errorf("create: %w; want success or ErrConflict", err)
			case !errors.Is(err, tenure.ErrConflict):
				maybe[text] = true
			}
			return nil
		})
		if len(won) > 1 {
			t.Fatalf("round %d: %d creates of one register succeeded: %q", round, len(won), won)
		}
		text, version, err := p.read()
		switch {
		case err != nil && len(won) == 0 && len(maybe) > 0:
			continue // nothing was answered, nothing need be there
		case err != nil:
			t.Fatalf("round %d: read after ten creates, of which %q succeeded: %v", round, won, err)
		}
		if v, ok := won[text]; (!ok || v != version) && !maybe[text] {
			t.Fatalf("round %d: the register holds %q, version %q, but the create that succeeded is %q", round, text, version, won)
		}
	}
}

// testMarks lets n clients each add a mark to the value by compare-and-swap.
// Every mark must be there in the end, once.
func testMarks(t T, h *Harness, n int, probeOf func(i int) *probe) {
	t.Helper()
	together(t, n, func(i int) error { return addMark(probeOf(i), fmt.Sprintf("[%d]", i), 40*n) })
	text, _ := probeOf(0).mustRead()
	for i := range n {
		if mark := fmt.Sprintf("[%d]", i); strings.Count(text, mark) != 1 {
			t.Fatalf("client %d added %s once and was told so, but it is there %d times: %q", i, mark, strings.Count(text, mark), text)
		}
	}
}

// addMark returns when the mark was seen in the value, or its write succeeded.
// An unanswered write that comes late does no harm: at one version only one of
// the writes of the same mark can succeed.
func addMark(p *probe, mark string, tries int) error {
	failed := 0
	for range tries {
		text, version, err := p.read()
		if err != nil {
			return fmt.Errorf("add %s: %w", mark, err)
		}
		if strings.Contains(text, mark) {
			return nil
		}
		_, err = p.writeOnce(text+mark, version)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, tenure.ErrConflict):
			p.again(min(failed, 10))
			failed++
		}
	}
	return fmt.Errorf("add %s: no success in %d tries", mark, tries)
}

func testTwoInstances(t T, h *Harness) {
	if h.Open == nil {
		t.Skipf("the harness has no Open")
	}
	ra, rb := h.Open(t)
	a, b := &probe{t, h, ra}, &probe{t, h, rb}
	a.mustBeAbsent()
	b.mustBeAbsent()
	version := a.mustWrite("", "")
	b.mustConflict("second", "")
	for i := range 10 {
		b.mustHold(strings.Repeat(".", i), version)
		stale := version
		version = a.mustWrite(strings.Repeat(".", i)+"+", version)
		b.mustConflict("stale", stale)
		b.mustHold(strings.Repeat(".", i)+"+", version)
		version = b.mustWrite(strings.Repeat(".", i+1), version)
		a.mustHold(strings.Repeat(".", i+1), version)
	}
	testMarks(t, h, 10, func(i int) *probe { return []*probe{a, b}[i%2] })
}

// A pair is a value and the version that came with it.
type pair struct {
	text    string
	version tenure.Version
}

// pairs lets clients read and write at once, and returns what they were told of
// their writes and what they have read.
func pairs(t T, h *Harness) (told, seen []pair) {
	const clients, rounds = 4, 25
	p := open(t, h)
	p.mustWrite("start", "")
	var mu sync.Mutex
	together(t, clients, func(i int) error {
		for n := range rounds {
			got, version, err := p.read()
			if err != nil {
				return err
			}
			text := fmt.Sprintf("client %d write %d", i, n)
			own, err := p.writeOnce(text, version)
			mu.Lock()
			seen = append(seen, pair{got, version})
			if err == nil {
				told = append(told, pair{text, own})
			}
			mu.Unlock()
		}
		return nil
	})
	return told, seen
}

func testVersionOwn(t T, h *Harness) {
	told, _ := pairs(t, h)
	textOf := map[tenure.Version]string{}
	for _, w := range told {
		if other, ok := textOf[w.version]; ok {
			t.Fatalf("the writes of %q and of %q were both told version %q", other, w.text, w.version)
		}
		textOf[w.version] = w.text
	}
}

func testValueWithItsVersion(t T, h *Harness) {
	told, seen := pairs(t, h)
	textOf, versionOf := map[tenure.Version]string{}, map[string]tenure.Version{}
	for _, w := range told {
		textOf[w.version], versionOf[w.text] = w.text, w.version
	}
	for _, r := range seen {
		if version, ok := versionOf[r.text]; ok && version != r.version {
			t.Fatalf("%q was read with version %q, but has version %q", r.text, r.version, version)
		}
		if text, ok := textOf[r.version]; ok && text != r.text {
			t.Fatalf("version %q was read with %q, but is that of %q", r.version, r.text, text)
		}
		textOf[r.version], versionOf[r.text] = r.text, r.version
	}
}

func testConflictIsDefinite(t T, h *Harness) {
	p := open(t, h)
	version := p.mustWrite("start", "")
	refused := map[string]bool{}
	for round := range 20 {
		clients := 4
		if round < 10 {
			clients = 1 // nobody hides it by writing afterwards
		}
		var mu sync.Mutex
		together(t, clients, func(i int) error {
			text := fmt.Sprintf("round %d client %d", round, i)
			_, err := p.writeOnce(text, version)
			mu.Lock()
			defer mu.Unlock()
			refused[text] = errors.Is(err, tenure.ErrConflict)
			return nil
		})
		// Twice: what was put off may come with the request after it.
		for range 2 {
			var text string
			text, version = p.mustRead()
			if refused[text] {
				t.Fatalf("the register holds %q, whose write returned ErrConflict", text)
			}
		}
	}
}

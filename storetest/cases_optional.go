// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"tenure.dev"
)

// siblingCases are for a [tenure.Siblinger] and a [tenure.Lister].
var siblingCases = []testCase{
	{
		name: "siblings-independent",
		why:  "probes and candidates write beside the lock. A sibling that shares the lock's state lets a probe overwrite the record of the leader.",
		look: "how the suffix becomes part of the key, and that nothing is kept per instance.",
		run:  testSiblingsIndependent,
	},
	{
		name: "siblings-nested",
		why:  "one process may reach a key in two steps and another in one. If they are different keys, members do not see each other and a name opens that another cluster has not gated.",
		look: "that the suffix is appended to the name as it is: no separator added, no path cleaned.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			s := siblinger(t, p)
			step, ok := s.Sibling(".candidates").(tenure.Siblinger)
			if !ok {
				t.Fatalf("a sibling of a Siblinger is none itself")
			}
			version := p.on(step.Sibling("/host-1")).mustWrite("1", "")
			p.on(s.Sibling(".candidates/host-1")).mustHold("1", version)
			p.on(s.Sibling(".candidates/host-2")).mustBeAbsent()
			p.on(s.Sibling("/candidates/host-1")).mustBeAbsent()
		},
	},
	{
		name: "siblings-listed",
		why:  "handover and status know the standbys by this list. One that is missing cannot be handed to; one that was never there is waited for.",
		look: "pages of the listing, sorting, and that suffixes come back as they were given, relative to this register.",
		run:  testSiblingsListed,
	},
}

// on returns a probe on another register.
func (p *probe) on(r tenure.Register) *probe { return &probe{p.t, p.h, r} }

func siblinger(t T, p *probe) tenure.Siblinger {
	t.Helper()
	s, ok := p.r.(tenure.Siblinger)
	if !ok {
		t.Skipf("%T is no tenure.Siblinger", p.r)
	}
	return s
}

func testSiblingsIndependent(t T, h *Harness) {
	p := open(t, h)
	s := siblinger(t, p)
	suffixes := []string{".probe-1", ".probe-10", ".candidates/host-1", ".candidates/Host_1", ".candidates/host.1", ".members/a"}
	for _, suffix := range suffixes {
		p.on(s.Sibling(suffix)).mustBeAbsent()
	}
	p.mustBeAbsent()
	versions := map[string]tenure.Version{}
	for _, suffix := range suffixes {
		versions[suffix] = p.on(s.Sibling(suffix)).mustWrite("value of "+suffix, "")
		p.mustBeAbsent()
	}
	own := p.mustWrite("own", "")
	for _, suffix := range suffixes {
		p.on(s.Sibling(suffix)).mustHold("value of "+suffix, versions[suffix])
	}
	p.on(s.Sibling(".probe-1")).mustWrite("changed", versions[".probe-1"])
	p.mustHold("own", own)
	p.on(s.Sibling(".probe-10")).mustHold("value of .probe-10", versions[".probe-10"])
}

func testSiblingsListed(t T, h *Harness) {
	p := open(t, h)
	l, ok := p.r.(tenure.Lister)
	if !ok {
		t.Skipf("%T is no tenure.Lister", p.r)
	}
	s := siblinger(t, p)
	list := func(prefix string, want ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), h.Timeout)
		defer cancel()
		got, err := l.List(ctx, prefix)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("List(%q) = %q, %v; want %q", prefix, got, err, want)
		}
	}
	list(".candidates/")
	p.mustWrite("own", "")
	list(".candidates/") // the register itself is no sibling
	for _, suffix := range []string{".candidates/b", ".candidates/a", ".candidates/a-1", ".members/a", ".candidates-not/c"} {
		p.on(s.Sibling(suffix)).mustWrite("1", "")
	}
	s.Sibling(".candidates/opened-only")
	list(".candidates/", ".candidates/a", ".candidates/a-1", ".candidates/b")
	list(".candidates/a", ".candidates/a", ".candidates/a-1")
	list(".members/", ".members/a")
	list(".none/")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.List(ctx, ".candidates/"); !errors.Is(err, context.Canceled) {
		t.Fatalf("List with an ended context: %v; want an error that wraps context.Canceled", err)
	}
}

const (
	whyWatch  = "a standby watches instead of polling. A change that it is not told of costs a failover its time; a Watch that does not end holds up the loop that would contend."
	lookWatch = "the moment between the read that gave old and the watch: start from that version, not from now. ctx must end the watch."
)

// optionalCases are for a [tenure.Watcher] and a [tenure.Clock].
var optionalCases = []testCase{
	{
		name: "watch-change", why: whyWatch, look: lookWatch,
		run: func(t T, h *Harness) {
			p := open(t, h)
			w := watcher(t, p)
			var version tenure.Version // first the creation
			for i := range 5 {
				seen := startWatch(t, h, p, w, version)
				old := version
				version = p.mustWrite(fmt.Sprint(i), version)
				mustSee(t, h, seen, old, version)
				// And one that comes after the change.
				mustSee(t, h, startWatch(t, h, p, w, old), old, version)
			}
			if h.Delete != nil {
				seen := startWatch(t, h, p, w, version)
				h.Delete(t, p.r)
				mustSee(t, h, seen, version, "")
			}
		},
	},
	{
		name: "watch-context", why: whyWatch, look: lookWatch,
		run: func(t T, h *Harness) {
			p := open(t, h)
			w := watcher(t, p)
			version := p.mustWrite("1", "")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var over atomic.Bool // for a Watch that returns nil for ever
			defer over.Store(true)
			ended := make(chan error, 1)
			go func() {
				var err error
				for err == nil && !over.Load() { // it may return early
					err = w.Watch(ctx, version)
				}
				ended <- err
			}()
			p.mustRead()
			cancel()
			err := prompt(t, h, "Watch", func() error { return <-ended })
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("Watch whose context ended: %v; want an error that wraps context.Canceled", err)
			}
		},
	},
	{
		name: "clock",
		why:  "epochs of a lock whose record is gone start from the store's clock. One that is far off makes epochs that are implausible, or that fall.",
		look: "the unit and the zone of the time that the store returns; it is the store's, not this machine's.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			c, ok := p.r.(tenure.Clock)
			if !ok {
				t.Skipf("%T is no tenure.Clock", p.r)
			}
			start := time.Now()
			var last time.Time
			for range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), h.Timeout)
				now, err := c.Now(ctx)
				cancel()
				if err != nil {
					t.Fatalf("Now: %v", err)
				}
				if off := time.Until(now).Abs(); off > 24*time.Hour {
					t.Fatalf("Now = %v, which is %v away from this machine's clock", now, off)
				}
				if !last.IsZero() && (now.Before(last.Add(-time.Second)) || now.Sub(last) > time.Since(start)+2*time.Second) {
					t.Fatalf("Now went from %v to %v within %v", last, now, time.Since(start))
				}
				last = now
			}
		},
	},
}

func watcher(t T, p *probe) tenure.Watcher {
	t.Helper()
	w, ok := p.r.(tenure.Watcher)
	if !ok {
		t.Skipf("%T is no tenure.Watcher", p.r)
	}
	return w
}

// A sighting is how a watch ended: with another version, after how many calls.
type sighting struct {
	version tenure.Version
	calls   int
	err     error
}

// startWatch watches, in the background, until the register has another version
// than old.
func startWatch(t T, h *Harness, p *probe, w tenure.Watcher, old tenure.Version) <-chan sighting {
	t.Helper()
	seen := make(chan sighting, 1)
	ctx, cancel := context.WithTimeout(t.Context(), h.Timeout)
	go func() {
		defer cancel()
		for calls := 1; ; calls++ {
			if err := w.Watch(ctx, old); err != nil {
				seen <- sighting{err: fmt.Errorf("watch from version %q: %w", old, err)}
				return
			}
			_, version, err := p.read()
			if err != nil && !errors.Is(err, tenure.ErrNotExist) {
				seen <- sighting{err: err}
				return
			}
			if version != old {
				seen <- sighting{version: version, calls: calls}
				return
			}
		}
	}()
	return seen
}

func mustSee(t T, h *Harness, seen <-chan sighting, old, want tenure.Version) {
	t.Helper()
	// The watch ends by itself after Timeout; if it ignores ctx it does not.
	late := time.NewTimer(h.Timeout + h.Prompt)
	defer late.Stop()
	select {
	case s := <-seen:
		if s.err != nil {
			t.Fatalf("the register changed from version %q to %q: %v", old, want, s.err)
		}
		if s.version != want {
			t.Fatalf("the register changed from version %q to %q, but a read after the watch found %q", old, want, s.version)
		}
		if s.calls > 1000 {
			t.Fatalf("Watch returned %d times before the register changed: that is no waiting", s.calls)
		}
	case <-late.C:
		t.Fatalf("the register changed from version %q to %q, and Watch has not returned %v after that", old, want, h.Timeout+h.Prompt)
	}
}

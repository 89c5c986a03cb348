// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"context"
	"sync"
	"time"

	"tenure.dev"
)

// A link is how one process reaches the store, and what it has sent.
type link struct {
	mu     sync.Mutex
	gone   bool
	back   chan struct{} // closed when it is mended
	second time.Time     // of the requests counted
	count  int
	most   int // requests to the lock in a second
	reads  int // of the lock
	writes *writeLog
}

// cut keeps all requests from the store until mend, those on their way not.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.gone {
		l.gone, l.back = true, make(chan struct{})
	}
}

func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		l.gone = false
		close(l.back)
	}
}

// pass counts a request and lets it through, unless the link is cut: then it is
// never sent.
func (l *link) pass(ctx context.Context, lock, write bool) error {
	l.mu.Lock()
	gone := l.gone
	if lock && !gone {
		now := time.Now()
		if s := now.Truncate(time.Second); !s.Equal(l.second) {
			l.second, l.count = s, 0
		}
		l.count++
		l.most = max(l.most, l.count)
		if !write {
			l.reads++
		}
	}
	l.mu.Unlock()
	if gone {
		<-ctx.Done()
		return ctx.Err()
	}
	if lock && write {
		l.writes.add(time.Now())
	}
	return nil
}

func (l *link) figures() (reads, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads, l.most
}

// A writeLog has the times of the writes to one lock, by anybody.
type writeLog struct {
	mu sync.Mutex
	at []time.Time
}

func (w *writeLog) add(t time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = append(w.at, t)
}

// most returns the largest number of writes within any time d.
func (w *writeLog) most(d time.Duration) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	most, from := 0, 0
	for i, t := range w.at {
		for t.Sub(w.at[from]) > d {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

func (w *writeLog) total() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.at)
}

// guarded is a register behind a link.
type guarded struct {
	reg  tenure.Register
	link *link
	lock bool // the lock itself, not a key beside it
}

// Read implements [tenure.Register].
func (g guarded) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	if err := g.link.pass(ctx, g.lock, false); err != nil {
		return nil, "", err
	}
	return g.reg.Read(ctx)
}

// Write implements [tenure.Register].
func (g guarded) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	if err := g.link.pass(ctx, g.lock, true); err != nil {
		return "", err
	}
	return g.reg.Write(ctx, value, old)
}

// Sibling implements [tenure.Siblinger].
func (g guarded) Sibling(suffix string) tenure.Register {
	return guarded{reg: g.reg.(tenure.Siblinger).Sibling(suffix), link: g.link}
}

// List implements [tenure.Lister].
func (g guarded) List(ctx context.Context, prefix string) ([]string, error) {
	if err := g.link.pass(ctx, false, false); err != nil {
		return nil, err
	}
	return g.reg.(tenure.Lister).List(ctx, prefix)
}

// The optional abilities that not every store has.
type (
	clockPart struct{ g guarded }
	datesPart struct{ g guarded }
	watchPart struct{ g guarded }
	stockPart struct{ g guarded }
)

// Now implements [tenure.Clock].
func (p clockPart) Now(ctx context.Context) (time.Time, error) {
	if err := p.g.link.pass(ctx, false, false); err != nil {
		return time.Time{}, err
	}
	return p.g.reg.(tenure.Clock).Now(ctx)
}

// ReadDated implements [tenure.Dater].
func (p datesPart) ReadDated(ctx context.Context) (tenure.DatedValue, error) {
	if err := p.g.link.pass(ctx, p.g.lock, false); err != nil {
		return tenure.DatedValue{}, err
	}
	return p.g.reg.(tenure.Dater).ReadDated(ctx)
}

// Watch implements [tenure.Watcher]. A watch that is under way when the link is
// cut tells nothing any more.
func (p watchPart) Watch(ctx context.Context, old tenure.Version) error {
	if err := p.g.link.pass(ctx, false, false); err != nil {
		return err
	}
	err := p.g.reg.(tenure.Watcher).Watch(ctx, old)
	if err == nil {
		return p.g.link.pass(ctx, false, false)
	}
	return err
}

// StockElectors implements [tenure.StockElectors].
func (p stockPart) StockElectors() bool {
	return p.g.reg.(tenure.StockElectors).StockElectors()
}

// behind puts a register behind a link, with the abilities that it has.
func behind(reg tenure.Register, l *link) tenure.Register {
	g := guarded{reg: reg, link: l, lock: true}
	_, clock := reg.(tenure.Clock)
	_, dates := reg.(tenure.Dater)
	_, watch := reg.(tenure.Watcher)
	_, stock := reg.(tenure.StockElectors)
	switch {
	case clock && dates:
		return struct {
			guarded
			clockPart
			datesPart
		}{g, clockPart{g}, datesPart{g}}
	case clock && watch && stock:
		return struct {
			guarded
			clockPart
			watchPart
			stockPart
		}{g, clockPart{g}, watchPart{g}, stockPart{g}}
	case clock && watch:
		return struct {
			guarded
			clockPart
			watchPart
		}{g, clockPart{g}, watchPart{g}}
	case watch && stock:
		return struct {
			guarded
			watchPart
			stockPart
		}{g, watchPart{g}, stockPart{g}}
	case clock:
		return struct {
			guarded
			clockPart
		}{g, clockPart{g}}
	case watch:
		return struct {
			guarded
			watchPart
		}{g, watchPart{g}}
	default:
		return g
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tenure.dev"
)

// A span is one term as its elector told of it, by the clock of this process.
type span struct {
	who      string
	epoch    int64
	began    time.Time
	deadline time.Time // of its last renewal
	ended    time.Time // zero until it is over
	drained  time.Time // when its work had returned
	renewals int
}

// until is when the term was valid last.
func (s *span) until() time.Time {
	if !s.ended.IsZero() && s.ended.Before(s.deadline) {
		return s.ended
	}
	return s.deadline
}

// An observer sees all terms of one lock.
type observer struct {
	mu      sync.Mutex
	spans   []*span
	changed chan struct{} // closed with the next change
	bad     []error       // events that must not be
}

func newObserver() *observer { return &observer{changed: make(chan struct{})} }

// observe returns the function that a candidate tells its events to.
func (o *observer) observe(who string) func(tenure.Event) {
	var mine *span
	return func(ev tenure.Event) {
		now := time.Now()
		o.mu.Lock()
		defer o.mu.Unlock()
		switch ev.Kind {
		case tenure.EventBegan:
			mine = &span{who: who, epoch: ev.Epoch, began: now, deadline: ev.Deadline}
			o.spans = append(o.spans, mine)
			close(o.changed)
			o.changed = make(chan struct{})
		case tenure.EventRenewed:
			mine.deadline = ev.Deadline
			mine.renewals++
		case tenure.EventEnded:
			mine.ended = now
		case tenure.EventRefused: // that the others are not known yet is for a moment
			if errors.Is(ev.Err, tenure.ErrDuplicateIdentity) || errors.Is(ev.Err, tenure.ErrImplausibleEpoch) || errors.Is(ev.Err, tenure.ErrSettingsDiffer) {
				o.bad = append(o.bad, fmt.Errorf("%s: %s: %w", who, ev.Kind, ev.Err))
			}
		case tenure.EventSurprised:
			o.bad = append(o.bad, fmt.Errorf("%s: %s: %w", who, ev.Kind, ev.Err))
		default:
		}
	}
}

// drained notes that the work of a term has returned.
func (o *observer) drained(epoch int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.spans {
		if s.epoch == epoch {
			s.drained = time.Now()
		}
	}
}

// leader returns the term that is valid now and not that of a process that is
// gone, with a copy of what is known of it.
func (o *observer) leader(alive func(who string) bool) (span, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range slices.Backward(o.spans) {
		if s.ended.IsZero() && time.Now().Before(s.deadline) && alive(s.who) {
			return *s, true
		}
	}
	return span{}, false
}

// next waits for a term of a higher epoch.
func (o *observer) next(epoch int64, within time.Duration) (span, bool) {
	limit := time.NewTimer(within)
	defer limit.Stop()
	for {
		o.mu.Lock()
		changed := o.changed
		for _, s := range o.spans {
			if s.epoch > epoch {
				o.mu.Unlock()
				return *s, true
			}
		}
		o.mu.Unlock()
		select {
		case <-changed:
		case <-limit.C:
			return span{}, false
		}
	}
}

// of returns what is known of the term of an epoch.
func (o *observer) of(epoch int64) span {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.spans {
		if s.epoch == epoch {
			return *s
		}
	}
	return span{}
}

// totals returns how many terms there were, and renewals.
func (o *observer) totals() (terms, renewals int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.spans {
		renewals += s.renewals
	}
	return len(o.spans), renewals
}

// check is I1 and I2 over all that was seen.
func (o *observer) check() []error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for i, s := range o.spans {
		for _, before := range o.spans[:i] {
			if before.until().After(s.began) && before.who != s.who {
				errs = append(errs, fmt.Errorf("I1: the term of %s, epoch %d, began %v before that of %s, epoch %d, was over",
					s.who, s.epoch, before.until().Sub(s.began), before.who, before.epoch))
			}
			if before.epoch >= s.epoch {
				errs = append(errs, fmt.Errorf("I2: %s began epoch %d after %s had begun epoch %d", s.who, s.epoch, before.who, before.epoch))
			}
		}
	}
	return errs
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"tenure.dev"
)

// seenTwice is how many changes of the nonce a replica must have seen, in the
// record and in the seat, before it goes on with a sibling's term. A clone of
// the cluster sees them in one place only.
const seenTwice = 2

// maxForeign is how many nonces of our own identity, written neither here nor
// by a sibling, are put down to what was on its way when somebody died.
const maxForeign = 3

// observer is what one process knows about one lock. Its methods are safe for
// concurrent use.
type observer struct {
	identity, clusterUID string
	now                  func() time.Duration // monotonic

	mu      sync.Mutex
	holds   bool
	record  []sight // changes of the record's nonce, newest last
	sibling []sight // nonces that a sibling has put into the seat, newest last
	own     []string
	foreign int
	// until is when the copy of this cluster is believed to be gone, if it is not
	// heard of again.
	until time.Duration
}

type sight struct {
	nonce string
	at    time.Duration
}

// keep is how many sights are remembered.
const keep = 8

// add notes a nonce that is not the newest one, and reports whether it was new.
func add(list []sight, nonce string, at time.Duration) ([]sight, bool) {
	if slices.ContainsFunc(list, func(s sight) bool { return s.nonce == nonce }) {
		return list, false
	}
	list = append(list, sight{nonce, at})
	return list[max(0, len(list)-keep):], true
}

// seat takes what the seat says about this lock. What we have put there ourselves
// is no evidence.
func (o *observer) seat(mine bool, nonces []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holds = mine
	if mine {
		return
	}
	for _, n := range nonces {
		if n != "" && !slices.Contains(o.own, n) {
			o.sibling, _ = add(o.sibling, n, o.now())
		}
	}
}

// wrote notes a nonce of this process.
func (o *observer) wrote(nonce string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.own = append(o.own, nonce)
	o.own = o.own[max(0, len(o.own)-4*keep):]
}

// standing says what this process may do about the record.
func (o *observer) standing(rec *tenure.Record) tenure.Standing {
	o.mu.Lock()
	defer o.mu.Unlock()
	ours := rec != nil && rec.HolderIdentity == o.identity && rec.ClusterUID == o.clusterUID
	if o.foreign > 0 && o.now() > o.until {
		o.foreign = 0
	}
	if ours {
		o.note(rec)
	}
	switch {
	case !o.holds, o.foreign > maxForeign:
		return tenure.MustWait
	case ours && o.mayContinue(rec):
		return tenure.MayContinue
	default:
		return tenure.MayContend
	}
}

func (o *observer) note(rec *tenure.Record) {
	nonce, changed := rec.Nonce, false
	if o.record, changed = add(o.record, nonce, o.now()); !changed || !o.holds {
		return
	}
	known := slices.Contains(o.own, nonce) || slices.ContainsFunc(o.sibling, func(s sight) bool { return s.nonce == nonce })
	if !known {
		o.foreign++
		o.until = o.now() + 3*rec.LeaseDuration
	}
}

// mayContinue: the record carries one of the last two nonces that a sibling put
// into the seat, and we have ourselves seen the nonce change twice, in both
// places, within the last D.
func (o *observer) mayContinue(rec *tenure.Record) bool {
	last := o.sibling[max(0, len(o.sibling)-2):]
	if !slices.ContainsFunc(last, func(s sight) bool { return s.nonce == rec.Nonce }) {
		return false
	}
	if seatAlone() {
		return true
	}
	since := o.now() - rec.LeaseDuration
	// The first sight of anything is no change.
	return changesSince(o.sibling, since) >= seenTwice && both(o.record, o.sibling, since) >= seenTwice
}

func changesSince(list []sight, since time.Duration) (n int) {
	for _, s := range list[min(1, len(list)):] {
		if s.at >= since {
			n++
		}
	}
	return n
}

// both counts the changes in a that were seen in b too.
func both(a, b []sight, since time.Duration) (n int) {
	for _, s := range a[min(1, len(a)):] {
		if s.at >= since && slices.ContainsFunc(b, func(t sight) bool { return t.nonce == s.nonce }) {
			n++
		}
	}
	return n
}

// duplicate says that somebody who is no sibling uses this cluster's identity.
func (o *observer) duplicate() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.foreign <= maxForeign {
		return nil
	}
	return fmt.Errorf("%w: %q of cluster %s renews the lock, and no process of this cluster does: is there a copy of this cluster?",
		tenure.ErrDuplicateIdentity, o.identity, o.clusterUID)
}

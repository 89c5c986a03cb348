// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"strings"
	"time"

	"tenure.dev"
)

// lockKey is the lock's own register; the others are its siblings.
const lockKey = ""

// cell is one register of the store. Its fields change under world.mu.
type cell struct {
	value   []byte
	version tenure.Version // "" while there is nothing
	changed chan struct{}  // closed with the next change
	stamp   time.Time      // the store's clock, when this was written
}

// moment is one state of the lock's register, as the checks see it.
type moment struct {
	at      time.Duration
	version tenure.Version
	value   []byte // nil for nothing
	// rec is what parses by our rules; foreign a record of a known format
	// that is not ours.
	rec, foreign *tenure.Record
	// owner wrote this as a holder of the lock, or what orders have changed
	// since; nil for what anybody else has put there.
	owner *process
	// injured is set for what a fault has put there, restored for an earlier
	// state and what orders have changed since.
	injured, restored bool
}

func (m *moment) held() bool {
	return m.rec != nil && !m.rec.Released() && !m.rec.Stopper()
}

// cell returns the register of that key.
func (w *world) cell(key string) *cell {
	c := w.cells[key]
	if c == nil {
		c = &cell{changed: make(chan struct{})}
		w.cells[key] = c
	}
	return c
}

// put changes a register; nil deletes it. Versions never repeat.
func (w *world) put(key string, value []byte) *cell {
	c := w.cell(key)
	c.value, c.stamp = value, w.storeTime()
	c.version = ""
	if value != nil {
		w.versions++
		c.version = tenure.Version("v" + strconv.FormatUint(w.versions, 10))
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return c
}

// putLock changes the lock's register, and notes it for the checks.
func (w *world) putLock(value []byte, owner *process, injured bool) *moment {
	c := w.put(lockKey, value)
	m := &moment{at: w.now(), version: c.version, value: value, owner: owner, injured: injured}
	if value != nil {
		rec, err := tenure.ParseRecord(w.presented(value))
		switch {
		case err == nil:
			m.rec = rec
		case rec != nil:
			m.foreign = rec
		}
	}
	if r := m.either(); r != nil {
		w.longest = max(w.longest, min(r.LeaseDuration, w.sc.MaxD))
	}
	w.history = append(w.history, m)
	return m
}

func (m *moment) either() *tenure.Record {
	if m.rec != nil {
		return m.rec
	}
	return m.foreign
}

// last is the state of the lock's register.
func (w *world) last() *moment { return w.history[len(w.history)-1] }

// injure is a change by a fault.
func (w *world) injure(value []byte, what string) {
	w.damaged = true
	w.putLock(value, nil, true)
	w.note("store: %s: %s", what, short(value))
}

// short is a record as a trace shows it, made only when it is shown.
type short []byte

func (value short) String() string {
	if value == nil {
		return "nothing"
	}
	rec, err := tenure.ParseRecord(value)
	if rec == nil {
		s := string(value)
		if len(s) > 40 {
			s = s[:40] + "..."
		}
		return strconv.Quote(s) + " (" + strings.TrimPrefix(err.Error(), "tenure: reading the record: ") + ")"
	}
	nonce := rec.Nonce
	if len(nonce) > 6 {
		nonce = nonce[:6]
	}
	s := "holder=" + rec.HolderIdentity + "/" + rec.ClusterUID + " epoch=" + strconv.FormatInt(rec.Epoch, 10) +
		" nonce=" + nonce + " D=" + rec.LeaseDuration.String()
	if rec.PreferredHolder != "" {
		s += " preferred=" + rec.PreferredHolder
	}
	if rec.Paused != nil {
		s += " paused"
	}
	if err != nil {
		s += " (foreign)"
	}
	return s
}

// siblings lists the existing registers beside the lock.
func (w *world) siblings(prefix string) []string {
	var keys []string
	for key, c := range w.cells {
		if key != lockKey && c.value != nil && strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tenure.dev/test/e2e/monotonic"
)

// A Receiver is what controllers of all clusters write to. It notes who wrote when,
// by one monotonic clock, and which renewals of a Lease an API server accepted.
type Receiver struct {
	conn *net.UDPConn
	base time.Time     // of the monotonic clock
	mono time.Duration // that the electors read

	mu     sync.Mutex
	beats  []Beat
	renews map[string][]time.Time // when those were sent that were accepted
	pauses map[string][]window
	wake   chan struct{}
}

// A window is a time during which a process was stopped by a signal.
type window struct{ from, to time.Time }

// A Beat is one write.
type Beat struct {
	Holder string // cluster/name.process
	At     time.Time
	// Late: its process was stopped by a signal for longer than a second since
	// its last accepted renewal.
	Late bool
}

// Cluster returns whose write it is.
func (b Beat) Cluster() string {
	name, _, _ := strings.Cut(b.Holder, "/")
	return name
}

// longestStop is how long a process may be stopped by a signal and still count as
// one that runs.
const longestStop = time.Second

// NewReceiver returns a receiver on the loopback interface.
func NewReceiver() (*Receiver, error) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("e2e: receiver: %w", err)
	}
	_ = conn.SetReadBuffer(4 << 20) // less only loses beats under load
	r := &Receiver{
		conn: conn, base: time.Now(), mono: monotonic.Now(),
		renews: make(map[string][]time.Time), pauses: make(map[string][]window), wake: make(chan struct{}),
	}
	go r.receive()
	return r, nil
}

func (r *Receiver) receive() {
	buf := make([]byte, 512)
	for {
		n, err := r.conn.Read(buf)
		if err != nil {
			return
		}
		id, sent, renewal := strings.Cut(string(buf[:n]), " ")
		r.mu.Lock()
		if renewal {
			if ns, err := strconv.ParseInt(sent, 10, 64); err == nil {
				r.renews[id] = append(r.renews[id], r.base.Add(time.Duration(ns)-r.mono))
			}
		} else {
			b := Beat{Holder: id, At: time.Now()}
			b.Late = r.stopped(id, b.At) > longestStop
			r.beats = append(r.beats, b)
		}
		close(r.wake)
		r.wake = make(chan struct{})
		r.mu.Unlock()
	}
}

// stopped returns how long a process was stopped since its last accepted renewal. It
// is called under r.mu.
func (r *Receiver) stopped(id string, at time.Time) (d time.Duration) {
	var since time.Time
	if all := r.renews[id]; len(all) > 0 {
		since = all[len(all)-1]
	}
	for _, w := range r.pauses[id] {
		from, to := w.from, w.to
		if to.IsZero() || to.After(at) {
			to = at
		}
		if from.Before(since) {
			from = since
		}
		d += max(0, to.Sub(from))
	}
	return d
}

// Paused notes that a process is about to be stopped by a signal.
func (r *Receiver) Paused(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pauses[id] = append(r.pauses[id], window{from: time.Now()})
}

// Resumed notes that it goes on.
func (r *Receiver) Resumed(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if all := r.pauses[id]; len(all) > 0 && all[len(all)-1].to.IsZero() {
		all[len(all)-1].to = time.Now()
	}
}

// Addr is where to write to.
func (r *Receiver) Addr() string { return r.conn.LocalAddr().String() }

// Close ends it.
func (r *Receiver) Close() { _ = r.conn.Close() }

// Beats returns all writes since a time.
func (r *Receiver) Beats(since time.Time) []Beat {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.beats, since, func(b Beat, t time.Time) int { return b.At.Compare(t) })
	return slices.Clone(r.beats[i:])
}

// Await waits for a write that came since a time and is wanted, and returns it.
func (r *Receiver) Await(within time.Duration, since time.Time, wanted func(Beat) bool) (Beat, bool) {
	limit := time.NewTimer(within)
	defer limit.Stop()
	r.mu.Lock()
	seen, _ := slices.BinarySearchFunc(r.beats, since, func(b Beat, t time.Time) int { return b.At.Compare(t) })
	r.mu.Unlock()
	for {
		r.mu.Lock()
		for ; seen < len(r.beats); seen++ {
			if !r.beats[seen].At.Before(since) && wanted(r.beats[seen]) {
				b := r.beats[seen]
				r.mu.Unlock()
				return b, true
			}
		}
		wake := r.wake
		r.mu.Unlock()
		select {
		case <-wake:
		case <-limit.C:
			return Beat{}, false
		}
	}
}

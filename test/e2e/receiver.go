// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// A Receiver is what controllers of all clusters write to. It notes who wrote when,
// by one monotonic clock.
type Receiver struct {
	conn *net.UDPConn

	mu    sync.Mutex
	beats []Beat
	wake  chan struct{}
}

// A Beat is one write.
type Beat struct {
	Holder string // cluster/name.process
	At     time.Time
}

// Cluster returns whose write it is.
func (b Beat) Cluster() string {
	name, _, _ := strings.Cut(b.Holder, "/")
	return name
}

// NewReceiver returns a receiver on the loopback interface.
func NewReceiver() (*Receiver, error) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("e2e: receiver: %w", err)
	}
	r := &Receiver{conn: conn, wake: make(chan struct{})}
	go func() {
		buf := make([]byte, 512)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			r.mu.Lock()
			r.beats = append(r.beats, Beat{string(buf[:n]), time.Now()})
			close(r.wake)
			r.wake = make(chan struct{})
			r.mu.Unlock()
		}
	}()
	return r, nil
}

// Addr is where to write to.
func (r *Receiver) Addr() string { return r.conn.LocalAddr().String() }

// Close ends it.
func (r *Receiver) Close() { _ = r.conn.Close() }

// Beats returns all writes since a time.
func (r *Receiver) Beats(since time.Time) []Beat {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Beat
	for _, b := range r.beats {
		if b.At.After(since) {
			out = append(out, b)
		}
	}
	return out
}

// Last returns the last write, if there is one.
func (r *Receiver) Last() (Beat, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.beats) == 0 {
		return Beat{}, false
	}
	return r.beats[len(r.beats)-1], true
}

// Await waits for a write that is wanted, and returns it.
func (r *Receiver) Await(within time.Duration, wanted func(Beat) bool) (Beat, bool) {
	limit := time.NewTimer(within)
	defer limit.Stop()
	seen := 0
	for {
		r.mu.Lock()
		for ; seen < len(r.beats); seen++ {
			if wanted(r.beats[seen]) {
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

// An Overlap is a write of a cluster while another one's writes had not ended.
type Overlap struct{ Early, Late Beat }

// Overlaps returns, for each change from one cluster to another, the writes of the
// earlier one that came after the later one had begun.
func Overlaps(beats []Beat) (out []Overlap) {
	leader := ""
	var began Beat
	for _, b := range beats {
		c := b.Cluster()
		switch {
		case leader == "":
			leader, began = c, b
		case c != leader && b.At.After(began.At):
			// A new one begins; it is an overlap if the old one writes again later,
			// before the new one has ended, that is: if leadership goes back within
			// less than an election.
			leader, began = c, b
			for _, d := range beats {
				if d.Cluster() != c && d.At.After(b.At) && d.At.Sub(b.At) < overlapWindow {
					out = append(out, Overlap{d, b})
					break
				}
			}
		}
	}
	return out
}

// overlapWindow is shorter than any handover that goes back by right.
const overlapWindow = 3 * time.Second

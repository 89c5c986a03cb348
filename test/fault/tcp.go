// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package fault stands between a test and a real server and does to their
// traffic what networks, proxies and dying servers do.
package fault

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Direction is the way that bytes take through a [TCP] proxy.
type Direction uint8

// The directions.
const (
	ToServer Direction = 1 << iota
	ToClient
	BothWays = ToServer | ToClient
)

// A TCP is a proxy on a loopback port before one server. It begins by passing
// everything on; its faults are changed at run time and hold for existing and
// new connections. A connection that has lost bytes stays silent in that
// direction for ever, as one does whose packets nobody knows any more: what
// follows never arrives torn. Its methods are safe for concurrent use and, but
// for Close, do not block. Those that set a fault replace the one before.
type TCP struct {
	addr string

	mu       sync.Mutex
	target   string
	listener net.Listener // nil while connections are refused
	flows    [2]flow
	reset    bool
	refuse   bool
	closed   bool
	changed  chan struct{} // closed at every change
	links    map[*link]struct{}
	wg       sync.WaitGroup

	accepted atomic.Int64
	bytes    [2]atomic.Int64
}

// A flow is what happens to one direction.
type flow struct {
	kind  kind
	delay time.Duration
	after int64 // for cut: bytes that still pass on each connection
	set   int   // tells one order to cut from the next
}

type kind uint8

const (
	pass kind = iota
	drop
	hold
	cut
)

// NewTCP returns a proxy before the server at target, "host:port", which need
// not run yet. It takes a port outside of the range that systems give to
// outgoing connections: the same port must be free again after Refuse.
func NewTCP(target string) (*TCP, error) {
	t := &TCP{target: target, changed: make(chan struct{}), links: make(map[*link]struct{})}
	var err error
	for range 100 {
		t.listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000)))
		if err == nil {
			t.addr = t.listener.Addr().String()
			t.wg.Add(1)
			go t.accept(t.listener)
			return t, nil
		}
	}
	return nil, fmt.Errorf("fault: no free port before %s: %w", target, err)
}

// Addr returns the address to connect to, "127.0.0.1:port".
func (t *TCP) Addr() string { return t.addr }

// Stats are the counters of a [TCP].
type Stats struct {
	// Accepted counts connections since the start; Open are those that exist
	// now.
	Accepted, Open int64
	// ToServer and ToClient count the bytes that were passed on.
	ToServer, ToClient int64
}

// Stats returns the counters.
func (t *TCP) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{t.accepted.Load(), int64(len(t.links)), t.bytes[0].Load(), t.bytes[1].Load()}
}

// Pass ends all faults. What was held or delayed arrives.
func (t *TCP) Pass() { t.set(BothWays, flow{}) }

// Delay has each byte of a direction arrive d later.
func (t *TCP) Delay(dir Direction, d time.Duration) { t.set(dir, flow{delay: d}) }

// Hold keeps the bytes of a direction until the fault ends: a partition that
// is mended before the connections have given up. New connections are accepted.
func (t *TCP) Hold(dir Direction) { t.set(dir, flow{kind: hold}) }

// BlackHole accepts connections, swallows what they send and never answers.
func (t *TCP) BlackHole() { t.set(BothWays, flow{kind: drop}) }

// DropAnswers passes requests on and swallows the answers; the connections stay
// open.
func (t *TCP) DropAnswers() { t.set(ToClient, flow{kind: drop}) }

// CutAfter passes requests on and resets each connection once n more bytes of
// answers have passed on it; with 0, at the first byte of an answer.
func (t *TCP) CutAfter(n int64) { t.set(ToClient, flow{kind: cut, after: n}) }

// Reset answers with a TCP reset: at once on existing connections, and on new
// ones as soon as they are accepted.
func (t *TCP) Reset() { t.stop(true, false) }

// Refuse closes the port, so that new connections are refused, and resets those
// that exist: a server that died.
func (t *TCP) Refuse() { t.stop(false, true) }

// Forget lets the connections that exist fall silent for ever, as when a router
// has lost its table, and passes new ones. It leaves the fault as it is.
func (t *TCP) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := range t.links {
		for i := range l.lost {
			l.lost[i].Store(true)
		}
	}
}

// Retarget sends new connections to another server, as a change of name service
// or of a load balancer does, and resets those that exist.
func (t *TCP) Retarget(target string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.target = target
	for l := range t.links {
		l.end(true)
	}
}

// Close ends the proxy and its connections. It blocks until they are gone; it
// may be called again.
func (t *TCP) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.stop(true, true)
	t.wg.Wait()
}

// set replaces the fault by f in the directions dir, and none in the other.
func (t *TCP) set(dir Direction, f flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	f.set = t.flows[0].set + 1
	for i := range t.flows {
		t.flows[i] = flow{set: f.set}
		if dir&(1<<i) != 0 {
			t.flows[i] = f
		}
	}
	t.reset, t.refuse = false, false
	t.tell()
	if t.listener == nil {
		t.listener = t.listenAgain()
		t.wg.Add(1)
		go t.accept(t.listener)
	}
}

// listenAgain takes the port back. Nobody else should have it.
func (t *TCP) listenAgain() net.Listener {
	l, err := net.Listen("tcp", t.addr)
	for end := time.Now().Add(5 * time.Second); err != nil; l, err = net.Listen("tcp", t.addr) {
		if time.Now().After(end) {
			panic(fmt.Sprintf("fault: cannot listen at %s again: %v", t.addr, err))
		}
		time.Sleep(10 * time.Millisecond)
	}
	return l
}

func (t *TCP) stop(reset, refuse bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reset, t.refuse = reset, refuse
	if refuse && t.listener != nil {
		t.listener.Close()
		t.listener = nil
	}
	for l := range t.links {
		l.end(true)
	}
	t.tell()
}

// tell wakes who waits for a change. The caller holds mu.
func (t *TCP) tell() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *TCP) flow(i int) (flow, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.flows[i], t.changed
}

func (t *TCP) accept(listener net.Listener) {
	defer t.wg.Done()
	for {
		c, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // it was reset before it was accepted
			continue
		}
		t.accepted.Add(1)
		t.wg.Add(1)
		go t.serve(c.(*net.TCPConn))
	}
}

func (t *TCP) serve(client *net.TCPConn) {
	defer t.wg.Done()
	l := &link{ends: [2]*net.TCPConn{client, nil}, done: make(chan struct{})}
	t.mu.Lock()
	refused := t.reset || t.refuse || t.closed
	if !refused {
		t.links[l] = struct{}{}
	}
	target := t.target
	t.mu.Unlock()
	if refused {
		l.end(true)
		return
	}
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.links, l)
	}()
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		l.end(true)
		return
	}
	if !l.connect(server.(*net.TCPConn)) {
		return
	}
	var pumps sync.WaitGroup
	for i := range l.ends {
		pumps.Go(func() { t.pump(l, i) })
	}
	pumps.Wait()
	l.end(false)
}

// A chunk is what was read at once; err is set at the end of the stream.
type chunk struct {
	data []byte
	due  time.Time
	err  error
}

// pump moves what comes from end i of a connection to the other one.
func (t *TCP) pump(l *link, i int) {
	queue := make(chan chunk, 64)
	t.wg.Add(1)
	go func() {
		defer t.wg.Done()
		defer close(queue)
		for {
			buf := make([]byte, 32<<10)
			n, err := l.ends[i].Read(buf)
			f, _ := t.flow(i)
			select {
			case queue <- chunk{buf[:n], time.Now().Add(f.delay), err}:
			case <-l.done:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for c := range queue {
		if wait := time.Until(c.due); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-l.done:
				timer.Stop()
				return
			}
		}
		t.deliver(l, i, c)
	}
}

// deliver does to one chunk what the fault of the moment wants.
func (t *TCP) deliver(l *link, i int, c chunk) {
	f, changed := t.flow(i)
	for f.kind == hold {
		select {
		case <-changed:
		case <-l.done:
			return
		}
		f, changed = t.flow(i)
	}
	if f.kind == drop || l.lost[i].Load() {
		l.lost[i].Store(true)
		return
	}
	data, over := c.data, false
	if f.kind == cut {
		if l.cutSet != f.set {
			l.cutSet, l.left = f.set, f.after
		}
		over = int64(len(data)) > l.left || len(data) > 0 && l.left == 0
		data = data[:min(int64(len(data)), l.left)]
		l.left -= int64(len(data))
	}
	if len(data) > 0 {
		n, err := l.ends[1-i].Write(data)
		t.bytes[i].Add(int64(n))
		over = over || err != nil
	}
	switch {
	case over:
		l.end(true)
	case c.err == nil:
	case errors.Is(c.err, net.ErrClosed):
	case isEOF(c.err):
		_ = l.ends[1-i].CloseWrite() // the other side may have gone already
	default:
		l.end(true) // the one side was reset: so is the other
	}
}

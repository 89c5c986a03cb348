// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// prompt is ample for what should happen at once; quiet is how long nothing
// may come where nothing should.
const (
	prompt = 10 * time.Second
	quiet  = 100 * time.Millisecond
)

// An echo is a server that answers each line with itself, and tells the lines.
type echo struct {
	addr  string
	lines chan string
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{l.Addr().String(), make(chan string, 100)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					e.lines <- line
					io.WriteString(c, line)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return e
}

func (e *echo) mustGet(t *testing.T, want string) {
	t.Helper()
	select {
	case line := <-e.lines:
		if line != want {
			t.Fatalf("the server got %q, want %q", line, want)
		}
	case <-time.After(prompt):
		t.Fatalf("the server has not got %q", want)
	}
}

func newProxy(t *testing.T, target string) *TCP {
	t.Helper()
	p, err := NewTCP(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func dial(t *testing.T, p *TCP) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, c net.Conn, want string) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(prompt))
	buf := make([]byte, len(want))
	if n, err := io.ReadFull(c, buf); err != nil || string(buf) != want {
		t.Fatalf("read %q, %v; want %q", buf[:n], err, want)
	}
}

func mustBeQuiet(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(quiet))
	var timeout net.Error
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("read %d bytes, %v; want silence", n, err)
	}
}

func mustBeReset(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(prompt))
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read %d bytes, %v; want a reset", n, err)
	}
}

// mustResetNew wants a new connection reset; the reset may be faster than Dial.
func mustResetNew(t *testing.T, p *TCP) {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer c.Close()
		mustBeReset(t, c)
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
}

func roundTrip(t *testing.T, e *echo, c net.Conn, line string) {
	t.Helper()
	send(t, c, line)
	e.mustGet(t, line)
	mustRead(t, c, line)
}

func TestPass(t *testing.T) {
	e := newEcho(t)
	p := newProxy(t, e.addr)
	a, b := dial(t, p), dial(t, p)
	roundTrip(t, e, a, "one\n")
	roundTrip(t, e, b, "two\n")
	send(t, a, strings.Repeat("x", 1<<20)+"\n")
	mustRead(t, a, strings.Repeat("x", 1<<20)+"\n")
	want := int64(8 + 1<<20 + 1)
	if s := p.Stats(); s != (Stats{2, 2, want, want}) {
		t.Errorf("stats %+v, want 2 connections and %d bytes each way", s, want)
	}
	// The end of one direction passes too, and the answer after it.
	send(t, b, "last\n")
	if err := b.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	mustRead(t, b, "last\n")
	b.SetReadDeadline(time.Now().Add(prompt))
	if _, err := b.Read(make([]byte, 1)); !isEOF(err) {
		t.Errorf("after the end: %v, want the server's end", err)
	}
}

func TestDelay(t *testing.T) {
	const d = 150 * time.Millisecond
	for _, tt := range []struct {
		dir  Direction
		want time.Duration
	}{{ToServer, d}, {ToClient, d}, {BothWays, 2 * d}} {
		e := newEcho(t)
		p := newProxy(t, e.addr)
		c := dial(t, p)
		roundTrip(t, e, c, "before\n")
		p.Delay(tt.dir, d)
		start := time.Now()
		roundTrip(t, e, c, "one\n")
		if took := time.Since(start); took < tt.want {
			t.Errorf("direction %d: an answer after %v, want %v or more", tt.dir, took, tt.want)
		}
		p.Pass()
		roundTrip(t, e, dial(t, p), "new\n")
	}
}

func TestBlackHole(t *testing.T) {
	e := newEcho(t)
	p := newProxy(t, e.addr)
	old := dial(t, p)
	roundTrip(t, e, old, "one\n")
	p.BlackHole()
	fresh := dial(t, p)
	for _, c := range []net.Conn{old, fresh} {
		send(t, c, "lost\n")
		mustBeQuiet(t, c)
	}
	p.Pass()
	// What has lost bytes stays silent; what comes new passes.
	send(t, old, "still lost\n")
	mustBeQuiet(t, old)
	roundTrip(t, e, dial(t, p), "two\n")
}

func TestHold(t *testing.T) {
	e := newEcho(t)
	p := newProxy(t, e.addr)
	c := dial(t, p)
	p.Hold(BothWays)
	send(t, c, "one\n")
	mustBeQuiet(t, c)
	p.Pass()
	mustRead(t, c, "one\n")
}

func TestDropAnswers(t *testing.T) {
	e := newEcho(t)
	p := newProxy(t, e.addr)
	c := dial(t, p)
	p.DropAnswers()
	send(t, c, "applied\n")
	e.mustGet(t, "applied\n")
	mustBeQuiet(t, c)
	send(t, c, "applied too\n")
	e.mustGet(t, "applied too\n")
	mustBeQuiet(t, c)
}

func TestReset(t *testing.T) {
	e := newEcho(t)
	p := newProxy(t, e.addr)
	old := dial(t, p)
	roundTrip(t, e, old, "one\n")
	p.Reset()
	mustBeReset(t, old)
	mustResetNew(t, p)
	p.Pass()
	roundTrip(t, e, dial(t, p), "two\n")
}

func TestRefuse(t *testing.T) {
	e := newEcho(t)
	p := newProxy(t, e.addr)
	for range 3 {
		old := dial(t, p)
		roundTrip(t, e, old, "one\n")
		p.Refuse()
		mustBeReset(t, old)
		if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("dial: %v, want refused", err)
		}
		p.Pass()
	}
}

func TestCutAfter(t *testing.T) {
	e := newEcho(t)
	p := newProxy(t, e.addr)
	for _, tt := range []struct {
		n        int64
		passes   []string
		rest     string
		expected string
	}{
		{0, nil, "0123456789\n", ""},
		{4, nil, "0123456789\n", "0123"},
		{11, []string{"0123456789\n"}, "next\n", ""},
		{13, []string{"0123456789\n"}, "next\n", "ne"},
	} {
		p.Pass()
		old := dial(t, p)
		roundTrip(t, e, old, "before\n")
		p.CutAfter(tt.n)
		for _, c := range []net.Conn{old, dial(t, p)} { // n for each
			for _, line := range tt.passes {
				roundTrip(t, e, c, line)
			}
			send(t, c, tt.rest)
			e.mustGet(t, tt.rest)
			mustRead(t, c, tt.expected)
			mustBeReset(t, c)
		}
	}
}

func TestTargetIsDown(t *testing.T) {
	e := newEcho(t)
	other := newProxy(t, e.addr)
	p := newProxy(t, other.Addr())
	other.Refuse()
	mustResetNew(t, p)
	other.Pass()
	roundTrip(t, e, dial(t, p), "one\n")
}

func TestForget(t *testing.T) {
	e := newEcho(t)
	p := newProxy(t, e.addr)
	old := dial(t, p)
	roundTrip(t, e, old, "one\n")
	p.Forget()
	send(t, old, "lost\n")
	mustBeQuiet(t, old)
	roundTrip(t, e, dial(t, p), "two\n")
}

func TestRetarget(t *testing.T) {
	one, two := newEcho(t), newEcho(t)
	p := newProxy(t, one.addr)
	c := dial(t, p)
	roundTrip(t, one, c, "one\n")
	p.Retarget(two.addr)
	mustBeReset(t, c)
	roundTrip(t, two, dial(t, p), "two\n")
}

func TestClose(t *testing.T) {
	e := newEcho(t)
	p := newProxy(t, e.addr)
	c := dial(t, p)
	roundTrip(t, e, c, "one\n")
	p.Hold(BothWays)
	send(t, c, "two\n")
	p.Close()
	p.Close()
	mustBeReset(t, c)
	p.Pass()
	if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("dial after Close: %v, want refused", err)
	}
	if s := p.Stats(); s.Open != 0 || s.Accepted != 1 {
		t.Errorf("stats after Close %+v, want 1 accepted and none open", s)
	}
}

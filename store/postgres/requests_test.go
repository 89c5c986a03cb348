// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tenure.dev"
)

// A wiretap is a proxy before a server that understands plain connections
// enough to record which messages clients send.
type wiretap struct {
	addr string

	mu       sync.Mutex
	messages []message
	changed  chan struct{}
}

// A message is what a client sent: its type, 0 for the first of a connection,
// and its body.
type message struct {
	kind byte
	body []byte
}

func tap(t testing.TB, target string) *wiretap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wiretap{addr: l.Addr().String(), changed: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { w.serve(c, target) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return w
}

func (w *wiretap) serve(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		io.Copy(client, server)
		client.Close()
	}()
	for first := true; ; first = false {
		m := message{}
		header := make([]byte, 4)
		if !first {
			header = make([]byte, 5)
		}
		if _, err := io.ReadFull(client, header); err != nil {
			return
		}
		if !first {
			m.kind = header[0]
		}
		m.body = make([]byte, binary.BigEndian.Uint32(header[len(header)-4:])-4)
		if _, err := io.ReadFull(client, m.body); err != nil {
			return
		}
		w.mu.Lock()
		w.messages = append(w.messages, m)
		close(w.changed)
		w.changed = make(chan struct{})
		w.mu.Unlock()
		if _, err := server.Write(slices.Concat(header, m.body)); err != nil {
			return
		}
	}
}

// take returns the messages so far, and forgets them.
func (w *wiretap) take() []message {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.messages
	w.messages = nil
	return taken
}

// await waits until there were so many statements about a key.
func (w *wiretap) await(t testing.TB, key string, n int) {
	t.Helper()
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	for {
		w.mu.Lock()
		got, changed := len(about(w.messages, key)), w.changed
		w.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-changed:
		case <-late.C:
			t.Fatalf("%d statements about %q were sent in a minute, want %d", got, key, n)
		}
	}
}

// about returns the first words of the statements whose first parameter is key.
func about(all []message, key string) (statements []string) {
	param := append(binary.BigEndian.AppendUint32(nil, uint32(len(key))), key...)
	for i, m := range all {
		if m.kind == 'P' && i+1 < len(all) && bytes.Contains(all[i+1].body, param) {
			statements = append(statements, string(m.body[1:7]))
		}
	}
	return statements
}

func kinds(all []message, kind byte) (some []message) {
	for _, m := range all {
		if m.kind == kind {
			some = append(some, m)
		}
	}
	return some
}

// TestRoundTrip: each call is one unnamed statement, sent at once, and nothing
// before or after it; a connection serves the next calls too.
func TestRoundTrip(t *testing.T) {
	w := tap(t, server.Host)
	r := open(t, strings.Replace(server.URL(newKey()), server.Host, w.addr, 1))
	v := mustWrite(t, r, "1", "")
	w.take()
	for what, call := range map[string]func() error{
		"read":  func() error { _, _, err := r.Read(t.Context()); return err },
		"write": func() (err error) { v, err = r.Write(t.Context(), []byte("2"), v); return err },
		"list":  func() error { _, err := r.List(t.Context(), ""); return err },
		"now":   func() error { _, err := r.Now(t.Context()); return err },
	} {
		if err := call(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var sent []byte
		for _, m := range w.take() {
			sent = append(sent, m.kind)
			if m.kind == 'P' && m.body[0] != 0 {
				t.Errorf("%s prepares a statement with a name", what)
			}
		}
		// Parse, Bind, Describe, Execute, Sync.
		if string(sent) != "PBDES" {
			t.Errorf("%s sends %q, want one statement and one Sync", what, sent)
		}
	}
}

// TestRequests counts before the server what an election asks of it: one
// UPDATE per renewal, one SELECT per poll, nothing else for the lock.
func TestRequests(t *testing.T) {
	t.Parallel()
	leaderTap, standbyTap := tap(t, server.Host), tap(t, server.Host)
	url := server.URL(newKey())
	direct := open(t, url)
	initLock(t, direct)
	leader := run(t, "leader", open(t, strings.Replace(url, server.Host, leaderTap.addr, 1)))
	leader.Await(began, patience)
	standby := run(t, "standby", open(t, strings.Replace(url, server.Host, standbyTap.addr, 1)))
	standby.Await(following, patience)

	leaderTap.await(t, direct.key, 3) // after what there is to do at the beginning
	standbyTap.await(t, direct.key, 3)
	const renewals = 6
	leaderTap.take()
	standbyTap.take()
	begin := time.Now()
	leaderTap.await(t, direct.key, renewals)
	took := time.Since(begin)
	polled, renewed := standbyTap.take(), leaderTap.take()
	updates, selects := about(renewed, direct.key), about(polled, direct.key)
	for _, s := range updates {
		if s != "UPDATE" {
			t.Errorf("the leader sent %s, want UPDATE only", s)
		}
	}
	for _, s := range selects {
		if s != "SELECT" {
			t.Errorf("the standby sent %s, want SELECT only", s)
		}
	}
	if least := (renewals - 1) * testPeriod * 9 / 10; took < least {
		t.Errorf("%d renewals took %v, want at least %v", renewals, took, least)
	}
	polls, most := len(selects), int(took/(testPeriod*9/10))+2
	if polls == 0 || polls > most {
		t.Errorf("the standby polled %d times in %v, want 1 to %d", polls, took, most)
	}
	if n := len(kinds(renewed, 0)) + len(kinds(polled, 0)); n != 0 {
		t.Errorf("%d connections were opened in steady state", n)
	}
	t.Logf("in %v, with P %v: %d renewals of one statement, %d polls of one", took.Round(time.Millisecond), testPeriod, len(updates), polls)
}

// TestDated: a value comes with the server's own times.
func TestDated(t *testing.T) {
	r := fresh(t)
	mustWrite(t, r, "1", "")
	first, err := r.ReadDated(t.Context())
	if err != nil || string(first.Value) != "1" || first.Written.IsZero() || first.Now.Before(first.Written) || time.Since(first.Now).Abs() > time.Minute {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := r.ReadDated(t.Context())
	if err != nil || !again.Written.Equal(first.Written) || !again.Now.After(first.Now) {
		t.Errorf("%+v, %v; before that %+v", again, err, first)
	}
	var _ tenure.Dater = r
}

// TestSilent: looking at an idle connection neither blocks nor takes anything,
// also while somebody reads from it.
func TestSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if !silent(client) {
		t.Error("an open connection on which nothing came is not silent")
	}
	reading, read := make(chan struct{}), make(chan error)
	go func() {
		close(reading)
		_, err := io.ReadFull(client, make([]byte, 1))
		read <- err
	}()
	<-reading
	for range 1000 { // the read begins at some time during these
		if !silent(client) {
			t.Fatal("not silent while it is read from")
		}
	}
	peer.Write([]byte("x"))
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	peer.Write([]byte("y"))
	peer.Close()
	for end := time.Now().Add(soon); silent(client); {
		if time.Now().After(end) {
			t.Fatal("silent though something came")
		}
	}
	if b, err := io.ReadAll(client); string(b) != "y" || err != nil {
		t.Errorf("after looking, %q and %v are there, want y", b, err)
	}
	if silent(client) {
		t.Error("silent after its end")
	}
}

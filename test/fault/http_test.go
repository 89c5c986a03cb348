// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A counter is a server that counts what reached it, by method.
type counter struct {
	mu   sync.Mutex
	seen map[string]int
	last *http.Request
	body string

	reached chan struct{} // gets one for each
}

func newCounter() *counter {
	return &counter{seen: map[string]int{}, reached: make(chan struct{}, 100)}
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	c.seen[r.Method]++
	c.last, c.body = r, string(b)
	c.mu.Unlock()
	c.reached <- struct{}{}
	w.Header().Set("ETag", `"v1"`)
	fmt.Fprint(w, "the server's answer")
}

func (c *counter) count(method string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[method]
}

// start returns a proxy before a counting server, and a client without retries.
func startHTTP(t *testing.T, rule Rule) (*HTTP, *counter, *http.Client) {
	t.Helper()
	c := newCounter()
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	p, err := NewHTTP(s.URL, rule)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return p, c, client
}

func do(t *testing.T, client *http.Client, method, url, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("If-Match", `"v0"`)
	req.Header.Set("Authorization", "secret")
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func TestActions(t *testing.T) {
	for _, tt := range []struct {
		name    string
		action  Action
		reached int
		status  int
		body    string
		err     error
	}{
		{"pass", Pass, 1, 200, "the server's answer", nil},
		{"lost answer", LoseAnswer(), 1, 0, "", syscall.ECONNRESET},
		{"lost answer, orderly", Action{Cut: CutFIN}, 1, 0, "", io.EOF},
		{"cut before", CutBefore(), 0, 0, "", syscall.ECONNRESET},
		{"kept", Action{Keep: true}, 0, 0, "", syscall.ECONNRESET},
		{"error after applying", Afterwards(Answer{Status: 500, Body: "oh"}), 1, 500, "oh", nil},
		{"busy", Instead(Answer{Status: 503, Header: http.Header{"Retry-After": {"3"}}}), 0, 503, "", nil},
		{"success with an error", Afterwards(Answer{Body: "<Error/>"}), 1, 200, "<Error/>", nil},
		{"a portal", Instead(HTML(200)), 0, 200, HTML(200).Body, nil},
		{"torn", Action{Torn: true}, 1, 200, "the serve", io.ErrUnexpectedEOF},
		{"edited answer", Action{EditAnswer: func(r *http.Response) { r.StatusCode = 412 }}, 1, 412, "the server's answer", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, c, client := startHTTP(t, Always(IsWrite, tt.action))
			status, body, err := do(t, client, "PUT", p.URL()+"/b/k", "x")
			if status != tt.status && tt.err == nil || body != tt.body || !errors.Is(err, tt.err) {
				t.Errorf("%d %q %v; want %d %q %v", status, body, err, tt.status, tt.body, tt.err)
			}
			if got := c.count("PUT"); got != tt.reached {
				t.Errorf("%d requests reached the server, want %d", got, tt.reached)
			}
			r := p.Records()
			if len(r) != 1 || r[0].Forwarded != (tt.reached == 1) || r[0].Status != tt.status || r[0].Path != "/b/k" || r[0].Err != nil {
				t.Errorf("records %+v", r)
			}
			if r[0].Header.Get("Authorization") != "" {
				t.Error("a credential was recorded")
			}
			if status, _, err := do(t, client, "GET", p.URL(), ""); status != 200 || err != nil {
				t.Errorf("a read, which the rule does not name: %d, %v", status, err)
			}
		})
	}
}

// TestRequestIsKept: signed requests arrive as they were signed.
func TestRequestIsKept(t *testing.T) {
	p, c, client := startHTTP(t, nil)
	if _, _, err := do(t, client, "PUT", p.URL()+"/b/a%2Fb%20c/%C3%A4?x=%2F&y&z=+", "body"); err != nil {
		t.Fatal(err)
	}
	if got, want := c.last.RequestURI, "/b/a%2Fb%20c/%C3%A4?x=%2F&y&z=+"; got != want {
		t.Errorf("the server got %s, want %s", got, want)
	}
	if c.last.Host != p.Addr() || c.body != "body" || c.last.ContentLength != 4 || c.last.Header.Get("Authorization") != "secret" {
		t.Errorf("the server got Host %s, %q, %v", c.last.Host, c.body, c.last.Header)
	}
	for h := range c.last.Header {
		if strings.HasPrefix(h, "X-Forwarded") {
			t.Errorf("%s was added", h)
		}
	}
	p.SetRule(Always(nil, Strip("If-Match", "If-None-Match")))
	if _, _, err := do(t, client, "PUT", p.URL(), ""); err != nil {
		t.Fatal(err)
	}
	if got := c.last.Header.Get("If-Match"); got != "" {
		t.Errorf("If-Match: %s was forwarded", got)
	}
}

// TestHold: a request that is held reaches the server when it is released,
// though its client has gone; nothing reaches it before.
func TestHoldRequest(t *testing.T) {
	release, arrived := make(chan struct{}), make(chan struct{}, 1)
	p, c, client := startHTTP(t, func(r *http.Request) Action {
		arrived <- struct{}{}
		return HoldRequest(release)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	req, _ := http.NewRequestWithContext(ctx, "PUT", p.URL(), strings.NewReader("x"))
	if _, err := client.Do(req); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want canceled", err)
	}
	if c.count("PUT") != 0 {
		t.Fatal("it was forwarded before its release")
	}
	close(release)
	if err := p.Wait(within(t), func(r []Record) bool { return len(r) == 1 }); err != nil {
		t.Fatal(err)
	}
	if r := p.Records()[0]; c.count("PUT") != 1 || !r.Forwarded || r.Upstream != 200 {
		t.Errorf("%d reached the server; %+v", c.count("PUT"), r)
	}
	p.Forget()
	if len(p.Records()) != 0 {
		t.Error("the records are still there")
	}
}

func TestHoldAnswer(t *testing.T) {
	release := make(chan struct{})
	p, c, client := startHTTP(t, Always(nil, HoldAnswer(release)))
	done := make(chan error)
	go func() {
		_, _, err := do(t, client, "PUT", p.URL(), "")
		done <- err
	}()
	<-c.reached
	select {
	case err := <-done:
		t.Fatalf("answered before the release: %v", err)
	default:
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestHTTPDelay(t *testing.T) {
	const d = 30 * time.Millisecond
	for name, a := range map[string]Action{"request": DelayRequest(d), "answer": DelayAnswer(d)} {
		p, _, client := startHTTP(t, Always(nil, a))
		if _, _, err := do(t, client, "GET", p.URL(), ""); err != nil {
			t.Fatal(err)
		}
		if r := p.Records()[0]; r.End.Sub(r.Start) < d {
			t.Errorf("%s: over after %v, want %v or more", name, r.End.Sub(r.Start), d)
		}
	}
}

func TestTimes(t *testing.T) {
	p, c, client := startHTTP(t, Times(2, IsWrite, CutBefore()))
	for range 3 {
		_, _, _ = do(t, client, "PUT", p.URL(), "")
		_, _, _ = do(t, client, "GET", p.URL(), "")
	}
	if c.count("PUT") != 1 || c.count("GET") != 3 {
		t.Errorf("%v reached the server, want one PUT of three and all reads", c.seen)
	}
}

func TestThrottle(t *testing.T) {
	busy := Answer{Status: 429, Header: http.Header{"Retry-After": {"1"}}}
	p, c, client := startHTTP(t, Throttle(2, time.Hour, busy, nil))
	got := map[int]int{}
	for _, path := range []string{"/a", "/a", "/a", "/a", "/b"} {
		status, _, err := do(t, client, "PUT", p.URL()+path, "")
		if err != nil {
			t.Fatal(err)
		}
		got[status]++
	}
	if got[200] != 3 || got[429] != 2 || c.count("PUT") != 3 {
		t.Errorf("answers %v, %d reached the server; want 3 of 200, 2 of 429", got, c.count("PUT"))
	}
	p.SetRule(Throttle(1, time.Nanosecond, busy, nil))
	for range 3 {
		if status, _, err := do(t, client, "PUT", p.URL()+"/a", ""); status != 200 || err != nil {
			t.Errorf("slowly: %d, %v", status, err)
		}
	}
}

func TestServerGone(t *testing.T) {
	p, _, client := startHTTP(t, nil)
	if err := p.SetTarget("http://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := do(t, client, "PUT", p.URL(), ""); err == nil {
		t.Error("an answer from a server that does not run")
	}
	if r := p.Records(); len(r) != 1 || r[0].Err == nil || r[0].Status != 0 {
		t.Errorf("%+v, want an error", r)
	}
	if err := p.SetTarget("127.0.0.1:1"); err == nil {
		t.Error("a target without scheme was accepted")
	}
}

func TestHTTPS(t *testing.T) {
	ca, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM)
	make := func(end time.Time, host string) tls.Certificate {
		cert, err := ca.Certificate(end, host)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	upstream := httptest.NewTLSServer(newCounter())
	defer upstream.Close()
	p, err := NewHTTPS(upstream.URL, nil, make(time.Now().Add(time.Hour), "127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	if status, _, err := do(t, client, "PUT", p.URL(), "x"); status != 200 || err != nil {
		t.Fatalf("%d, %v", status, err)
	}
	p.SetRule(Always(nil, LoseAnswer()))
	if _, _, err := do(t, client, "PUT", p.URL(), "x"); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("a lost answer: %v", err)
	}
	p.SetRule(nil)
	for what, cert := range map[string]tls.Certificate{
		"another host": make(time.Now().Add(time.Hour), "example.org"),
		"expired":      make(time.Now().Add(-time.Hour), "127.0.0.1"),
	} {
		p.SetCertificate(cert)
		p.Disconnect()
		client.CloseIdleConnections()
		_, _, err := do(t, client, "PUT", p.URL(), "x")
		if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestStream: an answer that goes on arrives as it comes.
func TestStream(t *testing.T) {
	next := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "one")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-next:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	p, err := NewHTTP(s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	resp, err := http.Get(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b := make([]byte, 3)
	if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "one" {
		t.Errorf("%q, %v", b, err)
	}
	close(next)
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

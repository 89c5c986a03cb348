// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// An HTTP is a reverse proxy on a loopback port before one HTTP or HTTPS
// server. A rule says what happens to each request; it is called when the
// request has arrived whole, from many goroutines at once, and may read its
// body. The request keeps its Host header, path and query as the client wrote
// them, so that signatures stay valid. What a client sent is forwarded also when
// the client has gone meanwhile, except reads: networks do not call packets back.
// Its methods are safe for concurrent use; only Wait and Close block.
type HTTP struct {
	server    *http.Server
	transport *http.Transport
	addr      string
	scheme    string
	life      context.Context
	end       context.CancelFunc

	target atomic.Pointer[url.URL]
	rule   atomic.Pointer[Rule]
	cert   atomic.Pointer[tls.Certificate]

	mu      sync.Mutex
	records []Record
	changed chan struct{} // closed at every new record
	conns   map[net.Conn]struct{}
}

// A Rule says what happens to a request. Nil lets everything pass.
type Rule = func(*http.Request) Action

// A Record is one request and what became of it. It is there before the client
// sees the answer.
type Record struct {
	// Method, Host, Path and Query are as the client sent them; Path is decoded.
	Method, Host, Path, Query string
	// Header is the client's, without what could be a credential.
	Header http.Header
	// Size is the length of the request's body in bytes.
	Size int
	// Forwarded reports whether the server got the request. Upstream is what it
	// answered, 0 if it did not.
	Forwarded bool
	Upstream  int
	// Status is what the client was answered; 0 if it got no answer.
	Status int
	// Start is when the request had arrived, End when its answer began or the
	// connection was cut. They have the monotonic clock.
	Start, End time.Time
	// Err is why the server could not be asked, nil if it could.
	Err error
}

// maxBody is the longest request body in bytes.
const maxBody = 8 << 20

// NewHTTP returns a proxy that is reached over HTTP, before the server at
// target, "http://host:port" or "https://host:port". Certificates of an https
// server are not checked, unless UpstreamTLS says otherwise.
func NewHTTP(target string, rule Rule) (*HTTP, error) { return newHTTP(target, rule, nil) }

// NewHTTPS returns a proxy that is reached over HTTPS and shows cert.
func NewHTTPS(target string, rule Rule, cert tls.Certificate) (*HTTP, error) {
	return newHTTP(target, rule, &cert)
}

func newHTTP(target string, rule Rule, cert *tls.Certificate) (*HTTP, error) {
	p := &HTTP{
		scheme:  "http",
		changed: make(chan struct{}),
		conns:   make(map[net.Conn]struct{}),
		transport: &http.Transport{
			DisableCompression:  true,
			MaxIdleConnsPerHost: 64,
			TLSClientConfig:     &tls.Config{InsecureSkipVerify: true},
		},
	}
	if err := p.SetTarget(target); err != nil {
		return nil, err
	}
	p.SetRule(rule)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("fault: no free port before %s: %w", target, err)
	}
	p.addr = l.Addr().String()
	p.life, p.end = context.WithCancel(context.Background())
	p.server = &http.Server{
		Handler:      p,
		ErrorLog:     log.New(io.Discard, "", 0), // aborted connections are what it is for
		ConnState:    p.connState,
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // HTTP/1.1: one connection, one request
	}
	if cert != nil {
		p.scheme = "https"
		p.SetCertificate(*cert)
		l = tls.NewListener(l, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return p.cert.Load(), nil
		}})
	}
	go p.server.Serve(l) //nolint:errcheck // it ends with Close
	return p, nil
}

// URL returns the proxy's address, "http://127.0.0.1:port" or the same with
// https.
func (p *HTTP) URL() string { return p.scheme + "://" + p.addr }

// Addr returns "127.0.0.1:port".
func (p *HTTP) Addr() string { return p.addr }

// SetRule replaces the rule, for requests that arrive from now on.
func (p *HTTP) SetRule(rule Rule) { p.rule.Store(&rule) }

// SetTarget sends requests to another server from now on.
func (p *HTTP) SetTarget(target string) error {
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("fault: the target %q is not http://host:port or https://host:port", target)
	}
	p.target.Store(u)
	return nil
}

// SetCertificate shows another certificate on connections from now on.
func (p *HTTP) SetCertificate(cert tls.Certificate) { p.cert.Store(&cert) }

// UpstreamTLS is how an https server is asked. It must be called before the
// first request.
func (p *HTTP) UpstreamTLS(c *tls.Config) { p.transport.TLSClientConfig = c }

// Records returns the requests so far, in the order of their ends.
func (p *HTTP) Records() []Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.records)
}

// Forget empties the records.
func (p *HTTP) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records = nil
}

// Wait blocks until enough, called with all records at every new one, reports
// true. It returns an error when ctx ends first.
func (p *HTTP) Wait(ctx context.Context, enough func([]Record) bool) error {
	for {
		p.mu.Lock()
		records, changed := slices.Clone(p.records), p.changed
		p.mu.Unlock()
		if enough(records) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("fault: waiting for requests, after %d: %w", len(records), ctx.Err())
		}
	}
}

// Disconnect resets all connections, also those with requests under way. New
// ones are accepted.
func (p *HTTP) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		closeConn(c, true)
	}
}

// Close ends the proxy, its connections and what is held. It may be called
// again.
func (p *HTTP) Close() {
	p.end()
	p.Disconnect()
	p.server.Close()
	p.transport.CloseIdleConnections()
}

func (p *HTTP) connState(c net.Conn, s http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch s {
	case http.StateNew:
		p.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(p.conns, c)
	}
}

func (p *HTTP) record(r Record) {
	r.End = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records = append(p.records, r)
	close(p.changed)
	p.changed = make(chan struct{})
}

// ServeHTTP is the proxy's handler.
func (p *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		cutClient(w, true) // the client went in the middle, or wants too much
		return
	}
	rec := Record{
		Method: r.Method, Host: r.Host, Path: r.URL.Path, Query: r.URL.RawQuery,
		Header: withoutCredentials(r.Header), Size: len(body), Start: time.Now(),
	}
	var a Action
	if rule := *p.rule.Load(); rule != nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		a = rule(r)
	}
	resp := p.ask(a, r, body, &rec)
	if resp != nil {
		defer resp.Body.Close()
	}
	switch {
	case rec.Err != nil, a.Cut != NotCut, !p.wait(a.DelayAfter, a.HoldAfter):
		resp = nil
	case a.Answer != nil:
		resp = a.Answer.response()
	}
	if resp != nil && a.EditAnswer != nil {
		a.EditAnswer(resp)
	}
	if resp != nil {
		rec.Status = resp.StatusCode
	}
	p.record(rec) // before the client knows, so that it finds the record
	if resp == nil {
		cutClient(w, a.Cut != CutFIN)
		return
	}
	if err := copyAnswer(w, r, resp, a.Torn); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// ask forwards the request if a says so, and returns the server's answer.
func (p *HTTP) ask(a Action, r *http.Request, body []byte, rec *Record) *http.Response {
	if !p.wait(a.DelayBefore, a.HoldBefore) {
		rec.Err = errors.New("the proxy was closed")
		return nil
	}
	if a.Keep {
		return nil
	}
	ctx := p.life
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		ctx = r.Context() // Close ends it too, with the connection
	}
	out := r.Clone(ctx)
	target := p.target.Load()
	out.URL.Scheme, out.URL.Host, out.RequestURI = target.Scheme, target.Host, ""
	for _, h := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Upgrade", "Expect"} {
		out.Header.Del(h)
	}
	if out.Header.Get("User-Agent") == "" {
		out.Header.Set("User-Agent", "") // nothing is added
	}
	out.Body, out.ContentLength = http.NoBody, int64(len(body))
	if len(body) > 0 {
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		out.Body, _ = out.GetBody()
	}
	if a.Edit != nil {
		a.Edit(out)
	}
	resp, err := p.transport.RoundTrip(out)
	rec.Forwarded = true
	if err != nil {
		rec.Err = err
		return nil
	}
	rec.Upstream = resp.StatusCode
	return resp
}

// wait returns false if the proxy was closed meanwhile.
func (p *HTTP) wait(d time.Duration, hold <-chan struct{}) bool {
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-p.life.Done():
			return false
		}
	}
	if hold != nil {
		select {
		case <-hold:
		case <-p.life.Done():
			return false
		}
	}
	return true
}

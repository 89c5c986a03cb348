// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// An Action is what an [HTTP] proxy does to one request. The zero Action lets
// it pass. Its fields can be combined; they take effect in their order.
type Action struct {
	// DelayBefore and HoldBefore keep the request from the server: for so long,
	// and until the channel is closed.
	DelayBefore time.Duration
	HoldBefore  <-chan struct{}
	// Keep keeps it from the server for good. Without Answer the connection is
	// cut.
	Keep bool
	// Edit changes the request before it is forwarded.
	Edit func(*http.Request)
	// Cut ends the client's connection instead of answering. The server has
	// answered before, unless Keep.
	Cut Cut
	// DelayAfter and HoldAfter keep the answer from the client.
	DelayAfter time.Duration
	HoldAfter  <-chan struct{}
	// Answer replaces the server's answer.
	Answer *Answer
	// EditAnswer changes the answer. Who changes its body sets Content-Length.
	EditAnswer func(*http.Response)
	// Torn passes half of the answer's body and ends the connection.
	Torn bool
}

// A Cut is how a connection ends.
type Cut uint8

// The cuts: none, a reset, an orderly end.
const (
	NotCut Cut = iota
	CutRST
	CutFIN
)

// An Answer is what a client gets instead of the server's answer.
type Answer struct {
	// Status is the status code; 0 is 200.
	Status int
	// Header are header fields. Date and Content-Length are added if missing.
	Header http.Header
	// Body is sent as it is.
	Body string
}

func (a *Answer) response() *http.Response {
	r := &http.Response{
		StatusCode:    a.Status,
		Header:        a.Header.Clone(),
		Body:          io.NopCloser(bytes.NewReader([]byte(a.Body))),
		ContentLength: int64(len(a.Body)),
	}
	if r.StatusCode == 0 {
		r.StatusCode = http.StatusOK
	}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	return r
}

// Pass lets a request pass.
var Pass = Action{}

// LoseAnswer has the server do what was asked and resets the connection before
// the answer.
func LoseAnswer() Action { return Action{Cut: CutRST} }

// CutBefore resets the connection; the server never hears of the request.
func CutBefore() Action { return Action{Keep: true, Cut: CutRST} }

// DelayRequest forwards a request d later.
func DelayRequest(d time.Duration) Action { return Action{DelayBefore: d} }

// DelayAnswer forwards it at once and answers d later.
func DelayAnswer(d time.Duration) Action { return Action{DelayAfter: d} }

// HoldRequest forwards it when release is closed, also if the client has gone.
func HoldRequest(release <-chan struct{}) Action { return Action{HoldBefore: release} }

// HoldAnswer forwards it at once and answers when release is closed.
func HoldAnswer(release <-chan struct{}) Action { return Action{HoldAfter: release} }

// Instead answers a; the server never hears of the request.
func Instead(a Answer) Action { return Action{Keep: true, Answer: &a} }

// Afterwards has the server do what was asked and answers a.
func Afterwards(a Answer) Action { return Action{Answer: &a} }

// Strip forwards a request without some header fields: with If-Match and
// If-None-Match, a store that ignores conditions.
func Strip(fields ...string) Action {
	return Action{Edit: func(r *http.Request) {
		for _, f := range fields {
			r.Header.Del(f)
		}
	}}
}

// HTML is the page of a proxy or a portal that stands where the store should.
func HTML(status int) Answer {
	return Answer{
		Status: status,
		Header: http.Header{"Content-Type": {"text/html; charset=utf-8"}},
		Body:   "<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Sign in to use this network.</body></html>\n",
	}
}

// IsWrite reports whether a request is one that changes something: it has
// another method than GET and HEAD.
func IsWrite(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead
}

// Times returns a rule that does a to the first n requests that match, and lets
// all others pass. A nil match is any request.
func Times(n int, match func(*http.Request) bool, a Action) Rule {
	var mu sync.Mutex
	return func(r *http.Request) Action {
		if match != nil && !match(r) {
			return Pass
		}
		mu.Lock()
		defer mu.Unlock()
		if n <= 0 {
			return Pass
		}
		n--
		return a
	}
}

// Always returns a rule that does a to all requests that match. A nil match is
// any request.
func Always(match func(*http.Request) bool, a Action) Rule {
	return func(r *http.Request) Action {
		if match != nil && !match(r) {
			return Pass
		}
		return a
	}
}

// Throttle returns a rule that lets n writes of a key pass in any time per, and
// answers the others with busy. Key names what a request writes, and is empty
// for those that are not limited; nil limits the writes of each path.
func Throttle(n int, per time.Duration, busy Answer, key func(*http.Request) string) Rule {
	if key == nil {
		key = func(r *http.Request) string {
			if !IsWrite(r) {
				return ""
			}
			return r.URL.Path
		}
	}
	var mu sync.Mutex
	passed := make(map[string][]time.Time)
	return func(r *http.Request) Action {
		k := key(r)
		if k == "" {
			return Pass
		}
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		recent := passed[k]
		for len(recent) > 0 && now.Sub(recent[0]) >= per {
			recent = recent[1:]
		}
		if len(recent) >= n {
			passed[k] = recent
			return Instead(busy)
		}
		passed[k] = append(recent, now)
		return Pass
	}
}

// withoutCredentials copies a header for a test's log.
func withoutCredentials(h http.Header) http.Header {
	h = h.Clone()
	for _, f := range []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Amz-Security-Token"} {
		h.Del(f)
	}
	return h
}

// copyAnswer sends an answer on, as it comes: it may be a watch.
func copyAnswer(w http.ResponseWriter, r *http.Request, resp *http.Response, torn bool) error {
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	for _, h := range []string{"Connection", "Keep-Alive", "Transfer-Encoding"} {
		w.Header().Del(h)
	}
	if resp.ContentLength > 0 && w.Header().Get("Content-Length") == "" {
		w.Header().Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	w.WriteHeader(resp.StatusCode)
	if r.Method == http.MethodHead {
		return nil
	}
	if torn {
		half := resp.ContentLength / 2
		_, _ = io.CopyN(w, resp.Body, max(half, 1)) // it fails anyway
		_ = http.NewResponseController(w).Flush()
		return errors.New("torn")
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// cutClient ends the client's connection without an answer.
func cutClient(w http.ResponseWriter, reset bool) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	closeConn(c, reset)
}

// closeConn ends a connection below TLS, without its farewell.
func closeConn(c net.Conn, reset bool) {
	if under, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = under.NetConn()
	}
	if tcp, ok := c.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0) // it fails only on a connection that is gone
	}
	c.Close()
}

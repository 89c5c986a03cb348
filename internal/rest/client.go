// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package rest is what drivers share that speak HTTP to a store themselves: a client
// that sends each request once, bounded bodies, what errors of the transport mean,
// and tokens that are fetched beside the requests.
package rest

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// NewClient returns a client for one store.
func NewClient() *http.Client {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     30 * time.Second,
		// The record is read as it was written.
		DisableCompression: true,
		// One connection per request under way: a dead one holds up no other, and
		// nothing is sent twice behind our back.
		Protocols: new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return &http.Client{
		Transport: t,
		// The service does not redirect. Whoever does is not the service.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Body reads the body of an answer, if it is no longer than limit bytes. What a longer
// one holds is left with the connection.
func Body(resp *http.Response, limit int64) (body []byte, tooLarge bool, err error) {
	if resp.ContentLength > limit && resp.Request.Method != http.MethodHead {
		return nil, true, nil
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil || int64(len(b)) > limit {
		return nil, err == nil, err
	}
	return b, false, nil
}

// Time is a field of a header that holds one, zero if it does not.
func Time(h http.Header, name string) time.Time {
	t, err := http.ParseTime(h.Get(name))
	if err != nil {
		return time.Time{}
	}
	return t
}

// RetryAfter is what an answer of that Date asks for by Retry-After, at most an hour if
// it says seconds; 0 if nothing.
func RetryAfter(h http.Header, date time.Time) time.Duration {
	raw := h.Get("Retry-After")
	if sec, err := strconv.Atoi(raw); err == nil && sec > 0 {
		return time.Duration(min(sec, 3600)) * time.Second
	}
	if t, err := http.ParseTime(raw); err == nil && !date.IsZero() && t.After(date) {
		return t.Sub(date) // both by the store's clock
	}
	return 0
}

// IsLoopback reports whether requests to a host stay on this machine.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// OneLine shortens what others wrote, which may be pages, for a log: to most bytes.
func OneLine(s string, most int) string {
	line := strings.Join(strings.Fields(s), " ")
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "…"
	}
	return line
}

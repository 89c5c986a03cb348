// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// azureSays is an answer in the service's own form.
func azureSays(status int, code string, header ...string) fault.Answer {
	a := fault.Answer{Status: status, Header: http.Header{
		"X-Ms-Request-Id": {"0a1b2c"}, "X-Ms-Error-Code": {code}, "X-Ms-Version": {apiVersion}, "Content-Type": {"application/xml"},
	}, Body: `<?xml version="1.0" encoding="utf-8"?><Error><Code>` + code + `</Code><Message>So it is.</Message></Error>`}
	for i := 0; i+1 < len(header); i += 2 {
		a.Header.Set(header[i], header[i+1])
	}
	return a
}

func writes(records []fault.Record) (n int) {
	for _, r := range records {
		if r.Method == http.MethodPut && r.Forwarded {
			n++
		}
	}
	return n
}

// TestLostAnswer: the store did it and the answer was lost. That is neither a
// success nor a conflict, the write is not sent again, and a read finds it.
func TestLostAnswer(t *testing.T) {
	r, direct, p := proxied(t, nil)
	busy := azureSays(503, "ServerBusy", "Retry-After", "1")
	failed := azureSays(500, "InternalError")
	for _, tt := range []struct {
		name   string
		action fault.Action
		says   string
	}{
		{"cut", fault.LoseAnswer(), "no answer from"},
		{"500", fault.Afterwards(failed), "may have happened or not"},
		{"503", fault.Afterwards(busy), "throttled"},
		{"html", fault.Afterwards(fault.HTML(502)), "not Azure Blob Storage's"},
		{"200 of a proxy", fault.Afterwards(fault.HTML(200)), "not Azure Blob Storage's"},
		{"no ETag", fault.Action{EditAnswer: func(r *http.Response) { r.Header.Del("ETag") }}, "has no ETag"},
	} {
		for _, create := range []bool{true, false} {
			var old tenure.Version
			if !create {
				old = mustWrite(t, direct, "before", "")
			}
			p.Forget()
			p.SetRule(fault.Times(1, fault.IsWrite, tt.action))
			v, err := r.Write(t.Context(), []byte("after "+tt.name), old)
			if v != "" || errors.Is(err, tenure.ErrConflict) || errors.Is(err, tenure.ErrNotExist) {
				t.Errorf("%s: write = %q, %v: it is not known whether it happened", tt.name, v, err)
			}
			mustSay(t, err, tt.says)
			if n := writes(p.Records()); n != 1 {
				t.Errorf("%s: the store got the write %d times", tt.name, n)
			}
			got, now := mustRead(t, r)
			if got != "after "+tt.name {
				t.Errorf("%s: then it reads %q", tt.name, got)
			}
			mustWrite(t, r, "next", now)
			remove(t, direct)
		}
	}
}

// TestNotSent: what the store never got did not happen, and the driver does not
// say that it conflicts either.
func TestNotSent(t *testing.T) {
	r, direct, p := proxied(t, nil)
	v := mustWrite(t, direct, "before", "")
	for _, action := range []fault.Action{
		fault.CutBefore(), fault.Instead(azureSays(503, "ServerBusy")), fault.Instead(fault.HTML(404)), fault.Instead(fault.HTML(412)),
		fault.Instead(fault.HTML(409)), fault.Instead(azureSays(412, "LeaseIdMissing")), fault.Instead(azureSays(409, "OperationTimedOut")),
		fault.Instead(azureSays(404, "ContainerNotFound")), fault.Instead(azureSays(409, "BlobAlreadyExists")),
	} {
		p.SetRule(fault.Times(1, fault.IsWrite, action))
		if _, err := r.Write(t.Context(), []byte("after"), v); err == nil || errors.Is(err, tenure.ErrConflict) {
			t.Errorf("write, answered %+v: %v", action.Answer, err)
		}
	}
	if got, now := mustRead(t, r); got != "before" || now != v {
		t.Errorf("it reads %q at %q, want the record as it was", got, now)
	}
}

// TestConflictDialects: stores disagree on what a write at a version says when
// the record is gone; each means that it did not happen.
func TestConflictDialects(t *testing.T) {
	r, direct, p := proxied(t, nil)
	v := mustWrite(t, direct, "1", "")
	remove(t, direct)
	for _, action := range []fault.Action{
		fault.Pass, fault.Instead(azureSays(404, "BlobNotFound")), fault.Instead(azureSays(412, "ConditionNotMet")),
	} {
		p.SetRule(fault.Always(fault.IsWrite, action))
		if _, err := r.Write(t.Context(), []byte("2"), v); !errors.Is(err, tenure.ErrConflict) {
			t.Errorf("write to a deleted record, answered %+v: %v, want ErrConflict", action.Answer, err)
		}
	}
	p.SetRule(nil)
	if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("read: %v, want ErrNotExist", err)
	}
}

// TestVersionNeedsNoRead: all reads fail, and renewals go on.
func TestVersionNeedsNoRead(t *testing.T) {
	r, _, p := proxied(t, fault.Always(func(r *http.Request) bool { return !fault.IsWrite(r) }, fault.Instead(azureSays(500, "InternalError"))))
	var v tenure.Version
	for range 5 {
		v = mustWrite(t, r, "x", v)
	}
	for _, rec := range p.Records() {
		if rec.Method != http.MethodPut {
			t.Errorf("%s %s between writes", rec.Method, rec.Path)
		}
	}
}

// TestReadsOfOthers: what is not the store's answer is neither a value nor an
// absence.
func TestReadsOfOthers(t *testing.T) {
	r, direct, p := proxied(t, nil)
	v := mustWrite(t, direct, strings.Repeat("value ", 1000), "")
	edit := func(f func(http.Header)) fault.Action {
		return fault.Action{EditAnswer: func(r *http.Response) { f(r.Header) }}
	}
	for _, tt := range []struct {
		name   string
		action fault.Action
		says   []string
	}{
		{"page", fault.Instead(fault.HTML(200)), []string{"not Azure Blob Storage's", "text/html", "proxy"}},
		{"page 404", fault.Instead(fault.HTML(404)), []string{"not Azure Blob Storage's", "404"}},
		{"proxy wants a password", fault.Instead(fault.HTML(407)), []string{"proxy asks for credentials", "HTTPS_PROXY"}},
		{"redirect", fault.Instead(fault.Answer{Status: 302, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}}), []string{"not Azure Blob Storage's", "302"}},
		{"304 unasked", fault.Instead(fault.Answer{Status: 304, Header: http.Header{"X-Ms-Request-Id": {"1"}}}), []string{"304", "a cache"}},
		{"cache", edit(func(h http.Header) { h.Set("Age", "7") }), []string{"cache", "CDN"}},
		{"weak", edit(func(h http.Header) { h.Set("ETag", "W/"+h.Get("ETag")) }), []string{"weak", "proxy"}},
		{"no ETag", edit(func(h http.Header) { h.Del("ETag") }), []string{"no ETag"}},
		{"torn", fault.Action{Torn: true}, []string{"no answer"}},
		{"cut", fault.LoseAnswer(), []string{"no answer"}},
		{"directory", edit(func(h http.Header) { h.Set("x-ms-meta-hdi_isfolder", "true") }), []string{"directory"}},
		{"page blob", edit(func(h http.Header) { h.Set("x-ms-blob-type", "PageBlob") }), []string{"PageBlob", "choose another path"}},
		{"archived", fault.Instead(azureSays(409, "BlobArchived")), []string{"archive tier", "set-tier"}},
	} {
		p.SetRule(fault.Always(nil, tt.action))
		value, got, err := r.Read(t.Context())
		if value != nil || got != "" || errors.Is(err, tenure.ErrNotExist) || errors.Is(err, tenure.ErrValueTooLarge) {
			t.Errorf("%s: read = %q, %q, %v", tt.name, value, got, err)
		}
		mustSay(t, err, tt.says...)
		if _, err := r.Now(t.Context()); tt.says[0] == "not Azure Blob Storage's" && err == nil {
			t.Errorf("%s: it told the time", tt.name)
		}
		if list, err := r.List(t.Context(), ""); tt.says[0] == "not Azure Blob Storage's" && err == nil {
			t.Errorf("%s: it listed %q", tt.name, list)
		}
	}
	p.SetRule(nil)
	if _, got := mustRead(t, r); got != v {
		t.Errorf("afterwards it reads version %q, want %q", got, v)
	}
	// Now that it knows the version, "not modified" must be of that one.
	p.SetRule(fault.Always(nil, edit(func(h http.Header) { h.Set("ETag", `"0x1"`) })))
	if _, _, err := r.Read(t.Context()); err == nil {
		t.Error("a 304 with another ETag was believed")
	}
}

// TestLateWrite: the answer does not come in time. The call ends with its
// context, and what arrives at the store later takes effect once, if at all.
func TestLateWrite(t *testing.T) {
	for _, after := range []bool{false, true} {
		r, direct, p := proxied(t, nil)
		v := mustWrite(t, direct, "before", "")
		release := make(chan struct{})
		action := fault.HoldRequest(release)
		if after {
			action = fault.HoldAnswer(release)
		}
		p.SetRule(fault.Times(1, fault.IsWrite, action))
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		start := time.Now()
		_, err := r.Write(ctx, []byte("late"), v)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, tenure.ErrConflict) {
			t.Errorf("write without an answer: %v", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("it returned after %v", d)
		}
		if !after {
			// Somebody else writes first: the late one must not undo that.
			mustWrite(t, direct, "other", v)
		}
		close(release)
		if err := p.Wait(within(t, 10*time.Second), func(r []fault.Record) bool { return writes(r) == 1 }); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{false: "other", true: "late"}[after]
		if got, _ := mustRead(t, r); got != want {
			t.Errorf("it reads %q, want %q", got, want)
		}
	}
}

// TestRetryAfter: what the store says about when to come back reaches the
// elector.
func TestRetryAfter(t *testing.T) {
	r, _, p := proxied(t, nil)
	now := time.Now().UTC().Truncate(time.Second)
	for _, tt := range []struct {
		answer fault.Answer
		want   time.Duration
	}{
		{azureSays(503, "ServerBusy", "Retry-After", "7"), 7 * time.Second},
		{azureSays(429, "TooManyRequests", "Retry-After", "2"), 2 * time.Second},
		{azureSays(503, "ServerBusy", "X-Ms-Retry-After-Ms", "1500", "Retry-After", "9"), 1500 * time.Millisecond},
		{azureSays(503, "ServerBusy", "Date", now.Format(http.TimeFormat), "Retry-After", now.Add(4*time.Second).Format(http.TimeFormat)), 4 * time.Second},
		{azureSays(503, "ServerBusy", "Retry-After", "-3"), 0},
		{azureSays(503, "ServerBusy"), 0},
	} {
		p.SetRule(fault.Always(nil, fault.Instead(tt.answer)))
		for _, op := range []func() error{
			func() error { _, err := r.Write(t.Context(), nil, ""); return err },
			func() error { _, _, err := r.Read(t.Context()); return err },
		} {
			err := op()
			mustSay(t, err, "throttled")
			var later tenure.RetryAfterer
			if errors.As(err, &later) != (tt.want > 0) || tt.want > 0 && later.RetryAfter() != tt.want {
				t.Errorf("RetryAfter of %v: want %v", err, tt.want)
			}
			var e *Error
			if !errors.As(err, &e) || e.StatusCode != tt.answer.Status {
				t.Errorf("no *Error with status %d in %v", tt.answer.Status, err)
			}
		}
	}
}

// TestNetwork: dead, slow and refusing connections end with the context or at
// once, and the first request after the fault works: none waits for another's
// connection.
func TestNetwork(t *testing.T) {
	p, err := fault.NewTCP(azurite.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	direct := fresh(t)
	r := openAt(t, "http://"+p.Addr()+"/"+testbed.AzuriteAccount, direct.store.container, direct.blob)
	v := mustWrite(t, r, "x", "")
	for _, tt := range []struct {
		name  string
		fault func()
		fast  bool // it fails without waiting for ctx
	}{
		{"black hole", p.BlackHole, false},
		{"answers dropped", p.DropAnswers, false},
		{"reset", p.Reset, true},
		{"refused", p.Refuse, true},
	} {
		tt.fault()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		start := time.Now()
		_, _, err := r.Read(ctx)
		took := time.Since(start)
		cancel()
		if err == nil || errors.Is(err, tenure.ErrNotExist) || !tt.fast && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: read: %v", tt.name, err)
		}
		if took > 1500*time.Millisecond {
			t.Errorf("%s: read took %v", tt.name, took)
		}
		p.Pass()
		if _, got, err := r.Read(within(t, 2*time.Second)); err != nil || got != v {
			t.Errorf("%s: the first read afterwards: %q, %v; want version %q", tt.name, got, err, v)
		}
	}
}

// A flaky transport fails, and counts how often it was told that its idle
// connections are no good.
type flaky struct {
	roundTripper
	closed int
}

func (f *flaky) CloseIdleConnections() { f.closed++ }

// TestIdleConnections: when one connection has died, those that are idle may
// have too. The next request takes none of them.
func TestIdleConnections(t *testing.T) {
	r := fresh(t)
	f := &flaky{roundTripper: func(*http.Request) (*http.Response, error) { return nil, errors.New("no route") }}
	r.store.http.Transport = f
	_, _, err := r.Read(t.Context())
	mustSay(t, err, "no answer from", "no route")
	if f.closed != 1 {
		t.Errorf("idle connections were closed %d times, want once", f.closed)
	}
}

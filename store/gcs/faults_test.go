// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
)

var (
	backendError = says(503, "backendError", "Backend Error")
	rateLimited  = says(429, "rateLimitExceeded", "The object exceeded the rate limit for object mutation operations.")
	notMet       = says(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
	noBucket     = says(404, "notFound", "The specified bucket does not exist.")
	retained     = says(403, "retentionPolicyNotMet", "Object is subject to bucket's retention policy or object retention and cannot be deleted or overwritten.")
)

// TestLostAnswer: the store did it and the answer was lost or is another's. That
// is neither a success nor a conflict, the write is not sent again, and a read
// finds it.
func TestLostAnswer(t *testing.T) {
	r, direct, p := proxied(t, nil)
	for _, tt := range []struct {
		name   string
		action fault.Action
		says   string
	}{
		{"cut", fault.LoseAnswer(), "no answer from"},
		{"500", fault.Afterwards(says(500, "internalError", "Internal")), "may have happened or not"},
		{"503", fault.Afterwards(backendError), "may have happened or not"},
		{"409", fault.Afterwards(says(409, "conflict", "Conflict")), "may have happened or not"},
		{"html", fault.Afterwards(fault.HTML(502)), "not Cloud Storage's"},
		{"200 of a proxy", fault.Afterwards(fault.HTML(200)), "not Cloud Storage's"},
		{"200 without a body", fault.Afterwards(fault.Answer{}), "no generation"},
		{"200 with an error", fault.Afterwards(fault.Answer{Body: backendError.Body, Header: backendError.Header}), "no generation"},
		{"generation 0", fault.Afterwards(fault.Answer{Body: `{"generation":"0"}`}), "no generation"},
		{"torn", fault.Action{Torn: true}, "no answer from"},
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
// call it a conflict.
func TestNotSent(t *testing.T) {
	r, direct, p := proxied(t, nil)
	v := mustWrite(t, direct, "before", "")
	for _, action := range []fault.Action{
		fault.CutBefore(), fault.Instead(backendError), fault.Instead(rateLimited), fault.Instead(fault.HTML(404)), fault.Instead(fault.HTML(412)),
		fault.Instead(fault.HTML(409)), fault.Instead(says(409, "conflict", "")), fault.Instead(noBucket), fault.Instead(retained),
		fault.Instead(says(412, "orgPolicyConstraintFailed", "")), fault.Instead(fault.Answer{Status: 412}),
		fault.Instead(says(408, "uploadBrokenConnection", "")), fault.Instead(fault.Answer{Status: 304}),
	} {
		p.SetRule(fault.Times(1, fault.IsWrite, action))
		if _, err := r.Write(t.Context(), []byte("after"), v); err == nil || errors.Is(err, tenure.ErrConflict) || errors.Is(err, tenure.ErrNotExist) {
			t.Errorf("write, answered %+v: %v", action.Answer, err)
		}
	}
	if got, now := mustRead(t, r); got != "before" || now != v {
		t.Errorf("it reads %q at %q, want the record as it was", got, now)
	}
	p.SetRule(fault.Times(1, fault.IsWrite, fault.Instead(notMet)))
	if _, err := r.Write(t.Context(), nil, v); !errors.Is(err, tenure.ErrConflict) {
		t.Errorf("write, answered 412: %v, want ErrConflict", err)
	}
}

// TestDeletedRecord: a write to a record that somebody has deleted conflicts,
// and does not make it again; a versioned bucket keeps what was, and that is no
// live object.
func TestDeletedRecord(t *testing.T) {
	r := fresh(t)
	v := mustWrite(t, r, "1", "")
	remove(t, r)
	if _, err := r.Write(t.Context(), []byte("2"), v); !errors.Is(err, tenure.ErrConflict) {
		t.Errorf("write: %v, want ErrConflict", err)
	}
	if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("read: %v, want ErrNotExist", err)
	}
	if again := mustWrite(t, r, "1", ""); again == v {
		t.Errorf("the record made again has the version %q of the one before", v)
	}
}

// TestVersioned: in a bucket with versioning a deleted record is absent for
// reads and creates alike.
func TestVersioned(t *testing.T) {
	r := fresh(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, server.Endpoint+"/storage/v1/b/"+r.store.bucket, strings.NewReader(`{"versioning":{"enabled":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("switch on versioning: %v, %+v", err, resp)
	}
	resp.Body.Close()
	v := mustWrite(t, r, "1", "")
	v = mustWrite(t, r, "2", v)
	mustRead(t, r)
	remove(t, r)
	if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("read: %v, want ErrNotExist", err)
	}
	if _, err := r.Write(t.Context(), []byte("3"), v); !errors.Is(err, tenure.ErrConflict) {
		t.Errorf("write at the deleted version: %v, want ErrConflict", err)
	}
	v = mustWrite(t, r, "4", "")
	if got, now := mustRead(t, r); got != "4" || now != v {
		t.Errorf("read: %q at %q, want 4 at %q", got, now, v)
	}
}

// TestVersionNeedsNoRead: all reads fail, and renewals go on.
func TestVersionNeedsNoRead(t *testing.T) {
	r, _, p := proxied(t, fault.Always(func(r *http.Request) bool { return !fault.IsWrite(r) }, fault.Instead(backendError)))
	var v tenure.Version
	for range 5 {
		v = mustWrite(t, r, "x", v)
	}
	for _, rec := range p.Records() {
		if rec.Method != http.MethodPost {
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
	const others = "not Cloud Storage's"
	for _, tt := range []struct {
		name   string
		action fault.Action
		says   []string
	}{
		{"page", fault.Instead(fault.HTML(200)), []string{others, "text/html", "proxy"}},
		{"page 404", fault.Instead(fault.HTML(404)), []string{others, "404"}},
		{"proxy wants a password", fault.Instead(fault.HTML(407)), []string{others, "proxy asks for credentials", "HTTPS_PROXY"}},
		{"redirect", fault.Instead(fault.Answer{Status: 302, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}}), []string{"redirects", "302"}},
		{"304 unasked", fault.Instead(fault.Answer{Status: 304}), []string{"304", "a cache"}},
		{"cache", edit(func(h http.Header) { h.Set("Age", "7") }), []string{others, "cache", "CDN"}},
		{"no generation", edit(func(h http.Header) { h.Del("X-Goog-Generation") }), []string{others, "no generation"}},
		{"torn", fault.Action{Torn: true}, []string{"no answer"}},
		{"cut", fault.LoseAnswer(), []string{"no answer"}},
		{"no bucket", fault.Instead(noBucket), []string{"no bucket " + direct.store.bucket, "gcloud storage buckets create"}},
		{"500", fault.Instead(says(500, "internalError", "")), []string{"the store has failed"}},
	} {
		p.SetRule(fault.Always(nil, tt.action))
		value, got, err := r.Read(t.Context())
		if value != nil || got != "" || errors.Is(err, tenure.ErrNotExist) || errors.Is(err, tenure.ErrValueTooLarge) {
			t.Errorf("%s: read = %q, %q, %v", tt.name, value, got, err)
		}
		mustSay(t, err, tt.says...)
		if tt.says[0] == others && tt.name != "no generation" {
			if _, err := r.Now(t.Context()); err == nil {
				t.Errorf("%s: it told the time", tt.name)
			}
			if list, err := r.List(t.Context(), ""); err == nil {
				t.Errorf("%s: it listed %q", tt.name, list)
			}
		}
	}
	p.SetRule(nil)
	if _, got := mustRead(t, r); got != v {
		t.Errorf("afterwards it reads version %q, want %q", got, v)
	}
	// Now that it knows the version, "not modified" must be of that one.
	p.SetRule(fault.Always(nil, edit(func(h http.Header) { h.Set("X-Goog-Generation", "7") })))
	if _, _, err := r.Read(t.Context()); err == nil {
		t.Error("a 304 with another generation was believed")
	}
}

// TestDefaultEndpointIsTheService: without a custom endpoint a 404 that does not
// show that it is the service's is nobody's absence.
func TestDefaultEndpointIsTheService(t *testing.T) {
	r, _, p := proxied(t, fault.Always(nil, fault.Instead(fault.Answer{Status: 404, Body: "no"})))
	if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("an emulator's 404: %v, want ErrNotExist", err)
	}
	r.store.custom = false
	if _, _, err := r.Read(t.Context()); err == nil || errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("anybody's 404: %v", err)
	}
	p.SetRule(fault.Always(nil, fault.Instead(says(404, "notFound", "No such object"))))
	if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("the service's 404: %v, want ErrNotExist", err)
	}
}

// TestRefusals: each says what is wrong and what to do next.
func TestRefusals(t *testing.T) {
	r, _, p := proxied(t, nil)
	off := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for _, tt := range []struct {
		name   string
		answer fault.Answer
		says   []string
		write  bool // only a write can meet it
	}{
		{"read-only rights", says(403, "forbidden", "x@y.iam.gserviceaccount.com does not have storage.objects.create access"),
			[]string{"storage.objects.create and storage.objects.delete", "roles/storage.objectUser", "x@y.iam"}, true},
		{"no rights", says(403, "forbidden", "x@y does not have storage.objects.get access"), []string{"this identity lacks", "roles/storage.objectUser", r.store.bucket}, false},
		{"retention", retained, []string{"retention policy", "use a bucket without"}, true},
		{"hold", says(403, "forbidden", "Object is under active Event-Based hold"), []string{"a hold", "use a bucket without"}, true},
		{"scopes", says(403, "insufficientPermissions", "Insufficient Permission"), []string{"access scope storage-rw"}, false},
		{"billing", says(403, "accountDisabled", "The project's billing is disabled"), []string{"billing"}, false},
		{"perimeter", says(403, "vpcServiceControls", "Request is prohibited by organization's policy."), []string{"service perimeter"}, false},
		{"clock ahead", says(401, "authError", "Invalid Credentials", "Date", off(-20*time.Minute)), []string{"clock is 20m", "ahead of", "NTP"}, false},
		{"clock behind", says(403, "forbidden", "no", "Date", off(20*time.Minute)), []string{"clock is", "behind", "NTP"}, false},
		{"token", says(401, "authError", "Invalid Credentials"), []string{"does not accept this identity's token", "401"}, false},
		{"requester pays", says(400, "userProjectMissing", "Bucket is a requester pays bucket but no user project provided."), []string{"requester-pays"}, false},
		{"no bucket", noBucket, []string{"no bucket", "gcloud storage buckets create", "correct the URL"}, false},
	} {
		r.store.anonymous = false // its words are for a real identity
		p.SetRule(fault.Always(nil, fault.Instead(tt.answer)))
		_, err := r.Write(t.Context(), nil, "1")
		mustSay(t, err, append(tt.says, "gcs: write "+r.String())...)
		var e *Error
		if !errors.As(err, &e) || e.StatusCode != tt.answer.Status || errors.Is(err, tenure.ErrConflict) {
			t.Errorf("%s: write: %v", tt.name, err)
		}
		if !tt.write {
			_, _, err = r.Read(t.Context())
			mustSay(t, err, append(tt.says, "gcs: read "+r.String())...)
			if errors.Is(err, tenure.ErrNotExist) {
				t.Errorf("%s: read: %v", tt.name, err)
			}
		}
	}
	r.store.anonymous = true
	p.SetRule(fault.Always(nil, fault.Instead(says(401, "required", "Anonymous caller does not have storage.objects.get access"))))
	_, _, err := r.Read(t.Context())
	mustSay(t, err, "remove anonymous=true")
}

// TestMissingBucket, on the real server: read, write and list say so.
func TestMissingBucket(t *testing.T) {
	r := open(t, server.LockURL("no-such-bucket", testObject))
	_, _, readErr := r.Read(t.Context())
	_, writeErr := r.Write(t.Context(), nil, "")
	_, listErr := r.List(t.Context(), "")
	_, nowErr := r.Now(t.Context())
	for _, err := range []error{readErr, writeErr, listErr, nowErr} {
		mustSay(t, err, "no bucket no-such-bucket", "correct the URL")
		if errors.Is(err, tenure.ErrNotExist) || errors.Is(err, tenure.ErrConflict) {
			t.Errorf("%v is taken for a missing record", err)
		}
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
			// Somebody else writes first: the late one, a release say, must not
			// undo that.
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
// elector; so does its limit of one write a second.
func TestRetryAfter(t *testing.T) {
	r, _, p := proxied(t, nil)
	now := time.Now().UTC().Truncate(time.Second)
	with := func(status int, header ...string) fault.Answer { return says(status, "backendError", "no", header...) }
	for _, tt := range []struct {
		answer fault.Answer
		want   time.Duration
	}{
		{with(503, "Retry-After", "7"), 7 * time.Second},
		{with(429, "Retry-After", "2"), 2 * time.Second},
		{with(503, "Date", now.Format(http.TimeFormat), "Retry-After", now.Add(4*time.Second).Format(http.TimeFormat)), 4 * time.Second},
		{with(503, "Retry-After", "-3"), 0},
		{with(503), 0},
		{rateLimited, time.Second},
	} {
		p.SetRule(fault.Always(nil, fault.Instead(tt.answer)))
		for _, op := range []func() error{
			func() error { _, err := r.Write(t.Context(), nil, ""); return err },
			func() error { _, _, err := r.Read(t.Context()); return err },
		} {
			err := op()
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
	p, err := fault.NewTCP(strings.TrimPrefix(server.Endpoint, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	direct := fresh(t)
	r := open(t, lockURL("http://"+p.Addr(), direct.store.bucket, direct.object))
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

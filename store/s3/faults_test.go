// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
)

// s3Error is an error as S3 servers send it.
func s3Error(status int, code, message string, header ...string) fault.Answer {
	a := fault.Answer{
		Status: status,
		Header: http.Header{"Content-Type": {"application/xml"}, "X-Amz-Request-Id": {"TEST"}},
		Body: fmt.Sprintf("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s</Message>"+
			"<Region>eu-west-1</Region></Error>", code, message),
	}
	if code != "AuthorizationHeaderMalformed" {
		a.Body = strings.Replace(a.Body, "<Region>eu-west-1</Region>", "", 1)
	}
	for i := 0; i < len(header); i += 2 {
		a.Header.Set(header[i], header[i+1])
	}
	return a
}

// TestAnswers: what the store, or what stands before it, may answer instead,
// and what the driver makes of it. Nothing but 412 and a missing key is certain.
func TestAnswers(t *testing.T) {
	retry := []string{"Retry-After", "7"}
	for _, tt := range []struct {
		name   string
		answer fault.Answer
		read   string // in the error of a read; empty: the same as write
		write  string // in the error of a write
		after  time.Duration
	}{
		{name: "concurrent write", answer: s3Error(409, "ConditionalRequestConflict", "retry"), write: "nothing was written"},
		{name: "operation aborted", answer: s3Error(409, "OperationAborted", "retry"), write: "nothing was written"},
		{name: "slow down", answer: s3Error(503, "SlowDown", "Please reduce your request rate.", retry...), write: "SlowDown", after: 7 * time.Second},
		{name: "too many requests", answer: fault.Answer{Status: 429, Header: http.Header{"Retry-After": {"7"}}}, write: "429", after: 7 * time.Second},
		{name: "busy until", answer: s3Error(503, "SlowDown", "x", "Date", "Tue, 01 Dec 2026 10:00:00 GMT", "Retry-After", "Tue, 01 Dec 2026 10:00:07 GMT"), write: "SlowDown", after: 7 * time.Second},
		{name: "busy page", answer: fault.Answer{Status: 503, Header: http.Header{"Retry-After": {"7"}, "Content-Type": {"text/html"}}, Body: "<html>wait</html>"}, write: "web page", after: 7 * time.Second},
		{name: "internal error", answer: s3Error(500, "InternalError", "We encountered an internal error."), write: "InternalError"},
		{name: "not implemented", answer: s3Error(501, "NotImplemented", "A header you provided"), read: "NotImplemented", write: "does not know conditional writes"},
		{name: "skewed clock", answer: s3Error(403, "RequestTimeTooSkewed", "The difference", "Date", "Tue, 01 Dec 2020 10:00:00 GMT"), write: "clock is off: the store's says Tue, 01 Dec 2020 10:00:00 GMT"},
		{name: "no right", answer: s3Error(403, "AccessDenied", "Access Denied"), read: "lack s3:GetObject", write: "lack s3:PutObject"},
		{name: "retention", answer: s3Error(403, "AccessDenied", "Object is subject to bucket's retention policy and cannot be overwritten"), write: "retention or an object lock"},
		{name: "object lock", answer: s3Error(400, "InvalidRequest", "Object is WORM protected and cannot be overwritten"), write: "retention or an object lock"},
		{name: "unknown key", answer: s3Error(403, "InvalidAccessKeyId", "The key does not exist"), write: "access key is unknown"},
		{name: "expired", answer: s3Error(400, "ExpiredToken", "The provided token has expired."), write: "credentials have expired"},
		{name: "no bucket", answer: s3Error(404, "NoSuchBucket", "The specified bucket does not exist"), write: "there is no bucket locks"},
		{name: "redirect", answer: s3Error(301, "PermanentRedirect", "use another", "X-Amz-Bucket-Region", "eu-west-1", "Location", "http://127.0.0.1:1/"), write: "the bucket is in eu-west-1, it was asked in us-east-1; set region=eu-west-1"},
		{name: "temporary redirect", answer: s3Error(307, "TemporaryRedirect", "use another", "Location", "http://127.0.0.1:1/"), write: "not at this endpoint"},
		{name: "wrong region", answer: s3Error(400, "AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong"), write: "set region=eu-west-1"},
		{name: "portal", answer: fault.HTML(200), write: "a proxy, a portal or a cache"},
		{name: "portal by redirect", answer: fault.Answer{Status: 302, Header: http.Header{"Location": {"http://127.0.0.1:1/login"}, "Content-Type": {"text/html"}}, Body: "<html/>"}, write: "a proxy, a portal or a cache"},
		{name: "gateway", answer: fault.HTML(502), write: "a proxy, a portal or a cache"},
		{name: "a page with 412", answer: fault.HTML(412), write: "a proxy, a portal or a cache"},
		{name: "a page with 404", answer: fault.HTML(404), write: "a proxy, a portal or a cache"},
		{name: "404 of nobody", answer: fault.Answer{Status: 404}, write: "404"},
		{name: "412 of nobody", answer: fault.Answer{Status: 412}, write: "412"},
		{name: "json error", answer: fault.Answer{Status: 500, Body: `{"error":"boom"}`}, write: "not in a store's form"},
		{name: "no ETag", answer: fault.Answer{Status: 200}, write: "no ETag"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, p := behind(t, nil)
			v := mustWrite(t, r, "before", "")
			p.SetRule(fault.Always(nil, fault.Instead(tt.answer)))
			p.Forget()
			_, _, readErr := r.Read(t.Context())
			_, writeErr := r.Write(t.Context(), []byte("after"), v)
			_, createErr := r.Write(t.Context(), []byte("after"), "")
			if tt.read == "" {
				tt.read = tt.write
			}
			for what, got := range map[string]struct {
				err  error
				want string
			}{"read": {readErr, tt.read}, "write": {writeErr, tt.write}, "create": {createErr, tt.write}} {
				switch {
				case got.err == nil || !strings.Contains(got.err.Error(), got.want) || !strings.Contains(got.err.Error(), r.String()):
					t.Errorf("%s: %v; want %q and the key", what, got.err, got.want)
				case errors.Is(got.err, tenure.ErrConflict), errors.Is(got.err, tenure.ErrNotExist):
					t.Errorf("%s: %v claims to know", what, got.err)
				case strings.Contains(got.err.Error(), "tenuretestsecret"), strings.Contains(got.err.Error(), "Signature="):
					t.Errorf("%s: %v shows a secret", what, got.err)
				}
				busy, ok := errors.AsType[tenure.RetryAfterer](got.err)
				if ok != (tt.after > 0) || ok && busy.RetryAfter() != tt.after {
					t.Errorf("%s: %v asks for a wait: %v, want %v", what, got.err, ok, tt.after)
				}
			}
			if n := len(p.Records()); n != 3 {
				t.Errorf("%d requests for one read and two writes", n)
			}
			p.SetRule(nil)
			// The SDK signs by the clock of the last answer: a Date that was wrong
			// costs a request.
			_, _, _ = r.Read(t.Context())
			if got, _ := mustRead(t, r); got != "before" {
				t.Errorf("the value is %q", got)
			}
			mustWrite(t, r, "after", v)
		})
	}
}

// TestApplied: a write that happened though its answer says nothing of it is
// never called a conflict, and is sent once.
func TestApplied(t *testing.T) {
	for name, a := range map[string]fault.Action{
		"answer lost by a reset":   fault.LoseAnswer(),
		"answer lost by an end":    {Cut: fault.CutFIN},
		"500 after applying":       fault.Afterwards(s3Error(500, "InternalError", "x")),
		"503 after applying":       fault.Afterwards(s3Error(503, "SlowDown", "x")),
		"a page after applying":    fault.Afterwards(fault.HTML(502)),
		"success with an error":    fault.Afterwards(s3Error(200, "InternalError", "x", "ETag", `"x"`)),
		"success without the ETag": {EditAnswer: func(r *http.Response) { r.Header.Del("ETag") }},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := behind(t, nil)
			v := mustWrite(t, r, "one", "")
			for _, old := range []tenure.Version{v, ""} {
				if old == "" {
					r = r.Sibling(".new").(*Register)
				}
				p.Forget()
				p.SetRule(fault.Times(1, fault.IsWrite, a))
				_, err := r.Write(t.Context(), []byte("two"), old)
				if err == nil || errors.Is(err, tenure.ErrConflict) || errors.Is(err, tenure.ErrNotExist) {
					t.Errorf("write at %q: %v; want doubt", old, err)
				}
				if n := len(p.Records()); n != 1 {
					t.Errorf("it was sent %d times", n)
				}
				if got, _ := mustRead(t, r); got != "two" {
					t.Errorf("the value is %q", got)
				}
			}
		})
	}
}

// TestNotSent: what never reached the store left it as it was.
func TestNotSent(t *testing.T) {
	r, p := behind(t, nil)
	v := mustWrite(t, r, "one", "")
	p.SetRule(fault.Times(1, fault.IsWrite, fault.CutBefore()))
	if _, err := r.Write(t.Context(), []byte("two"), v); err == nil || errors.Is(err, tenure.ErrConflict) {
		t.Errorf("%v; want doubt", err)
	}
	if got, rv := mustRead(t, r); got != "one" || rv != v {
		t.Errorf("%q, %q; want one, %q", got, rv, v)
	}
}

// TestTornAnswer: half a record is no record.
func TestTornAnswer(t *testing.T) {
	r, p := behind(t, nil)
	mustWrite(t, direct(t, r), strings.Repeat("x", 1000), "")
	p.SetRule(fault.Times(1, nil, fault.Action{Torn: true}))
	if b, _, err := r.Read(t.Context()); err == nil {
		t.Errorf("%d bytes of a torn answer were taken for the record", len(b))
	}
	if got, _ := mustRead(t, r); len(got) != 1000 {
		t.Errorf("then %d bytes", len(got))
	}
}

// TestMixedAnswer: an ETag that came with the body of another state is never
// returned with it. A server whose ETags are no hashes is asked twice.
func TestMixedAnswer(t *testing.T) {
	r, p := behind(t, nil)
	v := mustWrite(t, direct(t, r), "one", "")
	retag := func(tag string) fault.Action {
		return fault.Action{EditAnswer: func(a *http.Response) { a.Header.Set("ETag", tag) }}
	}
	p.SetRule(fault.Times(1, nil, retag(`"0123456789abcdef0123456789abcdef"`)))
	if got, rv := mustRead(t, r); got != "one" || rv != v {
		t.Errorf("%q, %q; want one, %q", got, rv, v)
	}
	if n := len(p.Records()); n != 2 { // the second fits
		t.Errorf("%d requests", n)
	}
	p.SetRule(fault.Always(nil, retag(`"no-hash"`)))
	p.Forget()
	other := openAt(t, p.URL(), r.key)
	if got, rv := mustRead(t, other); got != "one" || rv != "no-hash" || len(p.Records()) != 2 {
		t.Errorf("%q, %q, %d requests", got, rv, len(p.Records()))
	}
	var n atomic.Int64
	p.SetRule(func(*http.Request) fault.Action { return retag(fmt.Sprintf(`"%032x"`, n.Add(1))) })
	if _, _, err := openAt(t, p.URL(), r.key).Read(t.Context()); !errors.Is(err, errTorn) {
		t.Errorf("%v; want errTorn", err)
	}
}

// TestReadsWhileWritten: each value is read with the version that its write
// returned, on a server that takes them from two looks at the disk.
func TestReadsWhileWritten(t *testing.T) {
	key := newKey()
	w := openAt(t, server.URL, key)
	versions := map[string]tenure.Version{}
	var v tenure.Version
	type seen struct {
		value   string
		version tenure.Version
	}
	stop, reads := make(chan struct{}), make([][]seen, 3)
	var readers sync.WaitGroup
	for i := range reads {
		r := openAt(t, server.URL, key)
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if b, v, err := r.Read(t.Context()); err == nil {
					reads[i] = append(reads[i], seen{string(b), v})
				}
			}
		})
	}
	for i := range 500 {
		v = mustWrite(t, w, fmt.Sprint(i), v)
		versions[fmt.Sprint(i)] = v
	}
	close(stop)
	readers.Wait()
	total := 0
	for _, all := range reads {
		for _, s := range all {
			total++
			if versions[s.value] != s.version {
				t.Errorf("%q was read with version %q, and has %q", s.value, s.version, versions[s.value])
			}
		}
	}
	if total < 100 {
		t.Errorf("only %d reads", total)
	}
}

// TestCachedAnswer: an answer that a cache on the way made up is none.
func TestCachedAnswer(t *testing.T) {
	r, p := behind(t, nil)
	mustWrite(t, r, "one", "")
	p.SetRule(fault.Times(1, nil, fault.Action{EditAnswer: func(r *http.Response) { r.Header.Set("Age", "3") }}))
	if _, _, err := r.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "answer of a cache") {
		t.Errorf("%v; want the cache to be named", err)
	}
	if got := p.Records()[0].Header.Get("Cache-Control"); p.Records()[1].Header.Get("Cache-Control") != "no-store" {
		t.Errorf("Cache-Control of a write %q, of a read %q", got, p.Records()[1].Header.Get("Cache-Control"))
	}
}

// TestReplica: a record that replication brought from another bucket decides
// nothing.
func TestReplica(t *testing.T) {
	r, p := behind(t, nil)
	mustWrite(t, direct(t, r), "one", "")
	p.SetRule(fault.Always(nil, fault.Action{EditAnswer: func(r *http.Response) { r.Header.Set("X-Amz-Replication-Status", "REPLICA") }}))
	if _, _, err := r.Read(t.Context()); !errors.Is(err, errReplica) {
		t.Errorf("%v; want the replication to be named", err)
	}
}

// TestETagDialects: servers and proxies spell ETags differently, and not always
// the same way.
func TestETagDialects(t *testing.T) {
	edit := func(f func(method, tag string) string) fault.Rule {
		return func(req *http.Request) fault.Action {
			method := req.Method
			return fault.Action{EditAnswer: func(r *http.Response) {
				if tag := r.Header.Get("ETag"); tag != "" {
					r.Header.Set("ETag", f(method, tag))
				}
			}}
		}
	}
	for name, rule := range map[string]fault.Rule{
		"quoted": nil,
		"bare":   edit(func(_, tag string) string { return strings.Trim(tag, `"`) }),
		"weak":   edit(func(_, tag string) string { return "W/" + tag }),
		"bare on reads": edit(func(method, tag string) string {
			if method == http.MethodGet {
				return strings.Trim(tag, `"`)
			}
			return tag
		}),
		"weak on reads": edit(func(method, tag string) string {
			if method == http.MethodGet {
				return "W/" + tag
			}
			return tag
		}),
	} {
		t.Run(name, func(t *testing.T) {
			r, p := behind(t, rule)
			if err := tenure.Probe(t.Context(), r.Sibling(".probe/x"), 0); err != nil {
				t.Error(err)
			}
			v := mustWrite(t, r, "one", "")
			if _, rv := mustRead(t, r); rv != v {
				t.Errorf("read %q, written %q", rv, v)
			}
			mustRead(t, r)
			if last := p.Records()[len(p.Records())-1]; last.Status != http.StatusNotModified {
				t.Errorf("a read of what is known was answered %d", last.Status)
			}
			mustWrite(t, r, "two", v)
			if _, err := r.Write(t.Context(), []byte("three"), v); !errors.Is(err, tenure.ErrConflict) {
				t.Errorf("a stale write: %v", err)
			}
		})
	}
}

// without forwards requests without some header fields, which had been signed.
func without(fields ...string) fault.Action {
	strip := fault.Strip(fields...).Edit
	return fault.Action{Edit: func(r *http.Request) {
		strip(r)
		server.Resign(r)
	}}
}

// missing reports whether a request is for an object that does not exist.
func missing(req *http.Request) bool {
	_, err := server.Get(req.Context(), bucket, strings.TrimPrefix(req.URL.Path, "/"+bucket+"/"))
	return err != nil
}

// TestMissingKeyDialects: servers disagree about a write at a version to a key
// that does not exist. Two kinds are the same to the driver; the third is
// refused by the probe.
func TestMissingKeyDialects(t *testing.T) {
	gone := func(a fault.Action) fault.Rule {
		return func(req *http.Request) fault.Action {
			if req.Header.Get("If-Match") != "" && missing(req) {
				return a
			}
			return fault.Pass
		}
	}
	for name, rule := range map[string]fault.Rule{
		"404": nil,
		"412": gone(fault.Instead(s3Error(412, "PreconditionFailed", "x"))),
		"200": gone(without("If-Match")),
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := behind(t, rule)
			err := tenure.Probe(t.Context(), r.Sibling(".probe/x"), 0)
			if name == "200" {
				if unsafe, ok := errors.AsType[*tenure.UnsafeStoreError](err); !ok || !strings.Contains(unsafe.Check, "creates no key") {
					t.Errorf("the probe says %v", err)
				}
				return
			}
			if err != nil {
				t.Error(err)
			}
			v := mustWrite(t, r, "one", "")
			if err := server.Delete(t.Context(), bucket, r.key); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Write(t.Context(), []byte("two"), v); !errors.Is(err, tenure.ErrConflict) {
				t.Errorf("%v; want ErrConflict", err)
			}
			if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
				t.Errorf("%v; want ErrNotExist", err)
			}
		})
	}
}

// TestIgnoredConditions: a server that drops the headers is called unsafe, one
// that drops one of them too, and one that does not answer is not.
func TestIgnoredConditions(t *testing.T) {
	for _, fields := range [][]string{{"If-Match", "If-None-Match"}, {"If-Match"}, {"If-None-Match"}} {
		r, _ := behind(t, fault.Always(fault.IsWrite, without(fields...)))
		err := tenure.Probe(t.Context(), r.Sibling(".probe/x"), 0)
		if _, ok := errors.AsType[*tenure.UnsafeStoreError](err); !ok {
			t.Errorf("without %v: %v", fields, err)
		}
	}
	for name, a := range map[string]fault.Answer{
		"retention":    s3Error(403, "AccessDenied", "retention policy"),
		"server error": s3Error(500, "InternalError", "x"),
	} {
		r, _ := behind(t, func(req *http.Request) fault.Action {
			if req.Header.Get("If-Match") != "" { // what exists cannot be overwritten
				return fault.Instead(a)
			}
			return fault.Pass
		})
		err := tenure.Probe(t.Context(), r.Sibling(".probe/x"), 0)
		if !errors.Is(err, tenure.ErrCannotProbe) {
			t.Errorf("%s: %v; want ErrCannotProbe", name, err)
		}
		if name == "retention" && !strings.Contains(err.Error(), "retention") {
			t.Errorf("%v does not name the retention", err)
		}
	}
}

// TestDeleteMarker: a server that takes the mark of a deleted object for an
// object refuses to make a new one, and shows none. The second time it does so
// the driver says what is wrong; it works again when the mark is gone.
func TestDeleteMarker(t *testing.T) {
	marked := func(req *http.Request) fault.Action {
		if fault.IsWrite(req) {
			return fault.Instead(s3Error(412, "PreconditionFailed", "x"))
		}
		return fault.Instead(s3Error(404, "NoSuchKey", "x", "X-Amz-Delete-Marker", "true"))
	}
	r, p := behind(t, marked)
	for i := range 3 {
		if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
			t.Fatal(err)
		}
		_, err := r.Write(t.Context(), []byte("one"), "")
		if want := i == 0; errors.Is(err, tenure.ErrConflict) != want || errors.Is(err, errDeleteMarker) == want {
			t.Errorf("create %d: %v", i, err)
		}
		if i == 1 { // somebody else may have made it and deleted it: asked anew
			if _, err := r.Write(t.Context(), []byte("one"), ""); !errors.Is(err, tenure.ErrConflict) {
				t.Errorf("create at once: %v", err)
			}
		}
	}
	p.SetRule(nil)
	mustWrite(t, r, "one", "")
}

// TestContextEnds: a store that does not answer holds nobody, and costs one
// request, not the ones after it.
func TestContextEnds(t *testing.T) {
	r, p := behind(t, nil)
	v := mustWrite(t, r, "one", "")
	never := make(chan struct{})
	defer close(never)
	p.SetRule(fault.Always(nil, fault.HoldRequest(never)))
	for name, f := range map[string]func(context.Context) error{
		"read":  func(ctx context.Context) error { _, _, err := r.Read(ctx); return err },
		"write": func(ctx context.Context) error { _, err := r.Write(ctx, []byte("x"), v); return err },
		"list":  func(ctx context.Context) error { _, err := r.List(ctx, ""); return err },
		"time":  func(ctx context.Context) error { _, err := r.Now(ctx); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		err := f(ctx)
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 2*time.Second {
			t.Errorf("%s: %v after %v", name, err, took)
		}
		cancel()
	}
	p.SetRule(nil)
	mustRead(t, r)
}

// TestDeadConnections: connections whose packets are dropped cost one request.
func TestDeadConnections(t *testing.T) {
	p, err := fault.NewTCP(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := openAt(t, "http://"+p.Addr(), newKey())
	mustWrite(t, r, "one", "")
	for name, f := range map[string]func(){"dropped": p.BlackHole, "reset": p.Reset, "refused": p.Refuse} {
		f()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, _, err := r.Read(ctx)
		cancel()
		if err == nil || errors.Is(err, tenure.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
		p.Pass()
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
		if _, _, err := r.Read(ctx); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
		cancel()
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/storetest"
	"tenure.dev/test/fault"
)

// TestConformance runs the suite for drivers on a real server.
func TestConformance(t *testing.T) {
	bucket := newBucket(t)
	var n atomic.Int64
	name := func() string { return fmt.Sprintf("locks/%04d é+&.lock", n.Add(1)) }
	at := func(object string) tenure.Register {
		return open(t, server.LockURL(bucket, strings.ReplaceAll(object, " ", "%20")))
	}
	storetest.Run(t, storetest.Harness{
		New: func(storetest.T) tenure.Register { return at(name()) },
		Open: func(storetest.T) (a, b tenure.Register) {
			object := name()
			return at(object), at(object)
		},
		Delete:    func(_ storetest.T, r tenure.Register) { remove(t, r.(*Register)) },
		Corrupt:   func(_ storetest.T, r tenure.Register, b []byte) { put(t, r.(*Register), b) },
		Histories: 8, Clients: 4, Requests: 25,
	})
}

// TestProbe: the real one is found safe; one that ignores the condition of
// writes is refused, and one that cannot be written is not called unsafe.
func TestProbe(t *testing.T) {
	r, direct, p := proxied(t, nil)
	if err := tenure.Probe(t.Context(), direct.Sibling(".probe/x"), 0); err != nil {
		t.Errorf("a sound store: %v", err)
	}
	ignore := fault.Action{Edit: func(req *http.Request) {
		q := req.URL.Query()
		q.Del("ifGenerationMatch")
		req.URL.RawQuery = q.Encode()
	}}
	p.SetRule(fault.Always(fault.IsWrite, ignore))
	var unsafe *tenure.UnsafeStoreError
	if err := tenure.Probe(t.Context(), r.Sibling(".probe/x"), 0); !errors.As(err, &unsafe) {
		t.Errorf("a store that ignores conditions: %v, want an UnsafeStoreError", err)
	}
	p.SetRule(fault.Always(fault.IsWrite, fault.Instead(says(403, "forbidden", "no"))))
	if err := tenure.Probe(t.Context(), r.Sibling(".probe/x"), 0); !errors.Is(err, tenure.ErrCannotProbe) || errors.As(err, &unsafe) {
		t.Errorf("a store that cannot be written: %v, want ErrCannotProbe", err)
	}
}

// TestProbePaced: with its pause the probe keeps to the service's limit.
func TestProbePaced(t *testing.T) {
	t.Parallel()
	_, url := limited(t)
	r := open(t, url(testObject))
	if err := tenure.Probe(t.Context(), r.Sibling(".probe/x"), r.MinWriteInterval()); err != nil {
		t.Errorf("at the service's pace: %v", err)
	}
}

// TestNotModified: an answer without a body stands for the value that was read
// last, and only for that one; a record that is gone is not "not modified".
func TestNotModified(t *testing.T) {
	r, past, p := proxied(t, nil)
	v := mustWrite(t, r, "1", "")
	reads := func(want string, version tenure.Version) {
		t.Helper()
		if got, now := mustRead(t, r); got != want || now != version {
			t.Errorf("read: %q at %q, want %q at %q", got, now, want, version)
		}
	}
	reads("1", v)
	reads("1", v)
	v = mustWrite(t, past, "1", v) // the same bytes
	reads("1", v)
	reads("1", v)
	remove(t, past)
	if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("read of a deleted record: %v, want ErrNotExist", err)
	}
	mustWrite(t, past, "1", "")
	reads("1", func() tenure.Version { _, now := mustRead(t, past); return now }())
	put(t, past, make([]byte, tenure.MaxRecordSize+1))
	for range 2 {
		if value, now, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrValueTooLarge) || value != nil || now == "" {
			t.Errorf("read of too much: %d bytes at %q, %v", len(value), now, err)
		}
	}
	var got []int
	for _, rec := range p.Records()[1:] {
		got = append(got, rec.Status)
	}
	if want := []int{200, 304, 200, 304, 404, 200, 200, 200}; !slices.Equal(got, want) {
		t.Errorf("the reads were answered %v, want %v", got, want)
	}
}

// TestHashETags: where the ETag is a hash of the content, it is not relied on.
func TestHashETags(t *testing.T) {
	hash := ""
	edit := fault.Action{EditAnswer: func(r *http.Response) { r.Header.Set("ETag", hash) }}
	r, past, p := proxied(t, fault.Always(nil, edit))
	v := mustWrite(t, past, "1", "")
	for _, hash = range []string{`"c4ca4238a0b923820dcc509a6f75849b"`, `"xMpCOKC5I4INzFCab3WEmw=="`} {
		mustRead(t, r)
		v = mustWrite(t, past, "1", v)
		if _, now := mustRead(t, r); now != v {
			t.Errorf("ETag %s: read version %q, want %q", hash, now, v)
		}
	}
	for _, rec := range p.Records() {
		if tag := rec.Header.Get("If-None-Match"); tag != "" {
			t.Errorf("a read was conditional on %s", tag)
		}
	}
}

// TestNoStore: what is written says that no cache may keep it.
func TestNoStore(t *testing.T) {
	r, _, p := proxied(t, nil)
	var kept string
	mustWrite(t, r, "x", "")
	p.SetRule(fault.Always(nil, fault.Action{EditAnswer: func(r *http.Response) { kept = r.Header.Get("Cache-Control") + " " + r.Header.Get("Content-Type") }}))
	mustRead(t, r)
	if kept != "no-store application/json" {
		t.Errorf("the record has %q", kept)
	}
}

// TestDated: the store's own times of the record and of the answer, in one
// request, also when it was not modified.
func TestDated(t *testing.T) {
	r, _, p := proxied(t, nil)
	at := time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)
	p.SetRule(fault.Always(nil, fault.Action{EditAnswer: func(r *http.Response) {
		r.Header.Set("Date", at.Add(time.Hour).Format(http.TimeFormat))
		if r.Header.Get("Last-Modified") != "" {
			r.Header.Set("Last-Modified", at.Format(http.TimeFormat))
		}
	}}))
	v := mustWrite(t, r, "x", "")
	p.Forget()
	for range 2 {
		d, err := r.ReadDated(t.Context())
		if err != nil || string(d.Value) != "x" || d.Version != v || !d.Written.Equal(at) || !d.Now.Equal(at.Add(time.Hour)) {
			t.Errorf("ReadDated = %+v, %v", d, err)
		}
	}
	now, err := r.Now(t.Context())
	if err != nil || !now.Equal(at.Add(time.Hour)) {
		t.Errorf("Now = %v, %v", now, err)
	}
	if n := len(p.Records()); n != 3 {
		t.Errorf("%d requests for three calls", n)
	}
	p.SetRule(fault.Always(nil, fault.Action{EditAnswer: func(r *http.Response) { r.Header["Date"] = nil; r.Header.Del("Last-Modified") }}))
	other := open(t, lockURL(p.URL(), r.store.bucket, r.object))
	if d, err := other.ReadDated(t.Context()); err != nil || !d.Written.IsZero() || !d.Now.IsZero() {
		t.Errorf("without times: %+v, %v", d, err)
	}
}

// TestListPages: all pages of a listing are read.
func TestListPages(t *testing.T) {
	r := fresh(t)
	r.store.page = 3
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprintf(".candidates/c%02d", i))
		mustWrite(t, r.Sibling(want[i]), "x", "")
	}
	put(t, &Register{store: r.store, object: r.object + ".candidates/not one of ours"}, nil)
	got, err := r.List(t.Context(), ".candidates/")
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("List = %q, %v; want %q", got, err, want)
	}
}

// TestBadSibling: it says what is wrong, at every call.
func TestBadSibling(t *testing.T) {
	r := fresh(t)
	for _, suffix := range []string{"", "a b", "x//y", "/../x", "/" + strings.Repeat("x", maxObjectName)} {
		s := r.Sibling(suffix)
		_, _, readErr := s.Read(t.Context())
		_, writeErr := s.Write(t.Context(), nil, "")
		_, listErr := s.(tenure.Lister).List(t.Context(), "")
		_, nowErr := s.(tenure.Clock).Now(t.Context())
		_, nested, _ := s.(tenure.Siblinger).Sibling("/x").Read(context.Background())
		for _, err := range []error{readErr, writeErr, listErr, nowErr} {
			mustSay(t, err, "suffix")
		}
		if nested != "" {
			t.Errorf("a sibling of %q works", suffix)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
)

// onLock returns the requests to the lock itself.
func onLock(records []fault.Record, r *Register) (own []fault.Record) {
	for _, rec := range records {
		if strings.HasSuffix(rec.Path, "/"+r.blob) {
			own = append(own, rec)
		}
	}
	return own
}

// TestRequests measures at proxies what an election asks of the store: one
// conditional write per renewal, one conditional read per poll, nothing else.
func TestRequests(t *testing.T) {
	leaderReg, direct, leaderProxy := proxied(t, nil)
	standbyProxy, err := fault.NewHTTP("http://"+azurite.Host, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standbyProxy.Close)
	standbyReg := openAt(t, strings.Replace(azurite.Endpoint, azurite.Host, standbyProxy.Addr(), 1), direct.store.container, direct.blob)
	initLock(t, direct)
	leader := run(t, "leader", leaderReg)
	leader.Await(began, patience)
	standby := run(t, "standby", standbyReg)
	standby.Await(following, patience)

	const renewals = 6
	leaderProxy.Forget()
	standbyProxy.Forget()
	start := time.Now()
	enough := func(records []fault.Record) bool { return len(onLock(records, direct)) >= renewals }
	if err := leaderProxy.Wait(within(t, time.Minute), enough); err != nil {
		t.Fatal(err)
	}
	took, polls := time.Since(start), onLock(standbyProxy.Records(), direct)
	for _, rec := range onLock(leaderProxy.Records(), direct) {
		if rec.Method != http.MethodPut || rec.Header.Get("If-Match") == "" || rec.Status != http.StatusCreated {
			t.Errorf("the leader made the request %s, If-Match %q, answered %d; want renewals only", rec.Method, rec.Header.Get("If-Match"), rec.Status)
		}
	}
	if least := (renewals - 1) * testPeriod * 9 / 10; took < least {
		t.Errorf("%d renewals took %v, want at least %v", renewals, took, least)
	}
	statuses := map[int]int{}
	for _, rec := range polls {
		statuses[rec.Status]++
		if rec.Method != http.MethodGet || rec.Header.Get("If-None-Match") == "" {
			t.Errorf("the standby made the request %s, If-None-Match %q; want conditional reads only", rec.Method, rec.Header.Get("If-None-Match"))
		}
	}
	if most := int(took/(testPeriod*9/10)) + 2; len(polls) == 0 || len(polls) > most {
		t.Errorf("the standby polled %d times in %v, want 1 to %d", len(polls), took, most)
	}
	t.Logf("in %v, with P %v: %d renewals of one request, %d polls of one, answered %v", took.Round(time.Millisecond), testPeriod, renewals, len(polls), statuses)

}

// TestNotModified: an answer without a body stands for the value that was read
// or written last, and only for that one.
func TestNotModified(t *testing.T) {
	r, past, p := proxied(t, nil)
	v := mustWrite(t, r, "1", "")
	for range 3 {
		if got, now := mustRead(t, r); got != "1" || now != v {
			t.Errorf("read: %q at %q, want 1 at %q", got, now, v)
		}
	}
	v = mustWrite(t, past, "2", v)
	for range 2 {
		if got, now := mustRead(t, r); got != "2" || now != v {
			t.Errorf("read: %q at %q, want 2 at %q", got, now, v)
		}
	}
	put(t, past, make([]byte, tenure.MaxRecordSize+1))
	for range 2 {
		if value, now, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrValueTooLarge) || value != nil || now == v {
			t.Errorf("read of too much: %d bytes at %q, %v", len(value), now, err)
		}
	}
	var got []int
	for _, rec := range p.Records()[1:] {
		got = append(got, rec.Status)
	}
	if want := []int{304, 304, 304, 200, 304, 200, 304}; !slices.Equal(got, want) {
		t.Errorf("the reads were answered %v, want %v", got, want)
	}
}

// TestDated: a value comes with the service's own times, also when it was not
// modified.
func TestDated(t *testing.T) {
	r, past, _ := proxied(t, nil)
	mustWrite(t, past, "1", "")
	var first tenure.DatedValue
	for i := range 3 {
		d, err := r.ReadDated(t.Context())
		if err != nil || string(d.Value) != "1" || d.Written.IsZero() || d.Now.Before(d.Written) || time.Since(d.Now).Abs() > time.Minute {
			t.Fatalf("%+v, %v", d, err)
		}
		if i == 0 {
			first = d
		} else if !d.Written.Equal(first.Written) {
			t.Errorf("read %d: written %v, was %v", i, d.Written, first.Written)
		}
	}
}

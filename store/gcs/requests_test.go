// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/storetest/elect"
	"tenure.dev/test/fault"
)

// The durations of the elections here: short, and P above the second that the
// service wants between two writes.
const (
	testLease  = 6 * time.Second
	testPeriod = testLease / 5
)

const (
	began     = tenure.EventBegan
	renewed   = tenure.EventRenewed
	ended     = tenure.EventEnded
	following = tenure.EventFollowing
)

// patience is how long an event is awaited.
const patience = 40 * time.Second

func initLock(t testing.TB, r *Register) {
	t.Helper()
	if _, err := tenure.Init(t.Context(), r, tenure.InitOptions{Who: "test", FirstEver: true}); err != nil {
		t.Fatal(err)
	}
}

// run starts an elector on r, which the test ends.
func run(t testing.TB, name string, r *Register) *elect.Candidate {
	t.Helper()
	return elect.Contend(t, name, tenure.Options{Register: r, Lock: r.String(), LeaseDuration: testLease})
}

// isRenewal picks the writes of the lock itself.
func isRenewal(object string) func(*http.Request) bool {
	return func(r *http.Request) bool { return fault.IsWrite(r) && r.URL.Query().Get("name") == object }
}

// onLock returns the requests to the lock itself.
func onLock(records []fault.Record, r *Register) (own []fault.Record) {
	for _, rec := range records {
		if q, err := url.ParseQuery(rec.Query); err == nil && (q.Get("name") == r.object || strings.HasSuffix(rec.Path, "/o/"+r.object)) {
			own = append(own, rec)
		}
	}
	return own
}

// TestRequests measures at proxies what an election asks of the store: one
// conditional write per renewal, one conditional read per poll, nothing else.
func TestRequests(t *testing.T) {
	t.Parallel()
	leaderReg, direct, leaderProxy := proxied(t, nil)
	standbyProxy, err := fault.NewHTTP(server.Endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standbyProxy.Close)
	standbyReg := open(t, lockURL(standbyProxy.URL(), direct.store.bucket, direct.object))
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
		if rec.Method != http.MethodPost || !strings.Contains(rec.Query, "ifGenerationMatch=1") || rec.Status != http.StatusOK {
			t.Errorf("the leader made the request %s %s, answered %d; want conditional renewals only", rec.Method, rec.Query, rec.Status)
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

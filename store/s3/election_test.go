// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/storetest/elect"
	"tenure.dev/test/fault"
)

// ttl is D of the elections here: R is 2.6 s, P 0.8 s.
const ttl = 4 * time.Second

// firstEver makes a lock that its first candidate need not wait for.
func firstEver(t *testing.T, key string) {
	t.Helper()
	if _, err := tenure.Init(t.Context(), openAt(t, server.URL, key), tenure.InitOptions{Who: "the test", FirstEver: true, LeaseDuration: ttl}); err != nil {
		t.Fatal(err)
	}
}

func contend(t *testing.T, name string, r *Register) *elect.Candidate {
	t.Helper()
	return elect.Contend(t, name, tenure.Options{Register: r, Lock: r.String(), LeaseDuration: ttl})
}

// lockWrite reports whether a request writes the lock itself, not a candidate's
// key beside it.
func lockWrite(r *http.Request) bool {
	return fault.IsWrite(r) && strings.HasSuffix(r.URL.Path, "/nightly")
}

// every returns a rule that does a to every n-th write of the lock.
func every(n int64, a fault.Action) fault.Rule {
	var count atomic.Int64
	return func(r *http.Request) fault.Action {
		if lockWrite(r) && count.Add(1)%n == 0 {
			return a
		}
		return fault.Pass
	}
}

// TestTermSurvives: a renewal whose answer is lost, late or a lie is found again
// by its nonce; one that did not happen is made again. The term goes on.
func TestTermSurvives(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 0))
	for name, rule := range map[string]fault.Rule{
		"answers lost":          every(2, fault.LoseAnswer()),
		"500 after applying":    every(2, fault.Afterwards(s3Error(500, "InternalError", "x"))),
		"200 with an error":     every(2, fault.Afterwards(s3Error(200, "InternalError", "x"))),
		"412 after applying":    every(2, fault.Afterwards(s3Error(412, "PreconditionFailed", "x"))), // a proxy that sent it twice
		"a page after applying": every(2, fault.Afterwards(fault.HTML(502))),
		"busy":                  every(2, fault.Instead(s3Error(503, "SlowDown", "x", "Retry-After", "1"))),
		"late":                  every(2, fault.DelayAnswer(600*time.Millisecond)),
		"another write": func(r *http.Request) fault.Action {
			mu.Lock()
			defer mu.Unlock()
			if lockWrite(r) && rng.IntN(10) < 3 {
				return fault.Instead(s3Error(409, "ConditionalRequestConflict", "x"))
			}
			return fault.Pass
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, p := behind(t, nil)
			firstEver(t, r.key)
			a := contend(t, "a", r)
			began := a.Await(tenure.EventBegan, ttl)
			b := contend(t, "b", openAt(t, server.URL, r.key))
			b.Await(tenure.EventFollowing, ttl)
			p.SetRule(rule)
			failed := a.Renewals(6, 6*ttl)
			unnoticed := name == "late" || name == "412 after applying" || name == "another write"
			if !unnoticed && len(failed) == 0 {
				t.Error("nothing failed: the test tests nothing")
			}
			view, err := tenure.Look(t.Context(), direct(t, r))
			if err != nil || view.Epoch() != began.Epoch || view.Record.HolderIdentity != "a" {
				t.Errorf("the record afterwards: %+v, %v; want a at epoch %d", view, err, began.Epoch)
			}
		})
	}
}

// TestCreateAnswerLost: the candidate whose create happened leads.
func TestCreateAnswerLost(t *testing.T) {
	t.Parallel()
	r, p := behind(t, nil)
	p.SetRule(fault.Times(1, lockWrite, fault.LoseAnswer()))
	a := contend(t, "a", r)
	began := a.Await(tenure.EventBegan, 5*ttl)
	a.Renewals(2, 6*ttl)
	if view, err := tenure.Look(t.Context(), direct(t, r)); err != nil || view.Epoch() != began.Epoch {
		t.Errorf("%+v, %v; want epoch %d", view, err, began.Epoch)
	}
}

// TestLeaderStops: writes that cannot be made end the term by R, also while
// reads work; another leads by D + P + 1 s, at a higher epoch; the first comes
// back when its store does.
func TestLeaderStops(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]fault.Action{
		"writes refused":      fault.Instead(s3Error(403, "AccessDenied", "Access Denied")),
		"retention":           fault.Instead(s3Error(403, "AccessDenied", "retention policy")),
		"credentials gone":    fault.Instead(s3Error(403, "InvalidAccessKeyId", "x")),
		"writes fail":         fault.Instead(s3Error(500, "InternalError", "x")),
		"writes throttled":    fault.Instead(s3Error(503, "SlowDown", "x", "Retry-After", "1")),
		"writes unanswered":   {HoldBefore: make(chan struct{})},
		"connections cut":     fault.CutBefore(),
		"a portal in the way": fault.Instead(fault.HTML(200)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, p := behind(t, nil)
			firstEver(t, r.key)
			one := contend(t, "one", r)
			first := one.Await(tenure.EventBegan, ttl)
			two := contend(t, "two", openAt(t, server.URL, r.key))
			two.Await(tenure.EventFollowing, ttl)
			one.Renewals(1, 6*ttl)
			match := lockWrite
			if strings.HasPrefix(name, "conn") || strings.HasPrefix(name, "a portal") {
				match = nil
			}
			p.Forget()
			p.SetRule(fault.Always(match, a))
			cut := time.Now()
			stopping := one.Await(tenure.EventStopping, 2*ttl)
			if took := stopping.At.Sub(cut); !errors.Is(stopping.Err, tenure.ErrRenewDeadline) || took > 3*time.Second {
				t.Errorf("stopped after %v: %v; want R, 2.6 s", took, stopping.Err)
			}
			began := two.Await(tenure.EventBegan, 2*ttl)
			// D + P and a second; the other second is for slow test machines.
			if took := began.At.Sub(cut); took > ttl+800*time.Millisecond+2*time.Second || !stopping.At.Before(began.At) || began.Epoch <= first.Epoch {
				t.Errorf("another led after %v at epoch %d after %d, the first stopped at %v", took, began.Epoch, first.Epoch, stopping.At.Sub(cut))
			}
			if n := len(p.Records()); n > 40 {
				t.Errorf("%d requests in %v: a hot loop", n, time.Since(cut))
			}
			p.SetRule(nil)
			if f := one.Await(tenure.EventFollowing, 2*ttl); f.Epoch != began.Epoch {
				t.Errorf("the first follows epoch %d, want %d", f.Epoch, began.Epoch)
			}
		})
	}
}

// TestRecordDeleted: a leader whose record is deleted stops, whatever the server
// says to a write of a missing key, and the next epoch is higher.
func TestRecordDeleted(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]*fault.Answer{
		"404": nil,
		"412": new(s3Error(412, "PreconditionFailed", "x")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, p := behind(t, nil)
			firstEver(t, r.key)
			a := contend(t, "a", r)
			first := a.Await(tenure.EventBegan, ttl)
			a.Renewals(1, 6*ttl)
			p.SetRule(func(req *http.Request) fault.Action {
				if answer != nil && req.Header.Get("If-Match") != "" && lockWrite(req) && missing(req) {
					return fault.Instead(*answer)
				}
				return fault.Pass
			})
			if err := server.Delete(t.Context(), bucket, r.key); err != nil {
				t.Fatal(err)
			}
			a.Await(tenure.EventStopping, ttl)
			if again := a.Await(tenure.EventBegan, 5*ttl); again.Epoch <= first.Epoch {
				t.Errorf("epoch %d after %d", again.Epoch, first.Epoch)
			}
		})
	}
}

// TestLateRelease: a release that arrives when another leads changes nothing.
func TestLateRelease(t *testing.T) {
	t.Parallel()
	r, p := behind(t, nil)
	firstEver(t, r.key)
	a := contend(t, "a", r)
	a.Await(tenure.EventBegan, ttl)
	b := contend(t, "b", openAt(t, server.URL, r.key))
	b.Await(tenure.EventFollowing, ttl)
	a.Renewals(1, 6*ttl)
	release := make(chan struct{})
	p.SetRule(fault.Always(fault.IsWrite, fault.HoldRequest(release)))
	a.Stop()
	began := b.Await(tenure.EventBegan, 2*ttl)
	p.Forget()
	close(release)
	ctx, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	if err := p.Wait(ctx, func(all []fault.Record) bool {
		for _, one := range all {
			if strings.HasSuffix(one.Path, "/nightly") && one.Upstream == http.StatusPreconditionFailed {
				return true
			}
		}
		return false
	}); err != nil {
		t.Fatalf("the late release was not refused: %v", err)
	}
	b.Renewals(2, 6*ttl)
	if view, err := tenure.Look(t.Context(), direct(t, r)); err != nil || view.Epoch() != began.Epoch || view.Record.HolderIdentity != "b" {
		t.Errorf("%+v, %v; want b at epoch %d", view, err, began.Epoch)
	}
}

// TestUnreadableRecord: damage by hand delays and never blocks, and epochs grow.
func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"empty": "", "a brace": "{", "null": "null", "wrong types": `{"holderIdentity":5,"epoch":"x"}`,
		"large": strings.Repeat("x", 1<<20), "BOM": "\ufeff{}", "a page": "<html></html>",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := newKey()
			firstEver(t, key)
			a := contend(t, "a", openAt(t, server.URL, key))
			first := a.Await(tenure.EventBegan, ttl)
			a.Renewals(1, 6*ttl)
			if err := server.Put(t.Context(), bucket, key, []byte(damage)); err != nil {
				t.Fatal(err)
			}
			a.Await(tenure.EventStopping, ttl)
			if again := a.Await(tenure.EventBegan, 3*ttl); again.Epoch <= first.Epoch {
				t.Errorf("epoch %d after %d", again.Epoch, first.Epoch)
			}
		})
	}
}

// TestReplicaDecidesNothing: a standby whose bucket is a copy that lags behind
// never leads, and says why.
func TestReplicaDecidesNothing(t *testing.T) {
	t.Parallel()
	r, _ := behind(t, fault.Always(nil, fault.Action{EditAnswer: func(r *http.Response) {
		r.Header.Set("X-Amz-Replication-Status", "REPLICA")
	}}))
	firstEver(t, r.key)
	a := contend(t, "a", r)
	if e := a.Await(tenure.EventFailed, ttl); !errors.Is(e.Err, errReplica) {
		t.Errorf("%v; want the replication to be named", e.Err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*ttl)
	defer cancel()
	for {
		select {
		case e := <-a.Events:
			if e.Kind == tenure.EventBegan {
				t.Fatal("it leads")
			}
		case <-ctx.Done():
			return
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tenure.dev"
)

func TestOrdersDoNotRestartTheWait(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		s := b.start("s", nil)
		time.Sleep(5 * time.Second)
		a.cut()
		from := time.Now()
		for i := 0; time.Since(from) < takeover && (b.leader() == nil || b.leader().identity != "s"); i++ {
			why := strings.Repeat("x", i%5+1)
			if _, err := tenure.PauseLock(t.Context(), b.reg, tenure.Pause{By: "me", Why: why, Until: time.Now().Add(2 * time.Second)}); err != nil {
				t.Fatal(err)
			}
			if _, err := tenure.ResumeLock(t.Context(), b.reg); err != nil {
				t.Fatal(err)
			}
			time.Sleep(700 * time.Millisecond)
		}
		if l := b.leader(); l == nil || l.identity != "s" {
			t.Error("orders kept a standby from taking over a dead leader's lock")
		}
		b.end(a, s)
	})
}

func TestLeaderThatStoppedLeadsAgainWhenTheStoreIsBack(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		first := b.leader()
		a.cut()
		b.await("the work stops", 8*time.Second, func() bool {
			stopped, _, _ := b.past(first)
			return !stopped.IsZero()
		})
		a.hook.set(func(h *hooked) { h.beforeRead, h.beforeWrite = nil, nil })
		b.await("a second term", 4*time.Second, func() bool { return b.leaderCount() == 2 })
		b.end(a)
	})
}

// TestOwnNonceIsRetakenWithinD: an acquisition whose answer was lost is made
// again at once, since nobody else can have taken the lock in between.
func TestOwnNonceIsRetakenWithinD(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.mem.Put([]byte(`{"holderIdentity":"","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":"n"}`))
		var lost atomic.Int64
		a := b.start("a", func(o *tenure.Options) {
			o.Register.(*hooked).afterWrite = func(_ context.Context, _ []byte, err error) error {
				if lost.Add(1) <= 2 {
					return errLost
				}
				return err
			}
		})
		if took := b.leads("a", takeover); took > time.Second {
			t.Errorf("took %v, want the backoff of two lost answers only", took)
		}
		b.end(a)
	})
}

// TestOwnNonceIsNoEvidenceAfterD: a restore may put it back long after another
// candidate has taken the lock.
func TestOwnNonceIsNoEvidenceAfterD(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		b.drain.Store(int64(5 * time.Second)) // so that the term ends without a release
		s := b.start("s", nil)
		time.Sleep(5 * time.Second)
		a.cut()
		time.Sleep(10 * time.Millisecond)
		old, _, err := b.reg.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.leads("s", takeover)
		_, w := s.hook.count()
		b.await("a renewal by s", 3*time.Second, func() bool { _, n := s.hook.count(); return n > w })
		time.Sleep(5 * time.Millisecond)
		s.cut()
		b.mem.Put(old)
		a.hook.set(func(h *hooked) { h.beforeRead, h.beforeWrite = nil, nil })
		time.Sleep(15 * time.Second) // the bench finds two valid terms
		b.end(a, s)
	})
}

// TestNonceWithoutItsHolderIsNotOurs: an elector that keeps fields which it
// does not know may write another holder beside our nonce.
func TestNonceWithoutItsHolderIsNotOurs(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"holder":     func(s string) string { return strings.Replace(s, `"holderIdentity":"a"`, `"holderIdentity":"x"`, 1) },
		"clusterUID": func(s string) string { return strings.Replace(s, `"clusterUID":"`, `"clusterUID":"other`, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				a := b.start("a", nil)
				b.leads("a", firstStart)
				time.Sleep(5 * time.Second)
				value, _, err := b.reg.Read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				b.mem.Put([]byte(change(string(value))))
				b.await("the term ends", 2100*time.Millisecond, func() bool { return b.leader() == nil })
				b.end(a)
			})
		})
	}
}

func TestLostAcquisitionIsNotLedFromARead(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		var n atomic.Int64
		a.hook.set(func(h *hooked) {
			h.beforeWrite = func(_ context.Context, value []byte) error {
				if strings.Contains(string(value), `"holderIdentity":"a"`) {
					if n.Add(1) > 1 {
						return errors.New("no more writes")
					}
				}
				return nil
			}
			h.afterWrite = func(_ context.Context, _ []byte, err error) error {
				if n.Load() > 0 {
					return errLost
				}
				return err
			}
		})
		time.Sleep(time.Minute)
		if n.Load() < 2 {
			t.Fatalf("%d acquisitions were tried, want more than 1", n.Load())
		}
		if b.leaderCount() != 0 {
			t.Error("it led without the answer to a write of its own")
		}
		b.end(a)
	})
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure.dev"
)

const (
	firstStart = 16 * time.Second         // of a new lock: 1.5 D and a little
	takeover   = 12500 * time.Millisecond // D(1+ρ) + 50 ms + P and a little
)

// scenario runs f in a bubble with a bench.
func scenario(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newBench(t)) })
}

func TestRenewalsAndPollsAreOneRequest(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		s := b.start("s", nil)
		time.Sleep(time.Second)
		r0, w0 := a.hook.count()
		sr0, sw0 := s.hook.count()
		time.Sleep(100 * time.Second)
		r1, w1 := a.hook.count()
		sr1, sw1 := s.hook.count()
		if r1 != r0 || w1-w0 < 49 || w1-w0 > 51 {
			t.Errorf("the leader made %d reads and %d writes in 50 periods, want 0 and 50", r1-r0, w1-w0)
		}
		if sw1 != sw0 || sr1-sr0 < 49 || sr1-sr0 > 56 {
			t.Errorf("the standby made %d reads and %d writes in 50 periods, want 50 to 56 and 0", sr1-sr0, sw1-sw0)
		}
		b.end(a, s)
	})
}

func TestLostAnswersCostNoTerm(t *testing.T) {
	for name, lose := range map[string]func(ctx context.Context) error{
		"error": func(context.Context) error { return errLost },
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		// A store whose client repeats a write that was applied: the second
		// one fails its own precondition.
		"conflict": func(context.Context) error { return tenure.ErrConflict },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				a := b.start("a", func(o *tenure.Options) { o.Once = true })
				var n atomic.Int64
				a.hook.set(func(h *hooked) {
					h.afterWrite = func(ctx context.Context, _ []byte, err error) error {
						if n.Add(1)%2 == 0 && err == nil {
							return lose(ctx)
						}
						return err
					}
				})
				s := b.start("s", nil)
				b.await("a term", 2*firstStart, func() bool { return b.leader() != nil })
				epoch := b.leader().term.Epoch()
				time.Sleep(10 * time.Minute)
				if l := b.leader(); l == nil || l.term.Epoch() != epoch {
					t.Errorf("after ten minutes of lost answers the term of epoch %d is over", epoch)
				}
				b.end(a, s)
			})
		})
	}
}

func TestOrdersCostNoTermAndAreAnsweredAtOnce(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		epoch := b.leader().term.Epoch()
		for i := range 300 { // one every 0.7 s, and the reason differs each time
			_, err := tenure.PauseLock(t.Context(), b.reg, tenure.Pause{By: "me", Why: strings.Repeat("x", i%7+1), Until: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(700 * time.Millisecond)
		}
		if l := b.leader(); l == nil || l.term.Epoch() != epoch {
			t.Fatal("orders cost the leader its term")
		}
		if r := b.record(); r.Paused == nil || r.Paused.By != "me" {
			t.Error("the leader does not keep the pause")
		}
		_, w0 := a.hook.count()
		stop := time.Now().Add(20 * time.Second)
		for i := 0; time.Now().Before(stop); i++ { // a storm
			if _, err := tenure.PauseLock(t.Context(), b.reg, tenure.Pause{By: "me", Why: strings.Repeat("y", i%7+1), Until: time.Now().Add(time.Hour)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		_, w1 := a.hook.count()
		if w1-w0 > 10*5 {
			t.Errorf("the leader wrote %d times in 10 periods of storm, want at most 5 a period", w1-w0)
		}
		b.end(a)
	})
}

func TestDeletedUnderPartitionedLeader(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a, s := b.start("a", nil), b.start("s", nil)
		b.await("a term", firstStart, func() bool { return b.leader() != nil })
		first := b.leader()
		cut, other := a, "s"
		if first.identity == "s" {
			cut, other = s, "a"
		}
		cut.cut()
		b.mem.Delete()
		// The bench finds two valid terms, should there ever be two.
		took := b.leads(other, firstStart+2*time.Second)
		if took < 15*time.Second {
			t.Errorf("a deleted lock was taken after %v, want 1.5 D at least", took)
		}
		b.end(a, s)
	})
}

// TestDeletedTwiceBetweenPolls is why absence is turned into a stopper: a
// record that is created and deleted between two polls of another candidate
// leaves no trace, and that one would create its own beside a living leader.
func TestDeletedTwiceBetweenPolls(t *testing.T) {
	for offset := range 20 {
		scenario(t, func(t *testing.T, b *bench) {
			a := b.start("a", nil)
			time.Sleep(time.Duration(offset) * 100 * time.Millisecond)
			s := b.start("s", nil)
			b.await("a term", firstStart, func() bool { return b.leader() != nil })
			time.Sleep(20 * time.Millisecond)
			b.mem.Delete()
			time.Sleep(30 * time.Second)
			b.end(a, s)
		})
	}
}

func TestWaitCountsFromArrival(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		s := b.start("s", nil)
		time.Sleep(5 * time.Second)
		var sent atomic.Pointer[time.Time]
		var cut atomic.Bool
		s.hook.set(func(h *hooked) {
			h.beforeRead = func(ctx context.Context) error {
				if !cut.Load() {
					now := time.Now()
					sent.Store(&now)
					time.Sleep(2 * time.Second) // on its way to the store
				}
				return nil
			}
		})
		b.await("a slow poll begins", 10*time.Second, func() bool { at := sent.Load(); return at != nil && time.Since(*at) < 20*time.Millisecond })
		start := *sent.Load()
		_, w := a.hook.count()
		b.await("a renewal", 3*time.Second, func() bool { _, now := a.hook.count(); return now > w })
		cut.Store(true)
		a.cut()
		b.leads("s", 30*time.Second)
		if since := time.Since(start); since < 12*time.Second {
			t.Errorf("the wait was counted from the sending of the read: %v", since)
		}
		b.end(a, s)
	})
}

func TestIdentityNeverShortensAWait(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("same", nil)
		b.leads("same", firstStart)
		a.cut() // as good as dead
		again := b.start("same", nil)
		from := time.Now()
		b.await("the second term", takeover+time.Second, func() bool { return b.leaderCount() == 2 })
		if took := time.Since(from); took < 10150*time.Millisecond {
			t.Errorf("the same identity took over after %v, want D(1+ρ) + 50ms = 10.15s at least", took)
		}
		b.end(a, again)
	})
}

func TestFailoverTime(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		s := b.start("s", nil)
		for range 5 {
			time.Sleep(7300 * time.Millisecond)
			a.cut()
			if took := b.leads("s", takeover); took > takeover {
				t.Errorf("takeover took %v", took)
			}
			b.end(a)
			a, s = s, b.start("a", nil)
			a, s = s, a
			time.Sleep(time.Second)
			s.stop()
			b.leads("a", 3*time.Second)
			b.end(s)
			s = b.start("s", nil)
		}
		b.end(a, s)
	})
}

func TestUnreachableStoreEndsTheTerm(t *testing.T) {
	for name, hook := range map[string]func(*hooked){
		"everything fails": func(h *hooked) {
			h.beforeRead = func(context.Context) error { return errors.New("down") }
			h.beforeWrite = func(context.Context, []byte) error { return errors.New("down") }
		},
		"everything hangs": func(h *hooked) {
			h.beforeRead = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			h.beforeWrite = func(ctx context.Context, _ []byte) error { <-ctx.Done(); return ctx.Err() }
		},
		"hangs without heeding its context": func(h *hooked) {
			h.beforeWrite = func(context.Context, []byte) error { time.Sleep(time.Minute); return errors.New("late") }
		},
		"reads work, writes fail": func(h *hooked) {
			h.beforeWrite = func(context.Context, []byte) error { return errors.New("403") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				a := b.start("a", nil)
				b.leads("a", firstStart)
				l := b.leader()
				renewed := l.term.Deadline().Add(-9850 * time.Millisecond)
				a.hook.set(hook)
				time.Sleep(15 * time.Second)
				stopped, _, cause := b.past(l)
				if !errors.Is(cause, tenure.ErrRenewDeadline) {
					t.Errorf("the cause is %v, want %v", cause, tenure.ErrRenewDeadline)
				}
				if at := stopped.Sub(renewed); at != 6500*time.Millisecond {
					t.Errorf("the work's context ended %v after the last renewal, want R = 6.5s", at)
				}
				if l.term.Valid() {
					t.Error("the term is valid after its deadline")
				}
				reads, writes := a.hook.count()
				time.Sleep(time.Minute)
				r, w := a.hook.count()
				if r-reads+w-writes > 4*60 {
					t.Errorf("%d reads and %d writes a minute: a hot loop", r-reads, w-writes)
				}
				a.hook.set(func(h *hooked) { h.beforeRead, h.beforeWrite = nil, nil })
				b.leads("a", time.Minute+takeover)
				b.end(a)
				time.Sleep(2 * time.Minute) // for requests that still hang
			})
		})
	}
}

func TestReleaseWaitsForTheWork(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.drain.Store(int64(20 * time.Second)) // longer than D: the term is renewed meanwhile
		a := b.start("a", nil)
		b.leads("a", firstStart)
		first := b.leader()
		s := b.start("s", nil)
		time.Sleep(time.Second)
		a.stop()
		b.leads("s", 20*time.Second+2100*time.Millisecond)
		if _, ended, _ := b.past(first); ended.IsZero() {
			t.Error("the lock was released before the work had ended (I7)")
		}
		b.drain.Store(int64(0))
		b.end(a, s)
	})
}

func TestDrainIsBounded(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.drain.Store(int64(5 * time.Minute))
		a := b.start("a", func(o *tenure.Options) { o.Drain = 10 * time.Second })
		b.leads("a", firstStart)
		s := b.start("s", nil)
		time.Sleep(time.Second)
		a.stop()
		took := b.leads("s", 25*time.Second)
		if took < 10*time.Second {
			t.Errorf("another led after %v although the work still drained", took)
		}
		b.drain.Store(int64(0))
		b.end(a, s)
	})
}

func TestHandoverLeadsOnlyByOnesOwnWrite(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a, s := b.start("a", nil), b.start("s", nil)
		b.await("a term", firstStart, func() bool { return b.leader() != nil })
		to, other := s, "a"
		if b.leader().identity == "s" {
			to, other = a, "s"
		}
		name := map[bool]string{true: "a", false: "s"}[to == a]
		to.hook.set(func(h *hooked) {
			h.beforeWrite = func(context.Context, []byte) error { return errors.New("no rights to write") }
		})
		if _, err := tenure.Handover(t.Context(), b.reg, name); err != nil {
			t.Fatal(err)
		}
		time.Sleep(8 * time.Second)
		if l := b.leader(); l != nil {
			t.Errorf("%s leads, though nobody could", l.identity)
		}
		if r := b.record(); r.PreferredHolder != name || !r.Released() {
			t.Errorf("the record is %+v, want it released to %s", r, name)
		}
		b.leads(other, takeover) // after one D the others may
		to.hook.set(func(h *hooked) { h.beforeWrite = nil })
		if _, err := tenure.Handover(t.Context(), b.reg, name); err != nil {
			t.Fatal(err)
		}
		if took := b.leads(name, 5*time.Second); took > 2500*time.Millisecond {
			t.Errorf("the handover took %v, want 1.1 P + 0.3 s at most", took)
		}
		if r := b.record(); r.PreferredHolder != "" {
			t.Errorf("the acquisition kept preferredHolder %q", r.PreferredHolder)
		}
		b.end(a, s)
	})
}

func TestHandoverToAnyone(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		s := b.start("s", nil)
		time.Sleep(3 * time.Second)
		if _, err := tenure.Handover(t.Context(), b.reg, tenure.AnyHolder); err != nil {
			t.Fatal(err)
		}
		b.leads("s", 5*time.Second)
		b.end(s)
		b.leads("a", 15*time.Second)
		// Alone, it takes the lock again after one D.
		if _, err := tenure.Handover(t.Context(), b.reg, tenure.AnyHolder); err != nil {
			t.Fatal(err)
		}
		b.await("nobody leads", 3*time.Second, func() bool { return b.leader() == nil })
		if took := b.leads("a", 13*time.Second); took < 9*time.Second {
			t.Errorf("who was asked to release took the lock again after %v", took)
		}
		b.end(a)
	})
}

func TestDamagedRecordIsWaitedOutAndEpochsGrow(t *testing.T) {
	stock := `{"holderIdentity":"x","leaseDurationSeconds":10,"renewTime":"2000-01-01T00:00:10.000000Z","leaseTransitions":4}`
	for name, value := range map[string]string{
		"deleted": "-", "zero bytes": "", "empty object": "{}", "null": "null", "truncated": `{"holderIdentity":"`,
		"garbage": strings.Repeat("\x00\xff", 600000), "stock Lease": stock,
		"other lineage": `{"holderIdentity":"","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":"n","lineage":"other"}`,
		"lower epoch":   `{"holderIdentity":"","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":"n","lineage":"LINEAGE"}`,
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				a, s := b.start("a", nil), b.start("s", nil)
				b.await("a term", firstStart, func() bool { return b.leader() != nil })
				time.Sleep(5 * time.Second)
				old := b.leader()
				if value == "-" {
					b.mem.Delete()
				} else {
					b.mem.Put([]byte(strings.ReplaceAll(value, "LINEAGE", b.record().Lineage)))
				}
				from := time.Now()
				b.await("another term", 2*firstStart, func() bool { l := b.leader(); return l != nil && l != old })
				if took := time.Since(from); took < 15*time.Second || took > 18050*time.Millisecond {
					t.Errorf("taken after %v, want 1.5 D to 1.5 D + P + 1 s", took)
				}
				b.end(a, s)
			})
		})
	}
}

func TestReleasedRecordIsTakenAtOnce(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.mem.Put([]byte(`{"holderIdentity":"","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":"n"}`))
		a := b.start("a", nil)
		if took := b.leads("a", time.Second); took > 50*time.Millisecond {
			t.Errorf("took %v", took)
		}
		b.end(a)
	})
}

func TestFreshProcessWaitsForADeadRecordWhateverTheTimes(t *testing.T) {
	for _, stamp := range []string{"1999-01-01T00:00:00Z", "2096-01-01T00:00:00Z"} {
		scenario(t, func(t *testing.T, b *bench) {
			b.mem.Put([]byte(`{"holderIdentity":"old","leaseDurationSeconds":10,"renewTime":"` + stamp + `","leaseTransitions":1,"epoch":5,"nonce":"n"}`))
			a := b.start("a", nil)
			if took := b.leads("a", takeover); took < 10150*time.Millisecond {
				t.Errorf("with renewTime %s the lock was taken after %v, want D(1+ρ) + 50 ms", stamp, took)
			}
			b.end(a)
		})
	}
}

func TestHoldersLeaseDurationRulesTheWait(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", func(o *tenure.Options) { o.LeaseDuration = 40 * time.Second })
		b.leads("a", time.Minute+5*time.Second)
		s := b.start("s", func(o *tenure.Options) { o.LeaseDuration = 5 * time.Second })
		time.Sleep(10 * time.Second)
		a.cut()
		if took := b.leads("s", time.Minute); took < 30*time.Second {
			t.Errorf("a D of 40 s was over after %v", took)
		}
		b.end(a, s)
	})
}

// TestDurationIsFixedForATerm: shrunk by a renewal whose answer is lost, the
// leader would count the old D and a standby the new one.
func TestDurationIsFixedForATerm(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", func(o *tenure.Options) { o.LeaseDuration = 30 * time.Second })
		b.leads("a", time.Minute)
		if err := a.Update(6*time.Second, 0, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if d := b.record().LeaseDuration; d != 30*time.Second {
			t.Fatalf("D is %v within the term, want 30s", d)
		}
		s := b.start("s", nil)
		a.cut()
		time.Sleep(20 * time.Second)
		b.leads("s", 20*time.Second)
		b.end(a, s)
		b.prepare = func(e *tenure.Elector) {
			if err := e.Update(6*time.Second, 0, 0); err != nil {
				t.Error(err)
			}
		}
		a = b.start("a", func(o *tenure.Options) { o.LeaseDuration = 30 * time.Second })
		b.leads("a", 5*time.Second)
		if d := b.record().LeaseDuration; d != 6*time.Second {
			t.Errorf("D is %v in the next term, want 6s", d)
		}
		b.end(a)
	})
}

func TestPausedLockIsNotTaken(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		s := b.start("s", nil)
		if _, err := tenure.PauseLock(t.Context(), b.reg, tenure.Pause{By: "me", Until: time.Now().Add(5 * time.Minute)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if l := b.leader(); l == nil || l.identity != "a" {
			t.Fatal("the leader of a paused lock does not go on")
		}
		b.end(a)
		time.Sleep(3 * time.Minute)
		if l := b.leader(); l != nil {
			t.Fatalf("%s took a paused lock", l.identity)
		}
		b.leads("s", 65*time.Second) // the pause ends by itself
		b.end(s)
	})
}

func TestForcedRelease(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		old := b.leader()
		s := b.start("s", nil)
		a.cut()
		ctx := t.Context()
		if _, err := tenure.ForceRelease(ctx, b.reg, tenure.ForceOptions{Who: "me", Epoch: 1}); !errors.Is(err, tenure.ErrOtherEpoch) {
			t.Errorf("error is %v, want ErrOtherEpoch", err)
		}
		v, err := tenure.ForceRelease(ctx, b.reg, tenure.ForceOptions{Who: "me", Epoch: old.term.Epoch()})
		if err != nil {
			t.Fatal(err)
		}
		if v.Epoch() <= old.term.Epoch() {
			t.Errorf("the epoch is %d after a forced release of epoch %d", v.Epoch(), old.term.Epoch())
		}
		b.leads("s", 3*time.Second)
		b.end(a, s)
	})
}

func TestForcedReleaseThatDiesHalfWayDelaysOnly(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := tenure.ForceRelease(ctx, b.reg, tenure.ForceOptions{Who: "me", Epoch: b.leader().term.Epoch()}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		b.await("the leader stops", 3*time.Second, func() bool { return b.leader() == nil })
		b.leads("a", firstStart+2*time.Second)
		b.end(a)
	})
}

func TestDuplicateIdentityRefuses(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("same", nil)
		b.leads("same", firstStart)
		second := b.start("same", nil)
		select {
		case err := <-second.done:
			if !errors.Is(err, tenure.ErrDuplicateIdentity) {
				t.Errorf("Run returned %v, want ErrDuplicateIdentity", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the second copy goes on")
		}
		if b.leader() == nil {
			t.Error("the first copy stopped")
		}
		b.end(a)
	})
}

// TestRestartedIdentityIsNoDuplicate: what a predecessor left, had under way
// when it died, or what a restore put back is not a living copy's.
func TestRestartedIdentityIsNoDuplicate(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		old := func(n string) {
			b.mem.Put([]byte(`{"holderIdentity":"a","clusterUID":"old","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":"` + n + `"}`))
		}
		old("1")
		a := b.start("a", nil)
		for _, n := range []string{"2", "1"} {
			time.Sleep(3 * time.Second)
			old(n)
		}
		b.leads("a", takeover)
		b.end(a)
	})
}

func TestImplausibleEpochIsNotTaken(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.mem.Put([]byte(`{"holderIdentity":"","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":9223372036854775807,"nonce":"n"}`))
		a := b.start("a", nil)
		time.Sleep(5 * time.Minute)
		if l := b.leader(); l != nil {
			t.Errorf("it leads with epoch %d", l.term.Epoch())
		}
		if err := a.Status().Refused; !errors.Is(err, tenure.ErrImplausibleEpoch) {
			t.Errorf("the status says %v, want ErrImplausibleEpoch", err)
		}
		// A person decides.
		if _, err := tenure.ForceRelease(t.Context(), b.reg, tenure.ForceOptions{Who: "me", Epoch: 9223372036854775807}); err != nil {
			t.Fatal(err)
		}
		b.leads("a", 3*time.Second)
		b.end(a)
	})
}

// TestRestoredRecordRestartsTheWait: the same bytes at another version were put
// back by somebody, and anything may have happened in between.
func TestRestoredRecordRestartsTheWait(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		s := b.start("s", nil)
		time.Sleep(5 * time.Second)
		var old []byte
		b.await("s has seen a renewal", 5*time.Second, func() bool {
			old, _, _ = b.reg.Read(t.Context())
			r, _ := s.hook.count()
			time.Sleep(2 * time.Second)
			now, _ := s.hook.count()
			return now > r
		})
		_, w := a.hook.count()
		b.await("a renewal", 3*time.Second, func() bool { _, n := a.hook.count(); return n > w })
		time.Sleep(5 * time.Millisecond)
		a.cut()
		b.mem.Put(old)
		b.leads("s", 20*time.Second)
		b.end(a, s)
	})
}

// TestDelayedReleaseHurtsNobody: a release that arrives after another has taken
// the lock is refused by its condition.
func TestDelayedReleaseHurtsNobody(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		s := b.start("s", nil)
		a.hook.set(func(h *hooked) {
			h.beforeWrite = func(_ context.Context, value []byte) error {
				if strings.Contains(string(value), `"holderIdentity":""`) {
					time.Sleep(20 * time.Second)
				}
				return nil
			}
		})
		a.stop()
		b.leads("s", takeover+3*time.Second)
		epoch := b.leader().term.Epoch()
		time.Sleep(30 * time.Second)
		if l := b.leader(); l == nil || l.term.Epoch() != epoch {
			t.Error("a late release ended another's term")
		}
		<-a.done
		b.end(s)
	})
}

func TestOnceEnds(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", func(o *tenure.Options) { o.Once = true })
		b.leads("a", firstStart)
		b.mem.Delete()
		err := <-a.done
		var lost *tenure.LostError
		if !errors.As(err, &lost) || !errors.Is(err, tenure.ErrNotExist) {
			t.Errorf("Run returned %v, want a *LostError for a deleted record", err)
		}
		c := b.start("c", func(o *tenure.Options) { o.Once = true })
		b.leads("c", 2*firstStart)
		c.cut()
		if err := <-c.done; !errors.Is(err, tenure.ErrRenewDeadline) {
			t.Errorf("Run returned %v, want ErrRenewDeadline", err)
		}
	})
}

func TestWorkThatEndsReleases(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		e, err := tenure.New(tenure.Options{Register: b.reg, Identity: "a"})
		if err != nil {
			t.Fatal(err)
		}
		want := errors.New("the work is done, badly")
		if err := e.Run(t.Context(), func(context.Context, *tenure.Term) error { return want }); !errors.Is(err, want) {
			t.Errorf("Run returned %v, want the work's error", err)
		}
		if r := b.record(); !r.Released() {
			t.Errorf("the record is %+v, want it released", r)
		}
	})
}

func TestStandbyThatStopsStartsNoWork(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		for range 20 {
			s := b.start("s", nil)
			time.Sleep(1700 * time.Millisecond)
			b.end(s)
		}
		if n := b.leaderCount(); n != 1 {
			t.Errorf("%d terms, want 1", n)
		}
		b.end(a)
	})
}

func TestCandidatesListEachOther(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.reg = b.mem
		with := func(o *tenure.Options) { o.Register = b.mem }
		a, s := b.start("a", with), b.start("s", with)
		b.await("a term", firstStart, func() bool { return b.leader() != nil })
		time.Sleep(time.Second)
		all, err := tenure.Candidates(t.Context(), b.mem)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range all {
			got = append(got, c.Identity+" "+string(c.State))
		}
		slices.Sort(got)
		if l := b.leader().identity; !slices.Contains(got, l+" Leading") || len(got) != 2 {
			t.Errorf("candidates are %v, want a and s, and %s leading", got, l)
		}
		if _, err := tenure.Handover(t.Context(), b.mem, "x"); !errors.Is(err, tenure.ErrUnknownCandidate) {
			t.Errorf("handing over to nobody known: %v, want ErrUnknownCandidate", err)
		}
		b.end(a, s)
		if all, err = tenure.Candidates(t.Context(), b.mem); err != nil || len(all) != 0 {
			t.Errorf("after both have ended the candidates are %v (%v), want none", all, err)
		}
	})
}

func TestDifferentMaxLeaseDurationsRefuse(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.reg = b.mem
		a := b.start("a", func(o *tenure.Options) { o.Register = b.mem })
		b.leads("a", firstStart)
		s := b.start("s", func(o *tenure.Options) { o.Register = b.mem; o.MaxLeaseDuration = 2 * time.Minute })
		time.Sleep(5 * time.Second)
		if err := s.Status().Refused; !errors.Is(err, tenure.ErrSettingsDiffer) {
			t.Errorf("the status says %v, want ErrSettingsDiffer", err)
		}
		a.cut() // as good as dead: its entry stays
		time.Sleep(time.Minute)
		if l := b.leader(); l != nil {
			t.Errorf("%s leads with other settings", l.identity)
		}
		b.end(a) // this one takes its entry back
		b.leads("s", 2*time.Minute)
		b.end(s)
	})
}

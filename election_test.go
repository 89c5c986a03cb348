// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"context"
	"errors"
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

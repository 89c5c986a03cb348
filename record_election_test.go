// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"tenure.dev"
)

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

// A stock elector that took the lock left our annotations: its epoch goes on
// from there, and so do the lineage and a pause.
func TestStrangersEpochAndLineageAreKept(t *testing.T) {
	const epoch = 1 << 50 // above the time in seconds, which would hide it
	scenario(t, func(t *testing.T, b *bench) {
		b.mem.Put([]byte(`{"holderIdentity":"x","leaseDurationSeconds":10,"renewTime":"2000-01-01T00:00:10.000000Z","leaseTransitions":4,` +
			`"epoch":1125899906842624,"lineage":"old","paused":{"by":"p","at":"2000-01-01T00:00:00Z","until":"2000-01-01T00:00:30Z"}}`))
		a := b.start("a", nil)
		if took := b.leads("a", 40*time.Second); took < 30*time.Second {
			t.Errorf("took it after %v, under pause", took)
		}
		rec := b.record()
		if rec.Epoch != epoch+1 || rec.Lineage != "old" || rec.LeaseTransitions != 5 || rec.Paused == nil {
			t.Errorf("after a stranger of epoch %d: %+v", epoch, rec)
		}
		v, err := tenure.Look(t.Context(), b.mem)
		if err != nil || v.State != tenure.RecordHeld {
			t.Errorf("%+v, %v", v, err)
		}
		b.end(a)
	})
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
		if _, err := tenure.Handover(t.Context(), b.reg, "s"); !errors.Is(err, tenure.ErrPaused) {
			t.Errorf("handing a paused lock over: %v, want ErrPaused", err)
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

// TestEpochsAreNotUsedUp: no term begins above the highest epoch that is
// believed, or nobody could ever take the lock after it.
func TestEpochsAreNotUsedUp(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.mem.Put([]byte(`{"holderIdentity":"","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":9007199254740992,"nonce":"n"}`))
		a := b.start("a", nil)
		time.Sleep(time.Minute)
		if l := b.leader(); l != nil {
			t.Errorf("it leads with epoch %d", l.term.Epoch())
		}
		if err := a.Status().Refused; !errors.Is(err, tenure.ErrImplausibleEpoch) {
			t.Errorf("the status says %v, want ErrImplausibleEpoch", err)
		}
		b.end(a)
	})
}

// TestOwnLateWritesAreNoDuplicate: a store that stalls for longer than D applies
// what was given up long ago; that is nobody else.
func TestOwnLateWritesAreNoDuplicate(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		a := b.start("a", nil)
		b.leads("a", firstStart)
		start := time.Now()
		a.hook.set(func(h *hooked) {
			h.beforeWrite = func(_ context.Context, value []byte) error {
				if into := time.Since(start) % time.Minute; into < 14*time.Second {
					if strings.Contains(string(value), `"holderIdentity":""`) {
						return errors.New("the disk stalls")
					}
					time.Sleep(14*time.Second - into) // the disk stalls
				}
				return nil
			}
		})
		select {
		case err := <-a.done:
			t.Fatalf("Run returned %v", err)
		case <-time.After(10 * time.Minute):
		}
		b.end(a)
		time.Sleep(time.Minute)
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
		b.end(a) // it takes its entry back
		b.leads("s", 2*time.Minute)
		b.end(s)
	})
}

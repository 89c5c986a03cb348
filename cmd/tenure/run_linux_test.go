// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tenure.dev"
)

// since returns how long after the monotonic instant start end is.
func since(start, end int64) time.Duration { return time.Duration(end - start) }

// TestFailover is the promise to a user who changes nothing: default
// durations, a lock that is new, a leader that dies by kill -9.
func TestFailover(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	begin := monotonic()
	copies := map[string]*runCopy{"a": l.start("a"), "b": l.start("b")}
	first := l.leader(1, 20*time.Second)
	if d := since(begin, first.first); d > 16*time.Second {
		t.Errorf("the first command of a new lock ran after %v, want at most 16s", d)
	}
	killed := monotonic()
	copies[first.identity].signal(syscall.SIGKILL)
	second := l.leader(2, 15*time.Second)
	if d := since(killed, second.first); d > 12500*time.Millisecond {
		t.Errorf("the other command ran %v after kill -9, want at most 12.5s", d)
	}
	if second.identity == first.identity {
		t.Errorf("%s leads again", second.identity)
	}
	if d := since(killed, l.lives()[0].last); d > 500*time.Millisecond {
		t.Errorf("the command of a killed copy lived for %v", d)
	}
	l.check()
}

// TestHandoverOnTerm: a planned stop hands over at once.
func TestHandoverOnTerm(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	l.create()
	a := l.start("a", "--", "beat", "-linger", "700ms", "-exit", "9", l.log)
	l.leader(1, 5*time.Second)
	l.start("b")
	l.await(10*time.Second, "b is a candidate", func([]life) bool {
		_, err := os.Stat(l.path + ".candidates")
		all, _ := tenure.Candidates(t.Context(), l.reg)
		return err == nil && len(all) == 2
	})
	a.signal(syscall.SIGTERM)
	if code := a.exit(5 * time.Second); code != 9 {
		t.Errorf("tenure exits with %d, want the command's 9", code)
	}
	second := l.leader(2, 10*time.Second)
	first := l.lives()[0]
	if d := since(first.last, second.first); d > 2500*time.Millisecond {
		t.Errorf("the other command ran %v after the first had ended, want at most 2.5s", d)
	}
	if d := since(first.asked, first.last); d < 600*time.Millisecond || !first.ended {
		t.Errorf("the command was not given its time to end: %v, by itself: %v", d, first.ended)
	}
	l.check()
}

// TestFrozenLeader: a leader that is stopped has its command killed by the
// watchdog before another copy's runs.
func TestFrozenLeader(t *testing.T) {
	t.Parallel()
	rounds := 3
	if s := os.Getenv("TENURE_CHAOS_ROUNDS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	l := newLab(t, "?ttl=3s")
	l.create()
	copies := map[string]*runCopy{"a": l.start("a"), "b": l.start("b")}
	kept := 0
	for n := 1; n <= rounds; n++ {
		leads := l.leader(n, 10*time.Second)
		frozen := copies[leads.identity]
		// Not always right after the begin of the term.
		time.Sleep(500*time.Millisecond + time.Duration(n*37%600)*time.Millisecond)
		frozen.signal(syscall.SIGSTOP)
		if !l.another(n, 6*time.Second) {
			// Frozen in the middle of a write, it keeps the file locked, and
			// nobody can take over. Its command must be dead all the same.
			kept++
			if all := l.lives(); since(all[n-1].last, monotonic()) < time.Second {
				t.Errorf("round %d: the command of a copy frozen for 6s lives", n)
			}
			frozen.signal(syscall.SIGCONT)
			l.leader(n+1, 10*time.Second)
		}
		frozen.signal(syscall.SIGCONT)
		l.check()
		if t.Failed() {
			t.Fatalf("in round %d of %d", n, rounds)
		}
	}
	t.Logf("%d rounds; in %d of them the frozen copy kept the file locked", rounds, kept)
}

// another reports whether another command runs within a time.
func (l *lab) another(after int, within time.Duration) bool {
	l.t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if len(l.lives()) > after {
			return true
		}
	}
	return false
}

// TestStoreLost: a leader that cannot renew asks its command to end at R, and
// kills it before the deadline if it does not.
func TestStoreLost(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=3s")
	l.create()
	away := l.path + ".flock"
	l.start("a", "--", "beat", "-stubborn", l.log)
	l.leader(1, 5*time.Second)
	if err := os.Remove(away); err != nil {
		t.Fatal(err)
	}
	// A folder in the place of the flock file: no write succeeds.
	if err := os.Mkdir(away, 0o755); err != nil {
		t.Fatal(err)
	}
	lost := monotonic()
	l.await(10*time.Second, "the command is dead", func(all []life) bool {
		return since(all[0].last, monotonic()) > 300*time.Millisecond
	})
	dead := l.lives()[0]
	if dead.asked == 0 || since(lost, dead.asked) > 2*time.Second {
		t.Errorf("the command was asked to end %v after the store was lost, want at most R = 1.95s", since(lost, dead.asked))
	}
	if d := since(lost, dead.last); d > 3*time.Second {
		t.Errorf("the command lived %v after the store was lost, want less than D = 3s", d)
	}
	if err := os.Remove(away); err != nil {
		t.Fatal(err)
	}
	l.leader(2, 10*time.Second) // it contends again
	l.check()
}

// TestGrace: a command that does not end when it is asked to is killed, and the
// lock is released after that.
func TestGrace(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=2s")
	l.create()
	a := l.start("a", "--grace", "3s", "--", "beat", "-stubborn", l.log)
	l.leader(1, 5*time.Second)
	a.signal(syscall.SIGINT)
	if code := a.exit(6 * time.Second); code != 128+9 {
		t.Errorf("tenure exits with %d, want 137 for a command that was killed", code)
	}
	first := l.lives()[0]
	if d := since(first.asked, first.last); d < 2900*time.Millisecond || d > 3500*time.Millisecond {
		t.Errorf("the command was killed %v after it was asked to end, want the grace of 3s", d)
	}
	if v := l.look(); v.State != tenure.RecordReleased {
		t.Errorf("the lock is %s, want Released", v.State)
	}
}

// TestSecondSignal: a second signal kills at once.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=2s")
	l.create()
	a := l.start("a", "--", "beat", "-stubborn", l.log)
	l.leader(1, 5*time.Second)
	a.signal(syscall.SIGTERM)
	l.await(5*time.Second, "the command is asked to end", func(all []life) bool { return all[0].asked != 0 })
	time.Sleep(2 * sameSignal) // an equal one that comes sooner is the same
	a.signal(syscall.SIGTERM)
	if code := a.exit(2 * time.Second); code != 128+9 {
		t.Errorf("tenure exits with %d, want 137 for a command that was killed", code)
	}
	if v := l.look(); v.State != tenure.RecordReleased {
		t.Errorf("the lock is %s, want Released", v.State)
	}
}

// TestOnce: a term that is lost ends a run with --once.
func TestOnce(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*lab){
		"garbled": func(l *lab) { l.damage("{") },
		"handed over": func(l *lab) {
			if _, err := tenure.Handover(t.Context(), l.reg, tenure.AnyHolder); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "?ttl=2s")
			l.create()
			a := l.start("a", "--once", "--", "beat", l.log)
			l.leader(1, 5*time.Second)
			lose(l)
			if code := a.exit(5 * time.Second); code != exitLost {
				t.Errorf("tenure exits with %d, want %d", code, exitLost)
			}
			if first := l.lives()[0]; first.asked == 0 || !first.ended {
				t.Errorf("the command was not asked to end: %+v", first)
			}
		})
	}
}

// TestTaken: a leader whose record another has taken kills its command at once,
// since that one may lead.
func TestTaken(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=10s")
	l.create()
	l.start("a", "--", "beat", "-stubborn", l.log)
	first := l.leader(1, 5*time.Second)
	taken := monotonic()
	if _, err := tenure.ForceRelease(t.Context(), l.reg, tenure.ForceOptions{Who: "test", Epoch: first.epoch, HolderIsDead: true}); err != nil {
		t.Fatal(err)
	}
	l.await(8*time.Second, "the command is dead", func(all []life) bool {
		return since(all[0].last, monotonic()) > 500*time.Millisecond
	})
	if d := since(taken, l.lives()[0].last); d > 2500*time.Millisecond {
		t.Errorf("the command lived %v, want at most one period", d)
	}
}

// TestRestart: the command is started again while the copy leads, at the same
// epoch.
func TestRestart(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=2s")
	l.create()
	a := l.start("a", "--restart", "--", "beat", "-life", "50ms", "-exit", "3", l.log)
	l.leader(2, 10*time.Second)
	all := l.leader(3, 10*time.Second)
	first := l.lives()[0]
	if all.epoch != first.epoch {
		t.Errorf("the command was started again at epoch %d, want %d", all.epoch, first.epoch)
	}
	second := l.lives()[1]
	if a, b := since(first.last, second.first), since(second.last, all.first); a < 900*time.Millisecond || b < 1900*time.Millisecond {
		t.Errorf("it was started again after %v and %v, want 1s and 2s", a, b)
	}
	a.signal(syscall.SIGTERM)
	if code := a.exit(5 * time.Second); code != 143 && code != 0 && code != 3 {
		t.Errorf("tenure exits with %d", code)
	}
}

// TestSignals: what is no request to end is passed on.
func TestSignals(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=2s")
	l.create()
	script := `for s in HUP USR1 USR2 WINCH; do trap "echo got $s" $s; done; trap "echo got TERM; exit 4" TERM; echo ready; while :; do sleep 0.02; done`
	a := l.start("a", "--", "sh", "-c", script)
	said := func(what string) {
		t.Helper()
		l.await(5*time.Second, what, func([]life) bool { return strings.Contains(a.errors.String(), what) })
	}
	said("ready")
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH} {
		a.signal(s)
		said("got " + map[syscall.Signal]string{syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1", syscall.SIGUSR2: "USR2", syscall.SIGWINCH: "WINCH"}[s])
	}
	a.signal(syscall.SIGTERM)
	if code := a.exit(5 * time.Second); code != 4 {
		t.Errorf("tenure exits with %d, want the command's 4", code)
	}
	said("got TERM")
}

// TestStandbyStops: a standby that is asked to stop has run nothing.
func TestStandbyStops(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	a := l.start("a")
	l.await(5*time.Second, "a stands by", func([]life) bool { return strings.Contains(a.errors.String(), "standing by") })
	a.signal(syscall.SIGTERM)
	if code := a.exit(2 * time.Second); code != 128+15 {
		t.Errorf("tenure exits with %d, want 143", code)
	}
	if all := l.lives(); len(all) != 0 {
		t.Errorf("a standby ran its command: %+v", all)
	}
}

// TestDuplicateIdentity: a second copy with the same identity refuses.
func TestDuplicateIdentity(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=2s")
	l.create()
	l.start("a")
	l.leader(1, 5*time.Second)
	twin := l.start("a")
	if code := twin.exit(10 * time.Second); code != exitRefused {
		t.Errorf("the twin exits with %d, want %d", code, exitRefused)
	}
	if !strings.Contains(twin.errors.String(), "give each candidate an identity of its own") {
		t.Errorf("the twin does not say what to do:\n%s", twin.errors)
	}
	l.check()
}

// TestUnwritableStore: nothing is contended for before the store was seen to
// keep its promises.
func TestUnwritableStore(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=2s")
	l.create()
	probes := l.path + ".probe"
	if err := os.WriteFile(probes, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	a := l.start("a", "--wait", "20s", "--", "beat", "-life", "50ms", l.log)
	l.await(5*time.Second, "it says why it waits", func([]life) bool {
		return strings.Contains(a.errors.String(), filepath.Base(probes)+" is not a folder")
	})
	if v := l.look(); v.State != tenure.RecordReleased {
		t.Errorf("the lock is %s, want it untouched", v.State)
	}
	if err := os.Remove(probes); err != nil {
		t.Fatal(err)
	}
	if code := a.exit(10 * time.Second); code != 0 {
		t.Errorf("tenure exits with %d once the store answers, want 0", code)
	}
}

// TestForcedRelease: a lock is taken from a leader that lives. It stops in
// time, and its next term has a higher epoch.
func TestForcedRelease(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=2s")
	l.create()
	l.start("a", "--", "beat", "-stubborn", l.log)
	first := l.leader(1, 5*time.Second)
	begin := monotonic()
	force := exec.Command("tenure", "release", "--yes", "--lock", l.url(), "--force", strconv.FormatInt(first.epoch, 10))
	if out, err := force.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	second := l.leader(2, 10*time.Second)
	if d := since(begin, second.first); d < 3*time.Second {
		t.Errorf("another command ran after %v, want the wait of 1.5 ttl = 3s first", d)
	}
	l.check()
}

// TestInitInterrupted: a person who does not want to wait leaves a lock that
// candidates wait out by themselves.
func TestInitInterrupted(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=2s")
	said := &syncFile{}
	cmd := exec.Command("tenure", "init", "--lock", l.url())
	cmd.Stderr, cmd.SysProcAttr = said, dieWithTest()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.await(2*time.Second, "it waits", func([]life) bool { return strings.Contains(said.String(), "waiting 3.0s") })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+2 {
		t.Errorf("init exits with %d, want 130:\n%s", code, said)
	}
	if v := l.look(); v.State != tenure.RecordStopper {
		t.Errorf("the lock is %s, want Stopper", v.State)
	}
	l.start("a")
	l.leader(1, 5*time.Second)
}

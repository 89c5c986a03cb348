// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// promptly is how long after a fault everything must be dead.
const promptly = 200 * time.Millisecond

var treeSpec = standInSpec{TTL: time.Minute, Margin: testMargin, Renew: 20 * time.Millisecond}

// startTree starts a stand-in whose command has come up with four processes.
func startTree(t *testing.T, mark string, s standInSpec) (*stand, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "beats")
	st := startStand(t, mark, "tree "+file, s)
	if !waitFor(func() bool { return len(beaters(file)) == 4 }) {
		t.Fatal("the command did not come up")
	}
	return st, file
}

func TestTenureKilled(t *testing.T) {
	for i := range 5 {
		mark := newMark(t)
		spec := treeSpec
		if i == 4 { // with a frozen watchdog, which no renewal wakes
			spec.Renew = 0
		}
		st, file := startTree(t, mark, spec)
		if i == 4 {
			syscall.Kill(st.watchdog, syscall.SIGSTOP)
			waitFor(func() bool { w, err := readProcess(st.watchdog); return err == nil && w.state == 'T' })
		}
		fault := bootNow()
		st.Process.Kill()
		st.Process.Wait()
		dead := bootNow()
		if !waitFor(func() bool { return len(marked(mark)) == 0 }) {
			t.Fatal("something lives on")
		}
		if late := time.Duration(lastBeat(file) - fault); late > promptly {
			t.Errorf("run %d: the last beat was %v after kill -9, %v after tenure was dead", i, late, time.Duration(lastBeat(file)-dead))
		}
	}
}

// Frozen at any moment, tenure's command is dead before the deadline.
// SUPERVISE_RUNS=100 makes it a longer test.
func TestTenureFrozen(t *testing.T) {
	runs := 5
	if s := os.Getenv("SUPERVISE_RUNS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal("SUPERVISE_RUNS: ", err)
		}
		runs = n
	}
	spec := standInSpec{TTL: 700 * time.Millisecond, Margin: testMargin, Renew: 7 * time.Millisecond}
	least := time.Hour
	for i := range runs {
		mark := newMark(t)
		var st *stand
		var file string
		if i%5 == 4 { // more work than processors
			file = filepath.Join(t.TempDir(), "beats")
			st = startStand(t, mark, "busy "+file, spec)
			waitFor(func() bool { return len(readBeats(file)) > 10 })
		} else {
			st, file = startTree(t, mark, spec)
		}
		st.Process.Signal(syscall.SIGSTOP)
		waitFor(func() bool { return len(marked(mark)) == 1 }) // the frozen one
		deadline := st.deadline.Load()
		spare := time.Duration(deadline - lastBeat(file))
		least = min(least, spare)
		if spare < 0 {
			t.Errorf("run %d: a beat %v after the deadline", i, -spare)
		}
		if spare > spec.TTL {
			t.Errorf("run %d: killed %v before the deadline, before the freeze", i, spare)
		}
		st.Process.Signal(syscall.SIGCONT)
		if got := <-st.ended; got != "137 killed at the deadline" {
			t.Errorf("run %d: it learnt %q", i, got)
		}
		st.Wait()
		none(t, mark)
	}
	t.Logf("%d runs, the last beat at least %v before the deadline", runs, least)
}

func TestWatchdogKilled(t *testing.T) {
	for range 5 {
		mark := newMark(t)
		file := filepath.Join(t.TempDir(), "beats")
		other := mustStart(t, shell(mark+"-other", "sleep 60"))
		p := mustStart(t, specFor(mark, "tree "+file, time.Minute))
		if !waitFor(func() bool { return len(beaters(file)) == 4 }) {
			t.Fatal("the command did not come up")
		}
		fault := bootNow()
		p.watchdog.Process.Kill()
		r := p.Wait()
		none(t, mark)
		if r.Cause != WatchdogLost || r.ExitCode() != 137 {
			t.Errorf("got %+v", r)
		}
		if late := time.Duration(lastBeat(file) - fault); late > promptly {
			t.Errorf("the last beat was %v after kill -9", late)
		}
		select {
		case <-other.Done():
			t.Error("another command of the same process was killed with it")
		default:
		}
		other.Kill()
		other.Wait()
	}
}

// Both killed, one right after the other: the kernel ends the main process.
// Doc.go says that the others may live on.
func TestBothKilled(t *testing.T) {
	for _, watchdogFirst := range []bool{false, true} {
		mark := newMark(t)
		file := filepath.Join(t.TempDir(), "beats")
		st := startStand(t, mark, "beat "+file, treeSpec)
		waitFor(func() bool { return len(readBeats(file)) > 0 })
		fault := bootNow()
		if watchdogFirst {
			syscall.Kill(st.watchdog, syscall.SIGKILL)
			st.Process.Kill()
		} else {
			st.Process.Kill()
			syscall.Kill(st.watchdog, syscall.SIGKILL)
		}
		st.Wait()
		if !waitFor(func() bool { return len(marked(mark)) == 0 }) {
			t.Fatal("something lives on")
		}
		if late := time.Duration(lastBeat(file) - fault); late > promptly {
			t.Errorf("the last beat was %v after kill -9", late)
		}
	}
}

// A frozen watchdog is woken by a renewal; without one tenure itself kills.
func TestWatchdogFrozen(t *testing.T) {
	file, mark := filepath.Join(t.TempDir(), "beats"), newMark(t)
	p := mustStart(t, specFor(mark, "tree "+file, time.Minute))
	waitFor(func() bool { return len(beaters(file)) == 4 })
	state := func(want byte) func() bool {
		return func() bool {
			w, err := readProcess(p.watchdog.Process.Pid)
			return err == nil && (w.state == 'T') == (want == 'T')
		}
	}
	p.watchdog.Process.Signal(syscall.SIGSTOP)
	waitFor(state('T'))
	p.Extend(time.Now().Add(2 * time.Minute))
	if !waitFor(state('S')) {
		t.Error("the renewal did not wake the watchdog")
	}
	p.watchdog.Process.Signal(syscall.SIGSTOP)
	waitFor(state('T'))
	p.Kill()
	if r := p.Wait(); r.Cause != Killed {
		t.Errorf("got %+v", r)
	}
	none(t, mark)

	s := specFor(mark, "tree "+file, time.Second)
	last := bootNow() + int64(time.Until(s.Deadline))
	p = mustStart(t, s)
	p.watchdog.Process.Signal(syscall.SIGSTOP)
	if r := p.Wait(); r.Cause != Deadline {
		t.Errorf("got %+v", r)
	}
	none(t, mark)
	if spare := last - lastBeat(file); spare < 0 {
		t.Errorf("a beat %v after the deadline", time.Duration(-spare))
	}
}

// A watchdog that does nothing at all is killed, and Start does not hang.
func TestWatchdogHangs(t *testing.T) {
	t.Setenv(hangVar, "1")
	mark := newMark(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, shell(mark, "exit 0")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	s := shell(mark, "exit 0")
	s.Deadline = time.Now().Add(2 * testMargin)
	if _, err := Start(t.Context(), s); !errors.Is(err, ErrDeadline) {
		t.Errorf("got %v, want ErrDeadline", err)
	}
	if late := time.Since(s.Deadline); late > 0 {
		t.Errorf("Start returned %v after the deadline", late)
	}
}

// What ends or stops tenure's group leaves the watchdog alone, and so do tools
// that kill by name.
func TestWatchdogShrugsOffSignals(t *testing.T) {
	file, mark := filepath.Join(t.TempDir(), "beats"), newMark(t)
	p := mustStart(t, specFor(mark, "beat "+file, time.Minute))
	pid := p.watchdog.Process.Pid
	for _, s := range []syscall.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGUSR1, syscall.SIGPIPE,
	} {
		if err := syscall.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
	}
	seen := len(readBeats(file))
	waitFor(func() bool { return len(readBeats(file)) > seen+50 })
	w, err := readProcess(pid)
	if err != nil || w.state == 'T' || w.dead() || w.session != pid {
		t.Errorf("the watchdog: %+v, %v", w, err)
	}
	for _, name := range []string{"comm", "cmdline"} {
		if b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + name); err != nil || !strings.HasPrefix(string(b), "watchdog") {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
	p.Kill()
	p.Wait()
	none(t, mark)
}

// A watchdog that never had a tenure does not start.
func TestMarkerByAccident(t *testing.T) {
	s := shell(newMark(t), marker+"=1 exec "+testBinary()+" 2>/dev/null")
	if r := mustStart(t, s).Wait(); r.Code != 2 {
		t.Errorf("got %+v, want exit code 2", r)
	}
}

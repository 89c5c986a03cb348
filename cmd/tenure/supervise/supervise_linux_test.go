// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testMargin leaves a loaded machine with the race detector time to act.
const testMargin = 300 * time.Millisecond

func TestContainmentIsCompleteHere(t *testing.T) {
	if lack := Containment(); lack != "" {
		t.Error(lack)
	}
}

func TestExitCode(t *testing.T) {
	for _, tt := range []struct {
		script string
		want   Result
		code   int
	}{
		{"exit 0", Result{Cause: Exited}, 0},
		{"exit 7", Result{Cause: Exited, Code: 7}, 7},
		{"kill -TERM $$", Result{Cause: Exited, Code: -1, Signal: syscall.SIGTERM}, 143},
		{"kill -KILL $$", Result{Cause: Exited, Code: -1, Signal: syscall.SIGKILL}, 137},
	} {
		t.Run(tt.script, func(t *testing.T) {
			mark := newMark(t)
			p := mustStart(t, shell(mark, tt.script))
			if got := p.Wait(); got != tt.want || got.ExitCode() != tt.code {
				t.Errorf("got %+v, exit code %d; want %+v, %d", got, got.ExitCode(), tt.want, tt.code)
			}
			if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("a signal afterwards: %v", err)
			}
			p.Extend(time.Now().Add(time.Hour))
			p.Kill()
			none(t, mark)
		})
	}
}

func TestStartRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode fs.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := file("plain", "#!/bin/sh\n", 0o644)
	for _, tt := range []struct {
		name string
		edit func(*Spec)
		is   error
		code int // of a StartError
	}{
		{"name not found", func(s *Spec) { s.Argv = []string{"no-such-command-here"} }, exec.ErrNotFound, 127},
		{"path not found", func(s *Spec) { s.Argv = []string{dir + "/none"} }, fs.ErrNotExist, 127},
		{"interpreter not found", func(s *Spec) { s.Argv = []string{file("lost", "#!/no/such/sh\n", 0o755)} }, fs.ErrNotExist, 127},
		{"not executable", func(s *Spec) { s.Argv = []string{plain} }, fs.ErrPermission, 126},
		{"a directory", func(s *Spec) { s.Argv = []string{dir} }, fs.ErrPermission, 126},
		{"no format", func(s *Spec) { s.Argv = []string{file("text", "hello", 0o755)} }, syscall.ENOEXEC, 126},
		{"too long", func(s *Spec) { s.Argv = append(s.Argv, strings.Repeat("x", 1<<20)) }, syscall.E2BIG, 126},
		{"no directory", func(s *Spec) { s.Dir = dir + "/none" }, fs.ErrNotExist, 0},
		{"directory is a file", func(s *Spec) { s.Dir = plain }, nil, 0},
		{"no command", func(s *Spec) { s.Argv = nil }, nil, 0},
		{"negative margin", func(s *Spec) { s.Margin = -1 }, nil, 0},
		{"no deadline", func(s *Spec) { s.Deadline = time.Time{} }, ErrDeadline, 0},
		{"margin exceeds the term", func(s *Spec) { s.Margin = time.Hour }, ErrDeadline, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := shell(newMark(t), "exit 0")
			tt.edit(&s)
			_, err := Start(t.Context(), s)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) {
				t.Fatalf("got %v, want %v", err, tt.is)
			}
			var se *StartError
			if errors.As(err, &se) != (tt.code != 0) || se != nil && se.ExitCode() != tt.code {
				t.Errorf("got %T %v, want exit code %d", err, err, tt.code)
			}
		})
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Start(ctx, shell(newMark(t), "sleep 0.2; exit 4"))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if r := p.Wait(); r.Code != 4 {
		t.Errorf("the context ended a command that had started: %+v", r)
	}
	if _, err := Start(ctx, shell(newMark(t), "exit 0")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	// At any moment of a start: either it runs, or nothing does.
	for i := range 20 {
		mark := newMark(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond/2)
		p, err := Start(ctx, shell(mark, "exec sleep 60"))
		cancel()
		if err == nil {
			p.Kill()
			p.Wait()
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
		none(t, mark)
	}
}

// The command sees nothing of the watchdog.
func TestWhatTheCommandInherits(t *testing.T) {
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	leak, err := syscall.Open("/dev/null", syscall.O_RDONLY, 0) // without CLOEXEC
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(leak)
	s := shell(newMark(t), `echo "dir $PWD"; echo "epoch $TENURE_EPOCH"; echo "raw $RAW"; echo "arg $1"; env | grep ^`+marker+`
		echo files; ls /proc/$$/fd; echo end; grep -E "Sig(Ign|Blk)" /proc/self/status; echo nice $(nice); ps -o pgid= -p $$ | tr -d ' ' | sed 's/^/group /'; echo pid $$`)
	s.Dir = t.TempDir()
	s.Stdin, s.Stdout = in, out
	s.Argv = append(s.Argv, "sh", "a\xffb")
	s.Env = append(s.Env, "TENURE_EPOCH=7", "RAW=\xfe\n", marker+"=1")
	p := mustStart(t, s)
	if r := p.Wait(); r.ExitCode() != 0 {
		t.Fatalf("%+v", r)
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	status, err := exec.Command("sh", "-c", "grep -E 'Sig(Ign|Blk)' /proc/self/status; echo nice $(nice)").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"dir " + s.Dir + "\n", "epoch 7\n", "raw \xfe\n", "arg a\xffb\n", "files\n0\n1\n2\nend\n", string(status),
		fmt.Sprintf("group %[1]d\npid %[1]d\n", p.Pid()),
	} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("no %q in:\n%s", want, b)
		}
	}
	if bytes.Contains(b, []byte(marker)) {
		t.Errorf("the marker leaked:\n%s", b)
	}
}

func TestSignalReachesTheGroup(t *testing.T) {
	dir := t.TempDir()
	mark := newMark(t)
	p := mustStart(t, shell(mark, fmt.Sprintf(`
		trap 'wait; exit 5' TERM
		sh -c 'trap "echo > %[1]s/inner; exit" TERM; echo > %[1]s/ready; while :; do sleep 0.01; done' &
		while :; do sleep 0.01; done`, dir)))
	waitFor(exists(dir + "/ready"))
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := p.Wait(); r.Code != 5 || r.Cause != Exited {
		t.Errorf("got %+v, want exit code 5", r)
	}
	if !exists(dir + "/inner")() {
		t.Error("the signal did not reach the group")
	}
	none(t, mark)
}

func exists(path string) func() bool {
	return func() bool { _, err := os.Stat(path); return err == nil }
}

// Every shape of a command ends with Kill, and with the deadline.
func TestKillAndDeadline(t *testing.T) {
	for _, role := range []string{"beat", "tree", "deaf", "stopped", "headless", "busy"} {
		for _, why := range []Cause{Killed, Deadline} {
			t.Run(fmt.Sprint(role, " ", why), func(t *testing.T) {
				file, mark := filepath.Join(t.TempDir(), "beats"), newMark(t)
				s := specFor(mark, role+" "+file, 1500*time.Millisecond)
				if why == Killed {
					s.Deadline = time.Now().Add(time.Minute)
				}
				last := bootNow() + int64(time.Until(s.Deadline))
				p := mustStart(t, s)
				want := map[string]int{"tree": 4}[role]
				if !waitFor(func() bool { return len(beaters(file)) >= max(want, 1) }) {
					t.Fatal("the command did not come up")
				}
				if role == "deaf" {
					p.Signal(syscall.SIGTERM)
					seen := len(readBeats(file))
					waitFor(func() bool { return len(readBeats(file)) > seen+20 })
				}
				if why == Killed {
					p.Kill()
				}
				if r := p.Wait(); r.Cause != why || r.ExitCode() != 137 {
					t.Errorf("got %+v, want %v", r, why)
				}
				end := bootNow()
				none(t, mark)
				if end > last || lastBeat(file) > end {
					t.Errorf("ended %v after the deadline, last beat %v after the end",
						time.Duration(end-last), time.Duration(lastBeat(file)-end))
				}
			})
		}
	}
}

func TestExtendKeepsItAlive(t *testing.T) {
	file, mark := filepath.Join(t.TempDir(), "beats"), newMark(t)
	const ttl = 700 * time.Millisecond
	first := time.Now()
	p := mustStart(t, specFor(mark, "beat "+file, ttl))
	var deadline time.Time
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for now := range tick.C {
		if now.Sub(first) > 5*ttl {
			break
		}
		deadline = now.Add(ttl)
		p.Extend(deadline)
		p.Extend(first) // an earlier one changes nothing
	}
	select {
	case <-p.Done():
		t.Fatalf("ended early: %+v", p.Wait())
	default:
	}
	if r := p.Wait(); r.Cause != Deadline || r.ExitCode() != 137 {
		t.Errorf("got %+v", r)
	}
	if late := time.Since(deadline); late > 0 {
		t.Errorf("ended %v after the deadline", late)
	} else if late < -testMargin-50*time.Millisecond {
		t.Errorf("ended %v before the deadline", -late)
	}
	none(t, mark)
}

// What the main process leaves running ends with it.
func TestLeftoversAreKilled(t *testing.T) {
	file, mark := filepath.Join(t.TempDir(), "beats"), newMark(t)
	p := mustStart(t, specFor(mark, "daemon "+file, time.Minute))
	r := p.Wait()
	none(t, mark)
	if end := bootNow(); lastBeat(file) > end {
		t.Error("it beat after Wait")
	}
	if r.Cause != Exited || r.Code != 3 || r.Leftovers != 1 {
		t.Errorf("got %+v, want exit code 3 and one left over", r)
	}
}

// A bomb of 500 that spreads over sessions, and one that never stays: each
// process forks the next and exits.
func TestForkBombs(t *testing.T) {
	for name, script := range map[string]string{
		"wide": `i=0; while [ $i -lt 100 ]; do
			setsid sh -c 'for j in 1 2 3 4; do sh -c "echo >> $0; sleep 60" $0 & done; wait' $0 & i=$((i+1)); done; wait`,
		"hopping":          `hop() { echo >> $0; (hop) & exit; }; hop`,
		"hopping sessions": `echo 'echo >> $1; setsid sh $0 $1 &' > $0.sh; sh $0.sh $0; sleep 60`,
	} {
		t.Run(name, func(t *testing.T) {
			file, mark := filepath.Join(t.TempDir(), "count"), newMark(t)
			s := shell(mark, script)
			if name == "hopping" {
				s.Argv[2] = "(" + script + ") & sleep 60"
			}
			s.Argv = append(s.Argv, file)
			p := mustStart(t, s)
			waitFor(func() bool { b, _ := os.ReadFile(file); return len(b) > 100 })
			begin := time.Now()
			p.Kill()
			if r := p.Wait(); r.Cause != Killed {
				t.Errorf("got %+v", r)
			}
			t.Logf("ended in %v", time.Since(begin))
			none(t, mark)
		})
	}
}

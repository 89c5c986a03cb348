// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"reflect"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	rest := " 5 6 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 987654 1 2 3"
	want := process{pid: 12, ppid: 5, pgrp: 6, session: 7, state: 'S', threads: 3, start: 987654}
	for _, tt := range []struct {
		line string
		ok   bool
	}{
		{"12 (sh) S" + rest, true},
		{"12 (a b) S 1) S" + rest, true},
		{"12 (\n) R) S" + rest, true},
		{"12 () S" + rest, true},
		{"", false},
		{"12", false},
		{"12 (sh)", false},
		{"12 (sh) S 5 6 7", false},
		{"x (sh) S" + rest, false},
		{"12 (sh) SS" + rest, false},
	} {
		got, err := parseStat([]byte(tt.line))
		if (err == nil) != tt.ok || tt.ok && got != want {
			t.Errorf("%q: got %+v, %v", tt.line, got, err)
		}
	}
}

func TestDead(t *testing.T) {
	for p, want := range map[process]bool{
		{state: 'S', threads: 1}: false,
		{state: 'T', threads: 1}: false,
		{state: 'Z', threads: 1}: true,
		{state: 'Z', threads: 2}: false, // its main thread only
		{state: 'X'}:             true,
	} {
		if p.dead() != want {
			t.Errorf("%+v: dead is %v", p, !want)
		}
	}
}

func TestDescendants(t *testing.T) {
	all := []process{
		{pid: 1}, {pid: 2, ppid: 1, start: 1}, {pid: 9, ppid: 2, start: 2}, {pid: 3, ppid: 9, start: 3},
		{pid: 4, ppid: 3, start: 3}, {pid: 5, ppid: 1}, {pid: 6, ppid: 5}, {pid: 7, ppid: 8}, {pid: 8, ppid: 7},
	}
	var got []int
	for _, p := range descendants(all, func(p process) bool { return p.ppid == 2 }) {
		got = append(got, p.pid)
	}
	if want := []int{4, 3, 9}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v, the newest first", got, want)
	}
	for _, p := range descendants(all, func(p process) bool { return p.pid == 7 }) {
		if p.pid != 7 && p.pid != 8 {
			t.Errorf("a loop led to %v", p.pid)
		}
	}
}

// Whoever has the id of a process that is gone is not signalled.
func TestSignalSparesAnotherProcess(t *testing.T) {
	p := mustStart(t, shell(newMark(t), "sleep 60"))
	was, err := readProcess(p.Pid())
	if err != nil {
		t.Fatal(err)
	}
	other := was
	other.start--
	if err := other.signal(syscall.SIGKILL); err == nil {
		t.Error("a process was signalled in the place of another")
	}
	if err := was.signal(0); err != nil {
		t.Error(err)
	}
}

func TestMessages(t *testing.T) {
	for _, m := range []message{
		{msgDeadline, []int64{1 << 62}}, {msgSignal, []int64{15}}, {msgEnded, []int64{1, 9, 3}},
	} {
		line := string(encode(m.word, m.args...))
		if got, err := decode(line); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%q: got %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{"", "\n", "deadline", "deadline x", "deadline 1 2", "signal 99999999999999999999", "hello 1"} {
		if _, err := decode(line); err == nil {
			t.Errorf("%q was understood", line)
		}
	}
}

func TestClean(t *testing.T) {
	got := strs(clean([]string{"A=1", "B=", marker + "=1", "A=2", "=x", "odd"}))
	if want := []string{"B=", "A=2", "=x", "odd"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestKillInstant(t *testing.T) {
	for _, tt := range []struct{ left, margin, want time.Duration }{
		{time.Minute, time.Second, 59 * time.Second},
		{time.Second, time.Minute, -59 * time.Second},
		{1<<63 - 1, time.Second, 10*365*24*time.Hour - time.Second},
	} {
		before := bootNow()
		at := killInstant(time.Now().Add(tt.left), tt.margin)
		if got := time.Duration(at - before); got < tt.want-time.Millisecond || got > tt.want+time.Second {
			t.Errorf("%+v: got %v", tt, got)
		}
	}
	if at := killInstant(time.Time{}, 0); at > bootNow() {
		t.Error("no deadline is one to come")
	}
	// Only one of a deadline's two clocks may still be ahead: the earlier counts.
	wall := time.Now().Add(time.Hour).Round(0)
	if at := killInstant(wall, 0); time.Duration(at-bootNow()) > time.Hour {
		t.Error("longer than the wall clock says")
	}
}

func TestExitCodeOfResults(t *testing.T) {
	for _, tt := range []struct {
		status syscall.WaitStatus
		why    Cause
		told   Cause
		want   Result
	}{
		{0x0300, 0, Exited, Result{Cause: Exited, Code: 3}},
		{9, Killed, Killed, Result{Cause: Killed, Code: -1, Signal: 9}},
		{9, Deadline, Killed, Result{Cause: Deadline, Code: -1, Signal: 9}}, // tenure's own timer
		{15 | 0x80, Killed, Exited, Result{Cause: Exited, Code: -1, Signal: 15}},
	} {
		if got := resultOf([]int64{int64(tt.told), int64(tt.status), 0}, tt.why); got != tt.want {
			t.Errorf("%+v: got %+v", tt, got)
		}
	}
}

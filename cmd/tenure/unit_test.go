// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"tenure.dev"
)

// TestExitCodes: what the core's errors come to.
func TestExitCodes(t *testing.T) {
	a := &app{}
	for _, c := range []struct {
		err  error
		want int
	}{
		{tenure.ErrURL, 2},
		{tenure.ErrUnknownCandidate, 2},
		{tenure.ErrNotExist, 3},
		{tenure.ErrNoLeader, 3},
		{tenure.ErrUnusable, 4},
		{tenure.ErrOtherEpoch, 4},
		{tenure.ErrImplausibleEpoch, 4},
		{tenure.ErrDuplicateIdentity, 4},
		{tenure.ErrSettingsDiffer, 4},
		{tenure.ErrPaused, 4},
		{&tenure.UnsafeStoreError{}, 4},
		{os.ErrPermission, 1},
	} {
		if got := a.codeOf(fmt.Errorf("wrapped: %w", c.err)); got != c.want {
			t.Errorf("%v exits with %d, want %d", c.err, got, c.want)
		}
	}
}

// TestOthersMayLead: after which losses the command is killed at once.
func TestOthersMayLead(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{tenure.ErrRenewDeadline, false},
		{tenure.ErrHandover, false},
		{&tenure.LostError{Holder: "b", Err: errors.New("taken")}, true},
		{&tenure.LostError{Holder: "release/someone", Err: errors.New("taken")}, false},
		{&tenure.LostError{Holder: "create/b", Err: errors.New("taken")}, false},
		{&tenure.LostError{Err: tenure.ErrNoLeader}, true},
		{&tenure.LostError{Err: tenure.ErrNotExist}, false},
		{&tenure.LostError{Err: errors.New("unreadable")}, false},
	} {
		if got := othersMayLead(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// TestLogWriter: a log that nobody reads does not hold its writer up, and says
// how much was lost once somebody does.
func TestLogWriter(t *testing.T) {
	t.Parallel()
	reader, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	w := newLogWriter(pipe)
	line := []byte(strings.Repeat("x", 200) + "\n")
	begin := time.Now()
	for range 10 * logLines {
		if _, err := w.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(begin); d > time.Second {
		t.Errorf("writing to a log that nobody reads took %v", d)
	}
	read := make(chan string)
	go func() {
		var b bytes.Buffer
		_, _ = b.ReadFrom(reader)
		read <- b.String()
	}()
	w.flush()
	pipe.Close()
	if got := <-read; !strings.Contains(got, "lines were dropped because nobody read them") {
		t.Errorf("nothing says that lines were dropped; %d bytes were read", len(got))
	}
}

// TestRefusal: which refusals of the elector end a run.
func TestRefusal(t *testing.T) {
	differ := fmt.Errorf("wrapped: %w", tenure.ErrSettingsDiffer)
	for _, c := range []struct {
		name string
		ran  time.Duration
		err  error
		want bool
	}{
		{"different settings at the start", 0, differ, true},
		{"different settings of one that came later", time.Minute, differ, false},
		{"an implausible epoch", time.Minute, fmt.Errorf("wrapped: %w", tenure.ErrImplausibleEpoch), true},
		{"settings that are not known yet", 0, errors.New("not known yet"), false},
	} {
		r := &runner{contending: time.Now().Add(-c.ran)}
		if got := r.refusal(c.err); got != c.want {
			t.Errorf("%s: ends the run: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestSameSignal: timeout(1) signals tenure and then its group; the command has
// its grace all the same.
func TestSameSignal(t *testing.T) {
	stops := 0
	r := &runner{log: slog.New(slog.DiscardHandler), cancel: func() { stops++ }, working: true}
	r.signalled(syscall.SIGTERM)
	r.signalled(syscall.SIGTERM)
	if r.killed || stops != 1 {
		t.Errorf("two equal signals at once: killed %v, stopped %d times", r.killed, stops)
	}
	r.stoppedAt = r.stoppedAt.Add(-sameSignal)
	if r.signalled(syscall.SIGTERM); !r.killed {
		t.Errorf("an equal signal %v later does not kill", sameSignal)
	}
	r.killed, r.stoppedAt = false, time.Now()
	if r.signalled(syscall.SIGINT); !r.killed {
		t.Error("another signal does not kill")
	}
}

// TestFinish: a command that ended by itself ends the run also if the term is
// lost at that moment, in whichever order the two become known.
func TestFinish(t *testing.T) {
	for _, lost := range []string{"never", "before", "after"} {
		ctx, lose := context.WithCancel(t.Context())
		stopped := false
		r := &runner{cancel: func() { stopped = true }}
		over := func() {
			lose()
			r.observe(tenure.Event{Kind: tenure.EventEnded, Err: tenure.ErrHandover})
		}
		if lost == "before" {
			over()
		}
		if err := r.finish(ctx, ending{code: 7}); err != nil {
			t.Error(err)
		}
		if lost == "after" {
			over()
		}
		if stopped != (lost != "never") {
			t.Errorf("the term is lost %s the end: the elector is stopped: %v", lost, stopped)
		}
		if r.beginWork() {
			t.Errorf("the term is lost %s the end: the command is run again", lost)
		}
		lose()
	}
}

// TestMissing: what a store that offers only the lock does without.
func TestMissing(t *testing.T) {
	type bare struct{ tenure.Register }
	type beside struct {
		tenure.Register
		tenure.Siblinger
	}
	type all struct {
		beside
		tenure.Lister
	}
	for _, c := range []struct {
		reg          tenure.Register
		probe, lists bool
	}{
		{bare{}, false, false},
		{beside{}, true, false},
		{all{}, true, true},
	} {
		text := missing(c.reg)
		if strings.Contains(text, "probed") == c.probe || strings.Contains(text, "listed") == c.lists || strings.Contains(text, "maxttl") == c.lists {
			t.Errorf("%T is said to miss %q", c.reg, text)
		}
	}
}

// TestCandidateText: only whom the record names is said to lead.
func TestCandidateText(t *testing.T) {
	for _, c := range []struct {
		state       tenure.State
		live, leads bool
		want        string
	}{
		{tenure.StateLeading, true, true, "a on h, leading, seen"},
		{tenure.StateDraining, true, true, "a on h, draining, seen"},
		{tenure.StateLeading, true, false, "a on h, last said leading, seen"},
		{tenure.StateLeading, false, false, "a on h, last said leading, seen"},
		{tenure.StateStandby, true, false, "a on h, standby, seen"},
		{tenure.StateStandby, false, false, "a on h, last said standby, seen"},
	} {
		doc := candidateDoc{Candidate: tenure.Candidate{Identity: "a", Host: "h", State: c.state}, Live: c.live, Leads: c.leads}
		if got := doc.text(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v reads %q, want %q", c, got, c.want)
		}
	}
}

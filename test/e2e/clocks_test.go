// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// shift is laid over package time: TENURE_CLOCK says what a process' wall clock does.
// The monotonic one is left alone, as when somebody sets a machine's date.
const shift = `package time

import "syscall"

var clockMode, clockSeconds, clockAt, clockSec, clockNsec = clockBegin()

func clockBegin() (mode string, seconds, at, sec int64, nsec int32) {
	s, _ := syscall.Getenv("TENURE_CLOCK")
	sec, nsec, at = runtimeNow()
	switch {
	case s == "still":
		return s, 0, at, sec, nsec
	case len(s) > 5 && s[:5] == "back:":
		mode, s = "back", s[5:]
	case s != "":
		mode = "fixed"
	}
	d, _ := ParseDuration(s)
	return mode, int64(d / Second), at, sec, nsec
}

func clockShift(sec int64, nsec int32, mono int64) (int64, int32) {
	switch clockMode {
	case "fixed":
		return sec + clockSeconds, nsec
	case "still":
		return clockSec, clockNsec
	case "back": // after 20 s
		if mono-clockAt > 20e9 {
			return sec - clockSeconds, nsec
		}
	}
	return sec, nsec
}
`

// oddElector builds an elector whose wall clock can be told to be wrong.
func oddElector(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	original := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	b, err := os.ReadFile(filepath.Join(original, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(b), now) != 1 {
		t.Fatalf("this version of Go has another time.Now: adapt the overlay")
	}
	changed := strings.Replace(string(b), now, now+"\tsec, nsec = clockShift(sec, nsec, mono)\n", 1)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(original, "time.go"): filepath.Join(dir, "time.go"), filepath.Join(original, "shift.go"): filepath.Join(dir, "shift.go"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"time.go": changed, "shift.go": shift, "overlay.json": string(overlay)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	elector := filepath.Join(dir, "elector")
	if err := build(Programs{Elector: elector}, "-overlay", filepath.Join(dir, "overlay.json")); err != nil {
		t.Fatal(err)
	}
	return elector
}

// TestClocks: the pods' wall clocks are wrong. One that is behind elects as always, one
// that is ahead, stands still or steps back leads no longer than the gate can tell.
func TestClocks(t *testing.T) {
	t.Parallel()
	odd := oddElector(t)
	p := newPair(t, pairOptions{})
	for _, c := range []struct {
		name, clock string
		leads       bool
		forLong     bool
	}{
		{"a minute behind", "-60s", true, true},
		{"a minute ahead", "60s", false, false},
		{"steps back half a minute", "back:30s", true, false},
		{"stands still", "still", true, false},
	} {
		p.step(c.name, "", func(s *scene) {
			program := filepath.Join(s.Opt.Dir, "odd-"+strings.Trim(strings.ReplaceAll(c.clock, ":", "-"), "-"))
			s.do(os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\nTENURE_CLOCK=%s exec %s \"$@\"\n", c.clock, odd), 0o700))
			site := s.lead
			site.StopElectors()
			begin := time.Now()
			s.do(site.ElectorAt(0, program, "odd"))
			pause(s, 45*time.Second)
			writes, last := 0, begin
			for _, b := range s.Receiver.Beats(begin) {
				if strings.HasPrefix(b.Holder, site.Name+"/odd.") {
					writes, last = writes+1, b.At
				}
			}
			s.Say("figure: a pod whose clock %s wrote %d times within 45 s, the last time after %v; clusters: %v",
				c.name, writes, last.Sub(begin).Round(100*time.Millisecond), Leaders(s.Receiver.Beats(begin)))
			if c.leads != (writes > 0) {
				s.Errorf("it wrote %d times", writes)
			}
			if c.forLong && time.Since(last) > time.Second {
				s.Errorf("it stopped %v ago", time.Since(last))
			}
			// Now it loses the lead, as far as it has it.
			if err := s.settle(); err == nil && s.lead == site {
				s.handover(s.other.Name)
			}
			pause(s, 5*time.Second)
			for _, site := range s.Sites {
				site.StopElectors()
				s.do(site.Elector("e1"), site.Elector("e2"))
			}
		})
	}
}

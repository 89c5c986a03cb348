// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"testing"
	"time"

	"tenure.dev/test/e2e/monotonic"
)

// TestJudge: what decides all other tests finds overlaps, and nothing else.
func TestJudge(t *testing.T) {
	begin := time.Now()
	beats := func(spec ...string) (out []Beat) {
		for i, s := range spec {
			b := Beat{Holder: s, At: begin.Add(time.Duration(i) * time.Second)}
			if s[0] == '!' {
				b.Holder, b.Late = s[1:], true
			}
			out = append(out, b)
		}
		return out
	}
	for name, c := range map[string]struct {
		beats []Beat
		want  int
	}{
		"nothing":                     {nil, 0},
		"one after the other":         {beats("a/e.1", "a/e.1", "b/e.1", "b/e.1", "a/e.2"), 0},
		"a last write":                {beats("a/e.1", "b/e.1", "a/e.1"), 1},
		"both for long":               {beats("a/e.1", "b/e.1", "a/e.1", "b/e.1", "a/e.1"), 1},
		"hours later":                 {beats("a/e.1", "b/e.1", "b/e.1", "b/e.1", "b/e.1", "b/e.1", "b/e.1", "a/e.1"), 1},
		"within a cluster":            {beats("a/e.1", "a/f.1", "a/e.1"), 0},
		"a frozen one":                {beats("a/e.1", "b/e.1", "!a/e.1", "b/e.1"), 0},
		"frozen, then in the way":     {beats("a/e.1", "b/e.1", "!a/e.1", "a/e.1"), 1},
		"one that reigns twice":       {beats("a/e.1", "b/e.1", "b/e.1", "a/e.1", "c/e.1"), 1},
		"three, of which two at once": {beats("a/e.1", "b/e.1", "c/e.1", "b/e.1", "c/e.1"), 1},
	} {
		if got := Overlaps(c.beats); len(got) != c.want {
			t.Errorf("%s: %v, want %d", name, got, c.want)
		}
	}
}

// TestReceiverTellsFrozen: a process counts as frozen from a stop of more than a
// second until its next accepted renewal.
func TestReceiverTellsFrozen(t *testing.T) {
	r, err := NewReceiver()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	conn, err := net.Dial("udp", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	say := func(format string, args ...any) {
		if _, err := fmt.Fprintf(conn, format, args...); err != nil {
			t.Fatal(err)
		}
	}
	await := func() Beat {
		n := len(r.Beats(time.Time{}))
		say("a/e.1")
		for {
			if all := r.Beats(time.Time{}); len(all) > n {
				return all[n]
			}
			time.Sleep(time.Millisecond)
		}
	}
	say("a/e.1 %d", monotonic.Now().Nanoseconds())
	if await().Late {
		t.Error("a process that runs counts as frozen")
	}
	r.mu.Lock()
	r.pauses["a/e.1"] = []window{{time.Now(), time.Now().Add(2 * time.Second)}}
	r.mu.Unlock()
	r.mu.Lock()
	late := r.stopped("a/e.1", time.Now().Add(3*time.Second))
	r.mu.Unlock()
	if late < 1900*time.Millisecond {
		t.Errorf("stopped for %v, want 2 s", late)
	}
	say("a/e.1 %d", (monotonic.Now() + 3*time.Second).Nanoseconds())
	await()
	r.mu.Lock()
	late = r.stopped("a/e.1", time.Now().Add(4*time.Second))
	r.mu.Unlock()
	if late != 0 {
		t.Errorf("stopped for %v since a renewal that came after", late)
	}
}

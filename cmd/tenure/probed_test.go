// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// namedStore says which store it is, and counts what is written beside the lock.
type namedStore struct {
	tenure.Register
	name   string
	writes *int
	every  time.Duration
	times  *[]time.Time
}

func newNamedStore(name string) namedStore {
	return namedStore{mem.New(), name, new(int), 0, new([]time.Time)}
}

func (s namedStore) StoreName() string               { return s.name }
func (s namedStore) MinWriteInterval() time.Duration { return s.every }

func (s namedStore) Sibling(suffix string) tenure.Register {
	if beside, ok := s.Register.(tenure.Siblinger); ok {
		s.Register = beside.Sibling(suffix)
	}
	return s
}

func (s namedStore) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	*s.writes++
	*s.times = append(*s.times, time.Now())
	return s.Register.Write(ctx, value, old)
}

func probing(reg tenure.Register, memory probed) error {
	r := &runner{lock: &tenure.Lock{Register: reg, Name: "named://x"}, log: slog.New(slog.DiscardHandler), probed: memory}
	return r.probe(context.Background())
}

// TestProbeIsRemembered: per store and program, for a while, and only if it has
// passed.
func TestProbeIsRemembered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "probed.json")
	memory := probed{path, "1"}
	asked := func(what string, reg namedStore, memory probed, want bool) {
		t.Helper()
		before := *reg.writes
		if err := probing(reg, memory); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := *reg.writes > before; got != want {
			t.Errorf("%s: probed is %v, want %v", what, got, want)
		}
	}
	a := newNamedStore("https://one/bucket")
	asked("at first", a, memory, true)
	asked("again", a, memory, false)
	asked("another endpoint", newNamedStore("https://other/bucket"), memory, true)
	asked("another build", a, probed{path, "2"}, true)
	asked("both are remembered", a, memory, false)
	asked("a store without a name", newNamedStore(""), memory, true)
	asked("a store without a name, again", newNamedStore(""), memory, true)
	asked("no folder", a, probed{}, true)

	if err := memory.note(a, time.Now().Add(-probedFor)); err != nil {
		t.Fatal(err)
	}
	asked("a day later", a, memory, true)
	if err := memory.note(a, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	asked("noted in the future", a, memory, true)
	if err := os.WriteFile(path, []byte("null"), 0o600); err != nil {
		t.Fatal(err)
	}
	asked("a damaged file", a, memory, true)
	asked("which is mended", a, memory, false)
}

// TestUnsafeStoreIsNotRemembered, and named with what it failed.
func TestUnsafeStoreIsNotRemembered(t *testing.T) {
	memory := probed{filepath.Join(t.TempDir(), "probed.json"), "1"}
	bad := newNamedStore("https://one/bucket")
	bad.Register = &ignoresConditions{}
	for range 2 {
		err := probing(bad, memory)
		var unsafe *tenure.UnsafeStoreError
		if !errors.As(err, &unsafe) {
			t.Fatalf("the probe says %v", err)
		}
		for _, want := range []string{"named://x", "https://one/bucket", unsafe.Check} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("it does not name %q: %v", want, err)
			}
		}
		if code := (&app{}).codeOf(err); code != exitRefused {
			t.Errorf("the exit code is %d, want %d", code, exitRefused)
		}
	}
	lost := newNamedStore("https://one/bucket")
	lost.Register = failing{}
	err := probing(lost, memory)
	var unsafe *tenure.UnsafeStoreError
	if !errors.Is(err, tenure.ErrCannotProbe) || errors.As(err, &unsafe) {
		t.Errorf("a store that does not answer: %v", err)
	}
}

type failing struct{}

func (failing) Read(context.Context) ([]byte, tenure.Version, error) {
	return nil, "", errors.New("no route")
}

func (failing) Write(context.Context, []byte, tenure.Version) (tenure.Version, error) {
	return "", errors.New("no route")
}

// TestProbeKeepsTheWriteInterval of a store that allows few writes.
func TestProbeKeepsTheWriteInterval(t *testing.T) {
	s := newNamedStore("")
	s.every = 30 * time.Millisecond
	if err := probing(s, probed{}); err != nil {
		t.Fatal(err)
	}
	for i, at := range (*s.times)[1:] {
		if gap := at.Sub((*s.times)[i]); gap < s.every {
			t.Errorf("write %d came %v after the one before it, sooner than %v", i+1, gap, s.every)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tenure.dev"
)

// TestVersionsNeverRepeat does all that people and tools do to files, with the
// content and the times always the same, and looks for a version seen before.
func TestVersionsNeverRepeat(t *testing.T) {
	r := fresh(t)
	seen := map[tenure.Version]string{}
	note := func(what string) tenure.Version {
		t.Helper()
		_, v := mustRead(t, r)
		if before, ok := seen[v]; ok || v == "" {
			t.Fatalf("after %s the version %q is that of %q again", what, v, before)
		}
		seen[v] = what
		return v
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	past := time.Unix(1e9, 0)
	v := tenure.Version("")
	for i := range 50 {
		is := func(what string) string { return fmt.Sprintf("%s, round %d", what, i) }
		w := mustWrite(t, r, "a", v)
		if v = note(is("write")); v != w {
			t.Fatalf("write returned %q, read %q", w, v)
		}
		// A → B → A, at once: the inode number of the first comes back.
		mustWrite(t, r, "a", mustWrite(t, r, "b", v))
		note(is("A to B to A"))
		must(os.Remove(r.path))
		mustWrite(t, r, "a", "")
		note(is("delete and create"))
		must(os.Remove(r.path))
		must(os.Remove(r.path + lockSuffix))
		mustWrite(t, r, "a", "")
		v = note(is("delete and create without the lock file"))
	}
	// A person is slower than the kernel's clock; a script that does two edits
	// within one of its ticks is not told apart.
	tick := func() { waitForTick(t, filepath.Dir(r.path)) }
	for i := range 5 {
		is := func(what string) string { return fmt.Sprintf("%s, round %d", what, i) }
		tick()
		must(os.WriteFile(r.path, []byte("a"), 0o644))
		must(os.Chtimes(r.path, past, past))
		note(is("edit in place, mtime set back"))
		tick()
		must(os.WriteFile(r.path+".bak", []byte("a"), 0o644))
		must(os.Chtimes(r.path+".bak", past, past))
		must(os.Rename(r.path+".bak", r.path))
		note(is("restore by rename, mtime of the backup"))
		tick()
		must(os.Chtimes(r.path, past, time.Now().Add(1e6*time.Hour)))
		v = note(is("mtime in the far future"))
		tick()
		mustWrite(t, r, "a", v)
		note(is("write after that"))
	}
}

// TestVersionParts: each part of a version tells two states apart alone.
func TestVersionParts(t *testing.T) {
	r := fresh(t)
	mustWrite(t, r, "a", "")
	s, err := r.load()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[tenure.Version]string{s.version: "nothing"}
	for part, change := range map[string]func(*syscall.Stat_t, *[]byte){
		"inode":   func(st *syscall.Stat_t, _ *[]byte) { st.Ino++ },
		"size":    func(st *syscall.Stat_t, _ *[]byte) { st.Size++ },
		"mtime":   func(st *syscall.Stat_t, _ *[]byte) { addTimes(st, 1, 0) },
		"ctime":   func(st *syscall.Stat_t, _ *[]byte) { addTimes(st, 0, 1) },
		"content": func(_ *syscall.Stat_t, b *[]byte) { *b = []byte("b") },
	} {
		st, b := s.stat, s.value
		change(&st, &b)
		v := makeVersion(&st, b)
		if other, ok := seen[v]; ok {
			t.Errorf("a change of %s gives the same version as a change of %s", part, other)
		}
		seen[v] = part
	}
}

// TestModificationTimeGrows: the driver's times grow over a clock that steps
// back, a record that is deleted and a lock file that is deleted. What stands
// there in the future stands for a clock that has stepped back since.
func TestModificationTimeGrows(t *testing.T) {
	ahead := time.Now().Add(time.Hour)
	for name, prepare := range map[string]func(path string) error{
		"record and lock file": func(path string) error { return nil },
		"record deleted":       func(path string) error { return os.Remove(path) },
		"lock file deleted":    func(path string) error { return os.Remove(path + lockSuffix) },
		"lock file garbled":    func(path string) error { return os.WriteFile(path+lockSuffix, []byte("x"), 0o644) },
	} {
		r := fresh(t)
		mustWrite(t, r, "a", "")
		err := errors.Join(
			os.WriteFile(r.path+lockSuffix, fmt.Appendf(nil, "%020d\n", ahead.UnixNano()), 0o644),
			os.Chtimes(r.path, ahead, ahead), prepare(r.path))
		if err != nil {
			t.Fatal(err)
		}
		highest := ahead
		for range 3 {
			_, v, err := r.Read(t.Context())
			if err != nil && !errors.Is(err, tenure.ErrNotExist) {
				t.Fatal(err)
			}
			mustWrite(t, r, "a", v)
			info, err := os.Stat(r.path)
			if err != nil || !info.ModTime().After(highest) {
				t.Fatalf("%s: modification time %v, %v; want one after %v", name, info.ModTime(), err, highest)
			}
			highest = info.ModTime()
		}
		if highest.After(ahead.Add(time.Second)) {
			t.Errorf("%s: the modification time ran ahead by %v", name, highest.Sub(ahead))
		}
	}

	r := fresh(t)
	if err := os.WriteFile(r.path+lockSuffix, fmt.Appendf(nil, "%020d\n", int64(math.MaxInt64)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Write(t.Context(), []byte("a"), ""); err == nil || !strings.Contains(err.Error(), "stop all candidates and empty "+r.path+lockSuffix) {
		t.Errorf("write with no time left: %v, want what to do", err)
	}
}

// waitForTick returns when the file system's clock has moved on.
func waitForTick(t *testing.T, folder string) {
	t.Helper()
	stamp := func() int64 {
		name := filepath.Join(folder, "tick")
		defer os.Remove(name)
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		_, ctime := times(info.Sys().(*syscall.Stat_t))
		return ctime
	}
	for first := stamp(); stamp() == first; {
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package file

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tenure.dev"
)

func mustOpen(t *testing.T, path string) *Register {
	t.Helper()
	r, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func fresh(t *testing.T) *Register {
	t.Helper()
	return mustOpen(t, filepath.Join(t.TempDir(), "x.lock"))
}

func mustWrite(t *testing.T, r tenure.Register, value string, old tenure.Version) tenure.Version {
	t.Helper()
	v, err := r.Write(t.Context(), []byte(value), old)
	if err != nil {
		t.Fatalf("write %q: %v", value, err)
	}
	return v
}

func mustRead(t *testing.T, r tenure.Register) (string, tenure.Version) {
	t.Helper()
	b, v, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(b), v
}

// names returns what lies in the folder of the register.
func names(t *testing.T, r *Register) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(r.path))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestCompareAndSwap(t *testing.T) {
	r, ctx := fresh(t), t.Context()
	if _, _, err := r.Read(ctx); !errors.Is(err, tenure.ErrNotExist) {
		t.Fatalf("read of an empty register: %v, want ErrNotExist", err)
	}
	if _, err := r.Write(ctx, []byte("x"), "7"); !errors.Is(err, tenure.ErrConflict) {
		t.Fatalf("conditional write to an empty register: %v, want ErrConflict", err)
	}
	v1 := mustWrite(t, r, "a", "")
	if _, err := r.Write(ctx, []byte("b"), ""); !errors.Is(err, tenure.ErrConflict) {
		t.Fatalf("second create: %v, want ErrConflict", err)
	}
	other := mustOpen(t, r.path)
	if got, v := mustRead(t, other); got != "a" || v != v1 {
		t.Fatalf("read: %q, %q; want a, %q", got, v, v1)
	}
	v2 := mustWrite(t, other, "", v1)
	if got, v := mustRead(t, r); got != "" || v != v2 {
		t.Fatalf("read of an empty value: %q, %q; want none, %q", got, v, v2)
	}
	if _, err := r.Write(ctx, []byte("c"), v1); !errors.Is(err, tenure.ErrConflict) {
		t.Fatalf("stale write: %v, want ErrConflict", err)
	}
	os.Remove(r.path)
	if _, err := r.Write(ctx, []byte("c"), v2); !errors.Is(err, tenure.ErrConflict) {
		t.Fatalf("write over a deleted file: %v, want ErrConflict", err)
	}
	if got, want := names(t, r), []string{"x.lock.flock"}; !slices.Equal(got, want) {
		t.Fatalf("the folder holds %q, want %q", got, want)
	}
}

func TestTooLarge(t *testing.T) {
	r := fresh(t)
	v := mustWrite(t, r, strings.Repeat("x", tenure.MaxRecordSize), "")
	if got, rv := mustRead(t, r); len(got) != tenure.MaxRecordSize || rv != v {
		t.Fatalf("read of the largest value: %d bytes, %q; want version %q", len(got), rv, v)
	}
	for _, size := range []int{tenure.MaxRecordSize + 1, 1 << 20} {
		if err := os.WriteFile(r.path, bytes.Repeat([]byte("x"), size), 0o644); err != nil {
			t.Fatal(err)
		}
		got, rv, err := r.Read(t.Context())
		if !errors.Is(err, tenure.ErrValueTooLarge) || got != nil || rv == "" || rv == v {
			t.Fatalf("read of %d bytes: %d bytes, %q, %v; want ErrValueTooLarge and a new version", size, len(got), rv, err)
		}
		v = mustWrite(t, r, "small", rv)
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(at("regular"), []byte("{}"), 0o644),
		os.Symlink(at("regular"), at("link")),
		os.Symlink(at("nothing"), at("dangling")),
		os.Mkdir(at("folder"), 0o755),
		syscall.Mkfifo(at("fifo"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		path string
		want []string
	}{
		{at("link"), []string{"symbolic link", "target itself"}},
		{at("dangling"), []string{"symbolic link", "target itself"}},
		{at("folder"), []string{"is a folder", "name a file in it"}},
		{at("fifo"), []string{"pipe", "regular file"}},
		{"/dev/null", []string{"device", "regular file"}},
		{at("missing/x.lock"), []string{"folder " + at("missing"), "does not exist", "mkdir -p"}},
		{at("regular/x.lock"), []string{"not a folder"}},
		{"x.lock", []string{"relative", "absolute"}},
		{at("x.flock"), []string{"driver's own"}},
		{at(strings.Repeat("x", 300)), []string{"shorter name"}},
	} {
		check := func(op string, err error) {
			t.Helper()
			if err == nil {
				t.Errorf("%s %s: not refused", op, tt.path)
				return
			}
			for _, w := range append(tt.want, tt.path) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s %s: error does not say %q: %v", op, tt.path, w, err)
				}
			}
		}
		_, err := Open(t.Context(), tt.path)
		check("open", err)
		if !filepath.IsAbs(tt.path) || strings.HasSuffix(tt.path, lockSuffix) || strings.HasPrefix(tt.path, "/dev/") {
			continue
		}
		// What was right at Open may have been replaced since.
		r := newRegister(tt.path, tt.path)
		_, _, err = r.Read(t.Context())
		check("read", err)
		_, err = r.Write(t.Context(), []byte("{}"), "")
		check("write", err)
	}
	if b, err := os.ReadFile(at("regular")); err != nil || string(b) != "{}" {
		t.Errorf("the link's target was changed: %q, %v", b, err)
	}
}

func TestSharedFileSystems(t *testing.T) {
	r := fresh(t)
	v := mustWrite(t, r, "a", "")
	defer func(f func(string) (string, bool, error)) { fileSystem = f }(fileSystem)
	fileSystem = func(string) (string, bool, error) { return "NFS", true, nil }
	_, oerr := Open(t.Context(), r.path)
	_, _, rerr := r.Read(t.Context())
	_, werr := r.Write(t.Context(), []byte("b"), v)
	for op, err := range map[string]error{"open": oerr, "read": rerr, "write": werr} {
		if err == nil || !strings.Contains(err.Error(), "NFS") || !strings.Contains(err.Error(), "use a local file system") || !strings.Contains(err.Error(), r.path) {
			t.Errorf("%s on NFS: %v", op, err)
		}
	}
}

func TestURL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.lock")
	l, err := tenure.Open(t.Context(), "file://"+path+"?ttl=5s", tenure.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	if l.Name != "file://"+path+"?ttl=5s" {
		t.Errorf("the lock's name is %s", l.Name)
	}
	mustWrite(t, l.Register, "a", "")
	if b, err := os.ReadFile(path); err != nil || string(b) != "a" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	for raw, want := range map[string]string{
		"file://relative/x.lock":      "file:///relative/x.lock",
		"file://":                     "names no file",
		"file:///":                    "names no file",
		"file:///var/":                "names no file",
		"file:///x.lock?mode=0600":    "mode",
		"file:///{cluster}/x.lock":    "own lock",
		"file:///no/such/folder/lock": "mkdir -p /no/such/folder",
	} {
		if _, err := tenure.Open(t.Context(), raw, tenure.Vars{Cluster: "c"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", raw, err, want)
		}
	}
}

func TestSiblings(t *testing.T) {
	r := fresh(t)
	mustWrite(t, r, "main", "")
	probe := r.Sibling(".probe/x")
	if _, _, err := probe.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Fatalf("read without the folder: %v, want ErrNotExist", err)
	}
	if _, err := probe.Write(t.Context(), nil, "1"); !errors.Is(err, tenure.ErrConflict) {
		t.Fatalf("conditional write without the folder: %v, want ErrConflict", err)
	}
	for _, s := range []string{".candidates/b", ".candidates/a.example", ".probe/x", ".note", ".deep/er/y"} {
		v := mustWrite(t, r.Sibling(s), s, "")
		if got, rv := mustRead(t, r.Sibling(s)); got != s || rv != v {
			t.Fatalf("%s: read %q, %q; want version %q", s, got, rv, v)
		}
	}
	if info, err := os.Stat(r.path + ".candidates"); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the candidates' folder: %v, %v; want mode 0755", info, err)
	}
	for prefix, want := range map[string][]string{
		"":                {".candidates/a.example", ".candidates/b", ".deep/er/y", ".note", ".probe/x"},
		".candidates/":    {".candidates/a.example", ".candidates/b"},
		".candidates/a":   {".candidates/a.example"},
		".members/":       nil,
		".deep/er/":       {".deep/er/y"},
		".candidates/b/c": nil,
	} {
		got, err := r.List(t.Context(), prefix)
		if prefix == ".candidates/b/c" {
			if err == nil {
				t.Errorf("list %q: %q, want an error: a file stands where the folder would", prefix, got)
			}
			continue
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("list %q: %q, %v; want %q", prefix, got, err, want)
		}
	}
	for _, s := range []string{"", "/../../x", ".a/../x", ".a//x", ".a/", ".a b", ".a/x.flock", "é"} {
		if _, err := r.Sibling(s).Write(t.Context(), []byte("x"), ""); err == nil || errors.Is(err, tenure.ErrConflict) {
			t.Errorf("sibling %q: %v, want a refusal", s, err)
		}
		if _, _, err := r.Sibling(s).Read(t.Context()); err == nil || errors.Is(err, tenure.ErrNotExist) {
			t.Errorf("sibling %q: read: %v, want a refusal", s, err)
		}
	}
	if err := os.Symlink(t.TempDir(), r.path+".members"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Sibling(".members/x").Write(t.Context(), []byte("x"), ""); err == nil || !strings.Contains(err.Error(), "not a folder") {
		t.Errorf("sibling through a symbolic link: %v, want a refusal", err)
	}
}

func TestContext(t *testing.T) {
	r := fresh(t)
	v := mustWrite(t, r, "a", "")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, rerr := r.Read(ended)
	_, werr := r.Write(ended, []byte("b"), v)
	_, lerr := r.List(ended, "")
	_, oerr := Open(ended, r.path)
	for op, err := range map[string]error{"read": rerr, "write": werr, "list": lerr, "open": oerr} {
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), r.path) {
			t.Errorf("%s: %v, want Canceled and the path", op, err)
		}
	}

	// Another holds the flock: the wait ends with the context, says why, and
	// writes nothing later.
	held, err := acquire(t.Context(), r.path+lockSuffix)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel2 := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel2()
	if _, err := r.Write(short, []byte("b"), v); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("write under another's flock: %v, want DeadlineExceeded", err)
	}
	_, err = r.swap(short, []byte("b"), v)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "nothing was written") || !strings.Contains(err.Error(), "another process held") {
		t.Errorf("write under another's flock: %v", err)
	}
	if got, _ := mustRead(t, r); got != "a" {
		t.Errorf("read under another's flock: %q", got)
	}
	held.release()
	r.waitForCalls()
	mustWrite(t, mustOpen(t, r.path), "c", v)
}

// TestHangingDisk: a call returns when its context ends, though the system call
// under it does not, and calls do not pile up behind it.
func TestHangingDisk(t *testing.T) {
	r := fresh(t)
	hang := make(chan struct{})
	var hung sync.WaitGroup
	defer func(f func(string) (string, bool, error)) { fileSystem = f }(fileSystem)
	real := fileSystem
	fileSystem = func(path string) (string, bool, error) {
		hung.Done()
		<-hang
		return real(path)
	}
	hung.Add(maxCalls)
	for i := range maxCalls + 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, _, err := r.Read(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "hang") {
			t.Fatalf("read %d: %v, want DeadlineExceeded", i, err)
		}
	}
	hung.Wait()
	close(hang)
	r.waitForCalls()
}

// waitForCalls returns when no call is under way any more, and lets none begin.
func (r *Register) waitForCalls() {
	for range maxCalls {
		r.calls <- struct{}{}
	}
}

// TestReplacedLockFile: a writer whose lock file is deleted under it must not
// overwrite what the holder of the new one wrote.
func TestReplacedLockFile(t *testing.T) {
	r := fresh(t)
	v := mustWrite(t, r, "a", "")
	l, err := acquire(t.Context(), r.path+lockSuffix)
	if err != nil {
		t.Fatal(err)
	}
	defer l.release()
	now, err := r.load()
	if err != nil {
		t.Fatal(err)
	}
	temp, err := r.writeTemp([]byte("late"), &now, l)
	if err != nil {
		t.Fatal(err)
	}
	defer temp.Close()
	os.Remove(r.path + lockSuffix)
	mustWrite(t, mustOpen(t, r.path), "b", v)
	if err := r.publish(t.Context(), temp, l); err == nil || !strings.Contains(err.Error(), "deleted or replaced") {
		t.Errorf("publish: %v, want a refusal", err)
	}
	if got, _ := mustRead(t, r); got != "b" {
		t.Errorf("the record is %q, want b", got)
	}
}

func TestLeftoversAreRemoved(t *testing.T) {
	r := fresh(t)
	mustWrite(t, r, "a", "")
	keep := []string{"x.lock.0123.tenure-tmp", "y.lock.0123456789abcdef.tenure-tmp", "x.lock.0123456789abcdef.txt"}
	for _, name := range append(keep, "x.lock.0123456789abcdef.tenure-tmp") {
		if err := os.WriteFile(filepath.Join(filepath.Dir(r.path), name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, v := mustRead(t, r)
	mustWrite(t, mustOpen(t, r.path), "b", v)
	want := append(keep, "x.lock", "x.lock.flock")
	slices.Sort(want)
	if got := names(t, r); !slices.Equal(got, want) {
		t.Errorf("the folder holds %q, want %q", got, want)
	}
}

func TestModeIsKept(t *testing.T) {
	r := fresh(t)
	mustWrite(t, r, "a", "")
	if err := os.Chmod(r.path, 0o640); err != nil {
		t.Fatal(err)
	}
	_, v := mustRead(t, r)
	mustWrite(t, r, "b", v)
	if info, err := os.Stat(r.path); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v; want 0640", info.Mode(), err)
	}
}

func TestConcurrentCounter(t *testing.T) {
	const writers, each = 4, 25
	r := fresh(t)
	mustWrite(t, r, "0", "")
	var wg sync.WaitGroup
	for range writers {
		mine := mustOpen(t, r.path)
		wg.Go(func() {
			for done := 0; done < each; {
				b, v, err := mine.Read(t.Context())
				n, _ := strconv.Atoi(string(b))
				if err == nil {
					_, err = mine.Write(t.Context(), []byte(strconv.Itoa(n+1)), v)
				}
				switch {
				case err == nil:
					done++
				case !errors.Is(err, tenure.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got, _ := mustRead(t, r); got != strconv.Itoa(writers*each) {
		t.Fatalf("counter is %s, want %d", got, writers*each)
	}
}

func BenchmarkRead(b *testing.B) {
	r, err := Open(b.Context(), filepath.Join(b.TempDir(), "x.lock"))
	if err == nil {
		_, err = r.Write(b.Context(), make([]byte, 600), "")
	}
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := r.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package file

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"tenure.dev"
	"tenure.dev/internal/suffix"
)

var (
	_ tenure.Register  = (*Register)(nil)
	_ tenure.Siblinger = (*Register)(nil)
	_ tenure.Lister    = (*Register)(nil)
)

const (
	lockSuffix = ".flock"
	tempSuffix = ".tenure-tmp"
	// maxCalls bounds the calls, and so the threads, that a disk which hangs
	// can hold back.
	maxCalls = 8
)

// A Register is a register in a file. Its methods are safe for concurrent use
// by any number of goroutines and processes of one host.
type Register struct {
	path string
	// root is the path of the register that this one is a sibling of, or path.
	root string
	// refused, if set, is what every call returns.
	refused error
	cleaned atomic.Bool
	calls   chan struct{}
}

func init() {
	tenure.RegisterScheme("file", tenure.Driver{Open: openURL})
}

func openURL(ctx context.Context, u *tenure.URL) (tenure.Register, error) {
	switch {
	case u.Host != "":
		return nil, fmt.Errorf("%w: the path is relative, or names a host: write it absolute, with three slashes: file:///%s%s", tenure.ErrURL, u.Host, u.Path)
	case u.Path == "" || strings.HasSuffix(u.Path, "/"):
		return nil, fmt.Errorf("%w: it names no file: write file:///var/lib/tenure/nightly.lock", tenure.ErrURL)
	}
	return Open(ctx, u.Path)
}

// Open returns the register in the file at path, which must be absolute. It
// blocks for a look at the folder and the file, at most until ctx ends, and
// changes nothing: the file need not exist, its folder must. Opening a path
// twice is fine.
func Open(ctx context.Context, path string) (*Register, error) {
	clean := filepath.Clean(path)
	switch {
	case !filepath.IsAbs(path):
		return nil, fmt.Errorf("file: %s is relative: write an absolute path", path)
	case strings.HasSuffix(clean, lockSuffix) || strings.HasSuffix(clean, tempSuffix):
		return nil, fmt.Errorf("file: %s: names that end in %s or %s are the driver's own: choose another", path, lockSuffix, tempSuffix)
	}
	r := newRegister(clean, clean)
	_, err := r.call(ctx, "open", func() (result, error) {
		if err := r.checkFolder(); err != nil {
			return result{}, err
		}
		info, err := os.Lstat(r.path)
		if err == nil {
			err = checkRegular(r.path, info)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return result{}, err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func newRegister(path, root string) *Register {
	return &Register{path: path, root: root, calls: make(chan struct{}, maxCalls)}
}

// String returns the register's URL.
func (r *Register) String() string { return "file://" + r.path }

func checkSuffix(s string) error {
	elements := strings.Split(s, "/")
	switch {
	case !suffix.Valid(s) || slices.Contains(elements[1:], ".") || slices.Contains(elements[1:], ".."):
		return fmt.Errorf("file: %w", suffix.Refuse(s))
	case strings.HasSuffix(s, lockSuffix) || strings.HasSuffix(s, tempSuffix):
		return fmt.Errorf("file: the suffix %q is the driver's own: choose another", s)
	}
	return nil
}

// Sibling implements [tenure.Siblinger]. It does not block. If suffix is not
// allowed, every call on the sibling says so.
func (r *Register) Sibling(suffix string) tenure.Register {
	s := newRegister(r.path+suffix, r.root)
	s.refused = r.refused
	if err := checkSuffix(suffix); err != nil && s.refused == nil {
		s.refused = err
	}
	return s
}

type result struct {
	value   []byte
	version tenure.Version
	list    []string
}

// call runs f until ctx ends. A system call on a disk that hangs cannot be
// interrupted: f is then left behind, and ends when the disk answers.
func (r *Register) call(ctx context.Context, op string, f func() (result, error)) (result, error) {
	fail := func(err error) (result, error) {
		return result{}, fmt.Errorf("file: %s %s: %w", op, r.path, err)
	}
	if r.refused != nil {
		return fail(r.refused)
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	select {
	case r.calls <- struct{}{}:
	case <-ctx.Done():
		return fail(fmt.Errorf("%w while %d earlier calls were under way: the disk may hang", ctx.Err(), maxCalls))
	}
	type answer struct {
		result
		err error
	}
	done := make(chan answer, 1)
	go func() {
		res, err := f()
		<-r.calls
		done <- answer{res, err}
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done():
		// What waits for the flock ends with ctx too, and knows more.
		grace := time.NewTimer(20 * time.Millisecond)
		defer grace.Stop()
		select {
		case a = <-done:
		case <-grace.C:
			late := ctx.Err()
			if op == "write" {
				late = happened(late)
			}
			return fail(fmt.Errorf("%w before the disk had answered: it may hang; look at the kernel's log", late))
		}
	}
	if a.err != nil {
		_, err := fail(explain(a.err))
		return a.result, err
	}
	return a.result, nil
}

// Read implements [tenure.Register]. It blocks for a small read from the disk,
// at most until ctx ends, and takes no lock: a record is replaced by rename, so
// what is opened is whole.
func (r *Register) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	res, err := r.call(ctx, "read", func() (result, error) {
		if err := r.checkFolder(); err != nil {
			return result{}, err
		}
		s, err := r.load()
		if err == nil && s.tooLarge {
			return result{version: s.version}, fmt.Errorf("%d bytes: %w", s.stat.Size, tenure.ErrValueTooLarge)
		}
		return result{value: s.value, version: s.version}, err
	})
	return res.value, res.version, err
}

// A state is what one opened file held.
type state struct {
	value    []byte
	version  tenure.Version
	stat     syscall.Stat_t
	tooLarge bool
}

// maxReplaced is how often a read begins anew because the file was replaced
// under it.
const maxReplaced = 100

// load reads the record; the error is ErrNotExist if there is none.
func (r *Register) load() (state, error) {
	for range maxReplaced {
		if s, replaced, err := r.loadOnce(); !replaced {
			return s, err
		}
	}
	return state{}, fmt.Errorf("the file was replaced %d times while it was read", maxReplaced)
}

// loadOnce reads the record, and reports whether it was replaced or edited
// meanwhile: that changes the times of the file that was opened, so its state
// would be given a version that it never had.
func (r *Register) loadOnce() (s state, replaced bool, err error) {
	// Without O_NONBLOCK, opening a fifo would wait for its writer.
	f, err := os.OpenFile(r.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, false, tenure.ErrNotExist
	case err != nil:
		if info, lerr := os.Lstat(r.path); lerr == nil && checkRegular(r.path, info) != nil {
			err = checkRegular(r.path, info)
		}
		return s, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = checkRegular(r.path, info)
	}
	if err != nil {
		return s, false, err
	}
	s.stat = *info.Sys().(*syscall.Stat_t)
	b, err := io.ReadAll(io.LimitReader(f, tenure.MaxRecordSize+1))
	if err != nil {
		return s, false, err
	}
	if info, err = f.Stat(); err != nil {
		return s, false, err
	}
	s.version = makeVersion(&s.stat, b)
	after := info.Sys().(*syscall.Stat_t)
	if after.Nlink == 0 || makeVersion(after, b) != s.version {
		return s, true, nil
	}
	if s.tooLarge = len(b) > tenure.MaxRecordSize; !s.tooLarge {
		s.value = b
	}
	return s, false, nil
}

// makeVersion names a state. No part is enough alone: inode numbers are used
// again, the kernel's clock is coarse and may step back, people set mtimes.
func makeVersion(st *syscall.Stat_t, content []byte) tenure.Version {
	sum := sha256.Sum256(content[:min(len(content), tenure.MaxRecordSize+1)])
	mtime, ctime := times(st)
	return tenure.Version(fmt.Sprintf("%x-%x-%x-%x-%x", st.Ino, mtime, ctime, st.Size, sum[:12]))
}

// List implements [tenure.Lister]. It blocks for reading a folder, at most
// until ctx ends.
func (r *Register) List(ctx context.Context, prefix string) ([]string, error) {
	res, err := r.call(ctx, "list", func() (result, error) {
		if err := r.checkFolder(); err != nil {
			return result{}, err
		}
		var list []string
		err := r.list(prefix[:strings.LastIndexByte(prefix, '/')+1], prefix, &list)
		slices.Sort(list)
		return result{list: list}, err
	})
	return res.list, err
}

// list adds the siblings in the folder that the suffix within, empty or ending
// in a slash, stands for, and in the folders below.
func (r *Register) list(within, prefix string, into *[]string) error {
	folder, start := filepath.Dir(r.path), filepath.Base(r.path)
	if within != "" {
		folder, start = filepath.Clean(r.path+within), ""
	}
	if within != "" && checkSuffix(strings.TrimSuffix(within, "/")) != nil {
		return checkSuffix(strings.TrimSuffix(within, "/"))
	}
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), start)
		suffix := within + name
		if !ok || name == "" || !strings.HasPrefix(suffix, prefix) || checkSuffix(suffix) != nil {
			continue
		}
		switch {
		case e.Type().IsRegular():
			*into = append(*into, suffix)
		case e.IsDir():
			if err := r.list(suffix+"/", prefix, into); err != nil {
				return err
			}
		}
	}
	return nil
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A lock is an exclusive flock(2) on a file that is never replaced. The kernel
// gives it up when the process dies, however it dies.
type lock struct{ f *os.File }

const (
	firstWait   = 500 * time.Microsecond
	longestWait = 20 * time.Millisecond
)

// acquire blocks until the lock is held or ctx ends. It asks again and again
// instead of waiting in the kernel, where ctx could not end the wait.
func acquire(ctx context.Context, path string) (*lock, error) {
	wait := firstWait
	for {
		l, err := tryAcquire(path)
		if l != nil || err != nil {
			return l, err
		}
		timer := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w while another process held %s: if it is frozen, kill it", ctx.Err(), path)
		}
		wait = min(2*wait, longestWait)
	}
}

// tryAcquire returns nil and no error if another holds the lock.
func tryAcquire(path string) (*lock, error) {
	// Not at once with O_CREATE: in a folder like /tmp the kernel refuses that
	// for other users' files.
	flags := os.O_RDWR | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = os.OpenFile(path, flags|os.O_CREATE, 0o644)
	}
	if err != nil {
		return nil, err
	}
	l := &lock{f}
	info, err := f.Stat()
	if err == nil {
		err = checkRegular(path, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		f.Close()
		return nil, nil
	case err != nil:
		f.Close()
		return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
	}
	if l.stillHeld() != nil {
		// Deleted between the open and the flock: others lock the new file.
		l.release()
		return nil, nil
	}
	return l, nil
}

// stillHeld returns an error if somebody has deleted or replaced the lock file.
func (l *lock) stillHeld() error {
	mine, err := l.f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(l.f.Name())
	if err == nil && os.SameFile(mine, there) {
		return nil
	}
	return fmt.Errorf("somebody has deleted or replaced %s, which must not be done while candidates run", l.f.Name())
}

func (l *lock) release() {
	// Not by closing alone: a child between fork and exec shares the file.
	syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN)
	l.f.Close()
}

// highest returns the highest modification time that a record was given, in
// nanoseconds, 0 if it is not known.
func (l *lock) highest() int64 {
	b := make([]byte, 32)
	n, _ := l.f.ReadAt(b, 0)
	t, err := strconv.ParseInt(strings.TrimSpace(string(b[:n])), 10, 64)
	if err != nil || t < 0 {
		return 0
	}
	return t
}

func (l *lock) setHighest(t int64) error {
	// Of one length always, so that one write replaces it.
	_, err := l.f.WriteAt(fmt.Appendf(nil, "%020d\n", t), 0)
	return err
}

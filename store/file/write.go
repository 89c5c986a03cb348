// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package file

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"tenure.dev"
)

// Write implements [tenure.Register]. It blocks for the flock and two syncs, at
// most until ctx ends. Its errors say whether the record was left as it was or
// may have been written.
func (r *Register) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	value = append([]byte{}, value...) // a call left behind must not see the caller's changes
	res, err := r.call(ctx, "write", func() (result, error) {
		version, err := r.swap(ctx, value, old)
		return result{version: version}, err
	})
	if err != nil {
		return "", err
	}
	return res.version, nil
}

func (r *Register) swap(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	if err := r.makeFolder(); err != nil {
		return "", unchanged(err)
	}
	l, err := acquire(ctx, r.path+lockSuffix)
	if err != nil {
		return "", unchanged(err)
	}
	defer l.release()
	if !r.cleaned.Swap(true) {
		r.removeLeftovers()
	}

	now, err := r.load()
	switch {
	case errors.Is(err, tenure.ErrNotExist):
		if old != "" {
			return "", fmt.Errorf("%w: the file is gone", tenure.ErrConflict)
		}
	case err != nil:
		return "", unchanged(err)
	case now.version != old:
		return "", tenure.ErrConflict
	}

	temp, err := r.writeTemp(value, &now, l)
	if err != nil {
		return "", unchanged(err)
	}
	defer temp.Close()
	if err := r.publish(ctx, temp, l); err != nil {
		os.Remove(temp.Name())
		return "", unchanged(err)
	}
	// From here on the record may be the new one, whatever fails.
	info, err := temp.Stat()
	if err != nil {
		return "", happened(err)
	}
	if err := syncFolder(filepath.Dir(r.path)); err != nil {
		return "", happened(err)
	}
	return makeVersion(info.Sys().(*syscall.Stat_t), value), nil
}

// writeTemp writes the value to a new file beside the record and syncs it. It
// leaves nothing behind if it fails.
func (r *Register) writeTemp(value []byte, now *state, l *lock) (temp *os.File, err error) {
	var random [8]byte
	rand.Read(random[:])
	name := r.path + "." + hex.EncodeToString(random[:]) + tempSuffix
	temp, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			temp.Close()
			os.Remove(name)
		}
	}()
	if _, err = temp.Write(value); err != nil {
		return nil, err
	}
	if now.version != "" {
		// Only root may give a file away; for others the mode has to do.
		_ = temp.Chown(int(now.stat.Uid), int(now.stat.Gid))
		if err = temp.Chmod(fs.FileMode(now.stat.Mode & 0o777)); err != nil {
			return nil, err
		}
	}
	if err = stamp(temp, now, l); err != nil {
		return nil, err
	}
	return temp, temp.Sync()
}

// stamp gives the file a modification time above every one that the driver has
// given before. The highest is kept in the lock file, since the record may be
// gone; and the record's counts too, since the lock file may be new.
func stamp(temp *os.File, now *state, l *lock) error {
	const day = int64(24 * time.Hour)
	clock := time.Now().UnixNano()
	highest := l.highest()
	if now.version != "" {
		// What a person has dated into the far future is left out: the file
		// system may be able to hold nothing above it.
		if mtime, _ := times(&now.stat); mtime < clock+day {
			highest = max(highest, mtime)
		}
	}
	next := max(clock, highest+1)
	// File systems round down, to as much as two seconds.
	for _, step := range []int64{0, 100, 1000, int64(time.Millisecond), int64(time.Second), 2 * int64(time.Second), 4 * int64(time.Second)} {
		if step > 0 {
			next = highest + step
		}
		if err := os.Chtimes(temp.Name(), time.Time{}, time.Unix(0, next)); err != nil {
			return err
		}
		info, err := temp.Stat()
		if err != nil {
			return err
		}
		if got := info.ModTime().UnixNano(); got > highest {
			return l.setHighest(got)
		}
	}
	return fmt.Errorf("the file system holds no time above %v, which %s was given: set the clock right, stop all candidates and empty %s",
		time.Unix(0, highest), temp.Name(), l.f.Name())
}

// publish makes the temporary file the record.
func (r *Register) publish(ctx context.Context, temp *os.File, l *lock) error {
	// The caller has left if ctx is over: better no write than a late one.
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.stillHeld(); err != nil {
		return err
	}
	return os.Rename(temp.Name(), r.path)
}

// removeLeftovers removes the temporary files of processes that were killed.
// The lock is held: none of them is in use. One that cannot be removed does no
// harm.
func (r *Register) removeLeftovers() {
	entries, err := os.ReadDir(filepath.Dir(r.path))
	if err != nil {
		return
	}
	for _, e := range entries {
		random, ok := strings.CutPrefix(e.Name(), filepath.Base(r.path)+".")
		random, ok2 := strings.CutSuffix(random, tempSuffix)
		if b, err := hex.DecodeString(random); ok && ok2 && err == nil && len(b) == 8 && e.Type().IsRegular() {
			os.Remove(filepath.Join(filepath.Dir(r.path), e.Name()))
		}
	}
}

// makeFolder makes the folders between the root's and a sibling's file.
func (r *Register) makeFolder() error {
	if err := r.checkFolder(); err != nil {
		return err
	}
	root, folder := filepath.Dir(r.root), filepath.Dir(r.path)
	var missing []string
	for f := folder; f != root; f = filepath.Dir(f) {
		missing = append(missing, f)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		err := os.Mkdir(missing[i], 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = syncFolder(filepath.Dir(missing[i]))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"tenure.dev"
)

// fileSystem names the file system that path lies on, and says whether other
// hosts may see it too. Tests replace it.
var fileSystem = statfs

// checkRegular returns an error, with what to do, if a record must not be kept
// in the file that info describes.
func checkRegular(path string, info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link: a rename would replace the link, not its target; name the target itself", path)
	case mode.IsDir():
		return fmt.Errorf("%s is a folder: name a file in it, such as %s", path, filepath.Join(path, "nightly.lock"))
	default:
		return fmt.Errorf("%s is a device, pipe or socket (%v): name a regular file, or one that does not exist yet", path, mode)
	}
}

// checkFolder returns an error, with what to do, if no record may be kept in
// the register's folder. The folders of siblings may be missing.
func (r *Register) checkFolder() error {
	root := filepath.Dir(r.root)
	info, err := os.Stat(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the folder %s does not exist: make it with mkdir -p %s, owned by the user that the candidates run as (%w)", root, root, err)
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder: a lock needs a folder to lie in", root)
	}
	for f := filepath.Dir(r.path); f != root; f = filepath.Dir(f) {
		info, err := os.Lstat(f)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%s is not a folder, but siblings of the lock are kept in it: move it away", f)
		}
	}
	name, remote, err := fileSystem(root)
	if err != nil {
		return err
	}
	if remote {
		return fmt.Errorf("%s lies on %s, which is, or may be, shared between hosts or not atomic: flock and rename are not to be trusted there;"+
			" use a local file system for candidates on one host, or another store, such as etcd://, s3:// or gs://, for several", root, name)
	}
	return nil
}

// unchanged marks an error of a write that did not happen.
func unchanged(err error) error {
	return fmt.Errorf("nothing was written: %w", err)
}

// happened marks an error of a write that may have happened.
func happened(err error) error {
	return fmt.Errorf("the record may have been written: %w", err)
}

// explain adds what to do to an error of the operating system.
func explain(err error) error {
	var what string
	var errno syscall.Errno
	switch {
	case errors.Is(err, tenure.ErrNotExist), errors.Is(err, tenure.ErrConflict), errors.Is(err, tenure.ErrValueTooLarge):
		return err
	case errors.Is(err, fs.ErrPermission):
		what = fmt.Sprintf("give user %d read and write on the folder, on the file and on the %s file beside it", os.Geteuid(), lockSuffix)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		what = "the disk or quota is full: free some space, or move the lock"
	case errors.Is(err, syscall.EROFS):
		what = "the file system is read-only: remount it writable, or move the lock"
	case errors.Is(err, syscall.ELOOP):
		what = "a part of the path is a symbolic link that leads nowhere or in a circle: name the target itself"
	case errors.Is(err, syscall.ENOTDIR):
		what = "a part of the path is not a folder: correct the path"
	case errors.Is(err, syscall.ENAMETOOLONG):
		what = "choose a shorter name: the driver adds up to 40 characters to it"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		what = "too many files are open: raise the limit (ulimit -n), or find what leaks them"
	case errors.Is(err, syscall.EIO):
		what = "the disk fails: look at the kernel's log"
	case errors.As(err, &errno) && !errors.Is(err, fs.ErrNotExist):
		what = "look at the folder and at the kernel's log"
	default:
		return err
	}
	return fmt.Errorf("%w; %s", err, what)
}

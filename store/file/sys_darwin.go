// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"io/fs"
	"strings"
	"syscall"
)

// mountLocal is MNT_LOCAL of statfs(2): the file system is of this host.
const mountLocal = 0x1000

func statfs(path string) (name string, remote bool, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return "", false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	var b strings.Builder
	for _, c := range s.Fstypename {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	name = b.String()
	fuse := strings.Contains(strings.ToLower(name), "fuse")
	return name, s.Flags&mountLocal == 0 || fuse, nil
}

func times(st *syscall.Stat_t) (mtime, ctime int64) {
	return syscall.TimespecToNsec(st.Mtimespec), syscall.TimespecToNsec(st.Ctimespec)
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"io/fs"
	"syscall"
)

// sharedFileSystems are those, by the f_type that statfs(2) tells, on which
// other hosts, or a program of anybody's, may have a hand.
var sharedFileSystems = map[uint32]string{
	0x00006969: "NFS",
	0x0000517b: "SMB",
	0xff534d42: "CIFS",
	0xfe534d42: "SMB2",
	0x0000564c: "NCP",
	0x01021997: "9p",
	0x65735546: "FUSE",
	0x00c36400: "Ceph",
	0x5346414f: "AFS",
	0x6b414653: "AFS",
	0x73757245: "Coda",
	0x01161970: "GFS2",
	0x7461636f: "OCFS2",
	0x0bd00bd0: "Lustre",
	0x47504653: "GPFS",
	0x19830326: "BeeGFS",
	0x20030528: "OrangeFS",
	0xaad7aaea: "PanFS",
	0xbeefdead: "StorNext",
	0x61636673: "ACFS",
	0x786f4256: "a VirtualBox share",
	0xbacbacbc: "a VMware share",
	0x7c7c6013: "a Parallels share",
}

func statfs(path string) (name string, remote bool, err error) {
	var s syscall.Statfs_t
	for {
		err = syscall.Statfs(path, &s)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		return "", false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	// The field's width and sign differ between architectures.
	name, remote = sharedFileSystems[uint32(s.Type)]
	return name, remote, nil
}

func times(st *syscall.Stat_t) (mtime, ctime int64) {
	return syscall.TimespecToNsec(st.Mtim), syscall.TimespecToNsec(st.Ctim)
}

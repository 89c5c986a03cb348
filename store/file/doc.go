// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package file keeps a register in a file, for copies of a program on one host.
//
// One host only: the file must lie on a local file system that all candidates
// see as the same one. Containers share a lock only if they share the folder;
// a file in a container's own layer is a lock of that container alone.
//
// # URL
//
//	file:///var/lib/tenure/nightly.lock
//
// The path is absolute and its folder exists. There are no parameters of its
// own. Beside the file the driver keeps nightly.lock.flock, which must never be
// deleted while a candidate runs, and siblings such as
// nightly.lock.candidates/host-1, whose folder the first write makes.
//
// # Guarantees
//
// Linearizable between all processes of the host. A write takes an exclusive
// flock(2), compares, writes a temporary file in the same folder, syncs it,
// renames it over the record and syncs the folder. A process killed in between
// leaves the old record or the new one, whole, and at worst a temporary file
// that the next process removes. A full or read-only disk leaves the old one.
//
// The version is made of the inode number, the time of its last change, its
// size, a hash of the content, and a modification time that the driver sets
// above all that it has set before, so that it does not repeat when a record is
// deleted and made again, restored from a backup or edited in place. People may
// do all that while candidates run; a record edited in place can be read half
// written, which is a record that cannot be read, not a lock that is free.
//
// A symbolic link, a folder, a device and a network file system are refused:
// there the swap would not be atomic, or not seen by everybody. On tmpfs the
// record is lost with a reboot, as are all its candidates.
//
// A process that is frozen (SIGSTOP) within the few milliseconds of a write
// keeps the flock: the others cannot write until it goes on or is killed.
// Nobody leads wrongly meanwhile.
//
// # Permissions
//
// Read and write on the folder and on the files; reading alone is enough to
// look at a lock. A write keeps the mode of the record that it replaces, and
// its owner where it may. Candidates under several users need a folder that
// all of them may write, without the sticky bit, and a .flock file that all
// may write.
//
// # Cost
//
// A read opens, stats and reads one small file. A write does so too, and syncs
// a file and a folder: a few milliseconds on most disks. Calls return when
// their context ends, even if the disk hangs; at most eight calls of one
// register are under way at once.
package file

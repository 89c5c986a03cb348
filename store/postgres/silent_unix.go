// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package postgres

import (
	"net"
	"syscall"
)

// silent reports whether the connection is open and nothing is there to be
// read. It does not block and takes nothing away.
func silent(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var peeked error
	// Not raw.Read: it would wait for a read that is under way, and the client
	// library leaves one behind when a write was slow.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, peeked = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return err == nil && (peeked == syscall.EAGAIN || peeked == syscall.EWOULDBLOCK)
}

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
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, peeked = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	})
	return err == nil && (peeked == syscall.EAGAIN || peeked == syscall.EWOULDBLOCK)
}

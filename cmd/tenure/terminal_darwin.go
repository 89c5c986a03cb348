// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"syscall"
	"unsafe"
)

// hasTermios reports whether a file has the settings of a terminal.
func hasTermios(fd uintptr) bool {
	var t syscall.Termios
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGETA, uintptr(unsafe.Pointer(&t)))
	return errno == 0
}

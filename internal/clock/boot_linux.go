// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of linux/time.h: monotonic, and it counts
// the time that the machine was suspended, which Go's own clock does not.
const clockBoottime = 7

func boottime(mono time.Duration) time.Duration {
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return mono
	}
	return time.Duration(ts.Nano())
}

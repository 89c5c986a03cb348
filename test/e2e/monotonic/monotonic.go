// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package monotonic reads a clock that all processes of a machine share.
package monotonic

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now reads the machine's monotonic clock, which is the same in all
// processes and which nobody sets.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // it is there
	}
	return time.Duration(ts.Nano())
}

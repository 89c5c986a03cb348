// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import "syscall"

// deathSignal has the kernel kill a child when its parent ends in any way.
func deathSignal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

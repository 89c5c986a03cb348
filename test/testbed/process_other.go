// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package testbed

import "syscall"

// deathSignal: only Linux has it; the real servers are run on Linux.
func deathSignal() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// stopped: nothing tells; the signal was sent.
func stopped(int) bool { return true }

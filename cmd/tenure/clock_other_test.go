// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"syscall"
	"time"
)

// monotonic returns nanoseconds of a clock that is one for all processes of the
// machine: here the wall clock has to do.
func monotonic() int64 { return time.Now().UnixNano() }

// dieWithTest is what the system cannot do here.
func dieWithTest() *syscall.SysProcAttr { return nil }

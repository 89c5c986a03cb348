// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package kube

import (
	"os/exec"
	"syscall"
)

// killGroup has the end of the command's context kill what it has started too.
func killGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

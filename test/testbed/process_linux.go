// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// deathSignal has the kernel kill a child when its parent ends in any way.
func deathSignal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stopped says whether each thread of a process stands still or is gone.
func stopped(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return true // the pattern is fixed
	}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // a thread that ended
		}
		// The state follows the name, which may hold anything, in brackets.
		if _, state, ok := bytes.Cut(b[max(0, bytes.LastIndexByte(b, ')')):], []byte(") ")); ok && !bytes.ContainsAny(state[:1], "TtZX") {
			return false
		}
	}
	return true
}

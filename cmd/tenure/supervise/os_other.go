// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package supervise

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// openFiles is where this process' open files are listed.
const openFiles = "/dev/fd"

// Containment returns "" when every descendant of a command can be found and
// killed, or says what is missing here and what follows from it. It does not
// block.
func Containment() string {
	return "this system has no child subreapers and no parent-death signal: descendants that leave the command's process group are not killed, " +
		"and if tenure and its watchdog are both killed the command lives on"
}

// bootNow returns nanoseconds of a clock that also counts suspend: here the
// wall clock, with alarm guarding against it being set back.
func bootNow() int64 { return time.Now().UnixNano() }

// alarm is a timer on bootNow's clock. It fires when that clock or the
// monotonic one says so, whichever comes first.
type alarm struct {
	at     atomic.Int64
	latest atomic.Pointer[time.Time]
	c      chan struct{}
}

func newAlarm() (*alarm, error) {
	a := &alarm{c: make(chan struct{}, 1)}
	go func() {
		for range time.Tick(10 * time.Millisecond) {
			if !a.due() {
				continue
			}
			select {
			case a.c <- struct{}{}:
			default:
			}
		}
	}()
	return a, nil
}

// set moves the alarm to an instant, which may have passed.
func (a *alarm) set(at int64) {
	now := time.Now()
	latest := now.Add(time.Duration(at - now.UnixNano()))
	a.at.Store(at)
	a.latest.Store(&latest)
}

// due reports whether the instant has passed.
func (a *alarm) due() bool {
	latest := a.latest.Load()
	return latest != nil && (bootNow() >= a.at.Load() || !time.Now().Before(*latest))
}

func becomeSubreaper() error { return nil }

func selfPath() (string, error) { return os.Executable() }

func setName(string) {}

func raisePriority() {
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, os.Getpid(), -10)
}

// watchdogAttr gives the watchdog its own session.
func watchdogAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// childAttr puts the command in its own session and process group.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func rehearse() {}

// killDescendants kills the process group, all that can be found here, until it
// is empty.
func killDescendants(group int, reap func() bool, _ func(int, error)) int {
	for group != 0 {
		err := syscall.Kill(-group, syscall.SIGKILL)
		reap()
		if err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return 0
}

// sweep kills the process group that a lost watchdog left.
func sweep(group int, survivor func(int, error)) {
	killDescendants(group, func() bool { return false }, survivor)
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// Numbers of the kernel's interface that package syscall does not have for
// every architecture.
const (
	clockBoottime       = 7
	prSetChildSubreaper = 36
	prGetChildSubreaper = 37
	timerAbsolute       = 1
)

// openFiles is where this process' open files are listed.
const openFiles = "/proc/self/fd"

// niceness is what the watchdog asks for, to be scheduled in time on a busy
// machine. Without the right to it, it goes without.
const niceness = -10

// Containment returns "" when every descendant of a command can be found and
// killed, or says what is missing here and what follows from it. It does not
// block.
func Containment() string {
	var on int32
	if err := prctl(prGetChildSubreaper, uintptr(unsafe.Pointer(&on))); err != nil {
		return fmt.Sprintf("this kernel has no child subreapers (%v): descendants that leave the command's process group are not killed", err)
	}
	if self, err := readProcess(os.Getpid()); err != nil {
		return fmt.Sprintf("/proc cannot be read (%v): descendants that leave the command's process group are not killed", err)
	} else if self.ppid != os.Getppid() {
		return "/proc belongs to another process namespace: descendants that leave the command's process group are not killed"
	}
	return ""
}

// bootNow returns nanoseconds of the clock that also counts suspend. All
// processes of the machine read the same.
func bootNow() int64 {
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		// Not on any kernel that runs this program. No clock, no term.
		panic("supervise: CLOCK_BOOTTIME: " + errno.Error())
	}
	return ts.Nano()
}

// alarm is a timer on bootNow's clock: it fires right after a suspend that its
// instant fell into.
type alarm struct {
	fd int
	at int64
	c  chan struct{}
}

func newAlarm() (*alarm, error) {
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockBoottime, syscall.O_CLOEXEC, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("timerfd_create", errno)
	}
	a := &alarm{fd: int(fd), c: make(chan struct{}, 1)}
	go func() {
		var count [8]byte
		for {
			if _, err := syscall.Read(a.fd, count[:]); err != nil && err != syscall.EINTR {
				panic("supervise: the watchdog's timer: " + err.Error()) // ends the command, fail closed
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
	a.at = at
	spec := struct{ interval, value syscall.Timespec }{value: syscall.NsecToTimespec(max(at, 1))}
	_, _, errno := syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, uintptr(a.fd), timerAbsolute, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	if errno != 0 {
		panic("supervise: the watchdog's timer: " + errno.Error())
	}
}

// due reports whether the instant has passed.
func (a *alarm) due() bool { return bootNow() >= a.at }

func prctl(option int, arg uintptr) error {
	if _, _, errno := syscall.Syscall6(syscall.SYS_PRCTL, uintptr(option), arg, 0, 0, 0, 0); errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	return nil
}

// becomeSubreaper makes orphaned descendants this process' children.
func becomeSubreaper() error { return prctl(prSetChildSubreaper, 1) }

// selfPath is this very program, also after the file was replaced.
func selfPath() (string, error) {
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err == nil {
		return self, nil
	}
	return os.Executable()
}

// setName names the process for tools that find processes by name.
func setName(name string) {
	_ = os.WriteFile("/proc/self/comm", []byte(name), 0)
}

// raisePriority gives every thread the watchdog's niceness; later threads
// inherit it. Where there are automatic task groups, a thread's niceness counts
// within its session only, and the session has one too.
func raisePriority() {
	_ = os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(niceness)), 0)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		// The system call answers 20 - niceness.
		if p, err := syscall.Getpriority(syscall.PRIO_PROCESS, tid); err == nil && 20-p > niceness {
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, tid, niceness)
		}
	}
}

// watchdogAttr gives the watchdog its own session, and has the kernel wake a
// stopped one when tenure dies. It does so too when the thread that starts it
// ends before that, which harms nobody.
func watchdogAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGCONT}
}

// childAttr puts the command in its own process group and ties it to the
// calling thread. The session of its own is for the kernel's automatic task
// groups, which share out the processors by session: the watchdog would
// compete from within the command's.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package supervise

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// Watchdog is to be called first in main. In a process that [Start] started as
// a watchdog it does that work and never returns; in any other it returns at
// once.
func Watchdog() {
	if os.Getenv(marker) == "" {
		return
	}
	if !isPipe(fdControl) || !isPipe(fdReport) {
		fmt.Fprintf(os.Stderr, "tenure: %s is set, but only tenure itself may set it: unset it\n", marker)
		os.Exit(2)
	}
	keepFiles()
	// The kernel kills the command when the *thread* that started it ends. This
	// one ends with the process.
	runtime.LockOSThread()
	setName("watchdog")
	shrugOff()
	w := &watchdog{
		report:   os.NewFile(fdReport, "report"),
		control:  make(chan message),
		children: make(chan os.Signal, 1),
		started:  make(chan start, 1),
	}
	signal.Notify(w.children, syscall.SIGCHLD)
	_ = becomeSubreaper() // Containment tells

	orders := bufio.NewReader(os.NewFile(fdControl, "control"))
	line, err := orders.ReadBytes('\n')
	if err != nil {
		os.Exit(0) // tenure died, nothing runs
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		fmt.Fprintln(os.Stderr, "tenure: the watchdog's order:", err)
		os.Exit(1)
	}
	if w.alarm, err = newAlarm(); err != nil {
		fmt.Fprintln(os.Stderr, "tenure: the watchdog's timer:", err)
		os.Exit(1)
	}
	w.killAt = o.KillAt
	w.alarm.set(w.killAt)
	go w.listen(orders)
	go w.loop()
	w.started <- execute(o)
	select {}
}

// shrugOff takes the signals that are meant for tenure or for the command, or
// that would end or stop the watchdog. They are caught, not ignored: the command would
// inherit that. What this process was started to ignore (nohup) stays ignored,
// and the command inherits it.
func shrugOff() {
	drop := make(chan os.Signal, 1)
	for _, s := range []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE,
	} {
		if !signal.Ignored(s) {
			signal.Notify(drop, s)
		}
	}
}

// keepFiles keeps the pipes from the command, and with them whatever else this
// process was started with: what the command gets does not depend on that.
func keepFiles() {
	syscall.CloseOnExec(fdControl)
	syscall.CloseOnExec(fdReport)
	open, _ := os.ReadDir(openFiles)
	for _, f := range open {
		if fd, err := strconv.Atoi(f.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

func isPipe(fd int) bool {
	var st syscall.Stat_t
	return syscall.Fstat(fd, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFIFO
}

// start is what became of the exec.
type start struct {
	pid int
	err error
}

// execute starts the command on the calling thread. It blocks as long as the
// exec does, with a network file system for long.
func execute(o order) start {
	if bootNow() >= o.KillAt {
		return start{err: ErrDeadline}
	}
	pid, err := syscall.ForkExec(string(o.Path), strs(o.Argv), &syscall.ProcAttr{
		Dir:   string(o.Dir),
		Env:   strs(o.Env),
		Files: []uintptr{0, 1, 2},
		Sys:   childAttr(),
	})
	return start{pid, err}
}

// watchdog is the state of the loop. One goroutine signals and reaps, so a
// process id is never signalled after it was given back.
type watchdog struct {
	report   *os.File
	control  chan message // closed when tenure is gone
	children chan os.Signal
	started  chan start
	alarm    *alarm
	killAt   int64

	child    int                        // the main process, 0 before its exec
	statuses map[int]syscall.WaitStatus // of what was reaped before that
	status   syscall.WaitStatus
	reaped   bool // the main process
}

// listen reads tenure's messages. What it does not understand ends the command:
// it cannot come from the program that this one is.
func (w *watchdog) listen(r *bufio.Reader) {
	defer close(w.control)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		m, err := decode(line)
		if err != nil {
			return
		}
		w.control <- m
	}
}

func (w *watchdog) loop() {
	for {
		select {
		case s := <-w.started:
			w.begin(s)
		case <-w.children:
			if w.child != 0 {
				w.reap()
			}
		case m, ok := <-w.control:
			if !ok {
				w.finish(Killed)
			}
			w.obey(m)
		case <-w.alarm.c:
			w.hearRest()
			if w.alarm.due() {
				w.finish(Deadline)
			}
		}
		if w.reaped {
			w.finish(Exited)
		}
	}
}

// begin takes note of the exec, and ends the watchdog if it failed.
func (w *watchdog) begin(s start) {
	var errno syscall.Errno
	switch {
	case s.err == nil:
		w.child = s.pid
		w.say(msgStarted, int64(s.pid))
		// Not earlier: the command would inherit it.
		raisePriority()
		rehearse()
		w.reap()
	case errors.As(s.err, &errno):
		w.say(msgFailed, int64(errno))
		os.Exit(0)
	default:
		w.say(msgEnded, int64(Deadline), int64(syscall.SIGKILL), 0)
		os.Exit(0)
	}
}

// hearRest takes the messages that wait, for the alarm may have been put off.
func (w *watchdog) hearRest() {
	for {
		select {
		case m, ok := <-w.control:
			if !ok {
				w.finish(Killed)
			}
			w.obey(m)
		default:
			return
		}
	}
}

func (w *watchdog) obey(m message) {
	switch m.word {
	case msgDeadline:
		w.killAt = max(w.killAt, m.args[0])
		w.alarm.set(w.killAt)
	case msgSignal:
		if w.child != 0 && !w.reaped {
			_ = syscall.Kill(-w.child, syscall.Signal(m.args[0]))
		}
	}
}

// reap takes the statuses of the dead, of orphans too, and reports whether
// there are any children left.
func (w *watchdog) reap() (left bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return false
		case pid == 0:
			return true
		case w.child == 0:
			if w.statuses == nil {
				w.statuses = map[int]syscall.WaitStatus{}
			}
			w.statuses[pid] = status
		case pid == w.child:
			w.reaped, w.status = true, status
		}
	}
}

// finish kills everything, reports it once it is dead, and exits.
func (w *watchdog) finish(why Cause) {
	leftovers := w.killAll()
	for w.child == 0 {
		// The exec is under way. It has been killed, but it may fork yet.
		select {
		case s := <-w.started:
			if s.err != nil {
				w.say(msgEnded, int64(why), int64(syscall.SIGKILL), 0)
				os.Exit(0)
			}
			w.child = s.pid
			w.status, w.reaped = w.statuses[s.pid]
		case <-time.After(time.Millisecond):
		}
		w.killAll()
	}
	if why != Exited {
		leftovers = 0
	}
	w.say(msgEnded, int64(why), int64(w.status), int64(leftovers))
	os.Exit(0)
}

// killAll returns when there is nothing left to kill or to reap, and how many
// it killed one by one.
func (w *watchdog) killAll() int {
	// The group in one go, for speed; then one by one what is not in it.
	if w.child != 0 && !w.reaped {
		_ = syscall.Kill(-w.child, syscall.SIGKILL)
	}
	return killDescendants(w.child, w.reap, func(pid int, err error) {
		var errno syscall.Errno
		errors.As(err, &errno)
		w.say(msgSurvivor, int64(pid), int64(errno))
	})
}

// say tells tenure. If that is gone nobody needs to know.
func (w *watchdog) say(word string, args ...int64) {
	_, _ = w.report.Write(encode(word, args...))
}

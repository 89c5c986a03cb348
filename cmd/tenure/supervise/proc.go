// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package supervise

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A Proc is a running command under its watchdog. All methods are safe for
// concurrent use.
type Proc struct {
	log      *slog.Logger
	margin   time.Duration
	watchdog *exec.Cmd
	control  *os.File        // to the watchdog; never blocks
	raw      syscall.RawConn // of control
	started  chan struct{}   // closed when the command runs
	done     chan struct{}   // closed when everything is dead
	pid      int             // the main process, once started is closed
	failure  error           // why it could not be executed, once done is closed
	result   Result          // once done is closed

	mu     sync.Mutex
	killAt int64       // on bootNow's clock
	backup *time.Timer // kills for a watchdog that does not
	ending Cause       // set by the first call of end
}

// watchdogs are this process' own children that a sweep must spare.
var watchdogs = struct {
	sync.Mutex
	pids map[int]bool
}{pids: map[int]bool{}}

// launch starts a watchdog, which waits for its order.
func launch(spec Spec, o order) (*Proc, error) {
	if err := becomeSubreaper(); err != nil {
		spec.Log.Debug("not a child subreaper", "error", err)
	}
	cmd, err := watchdogCommand(spec)
	if err != nil {
		return nil, err
	}
	orders, control, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer orders.Close()
	reports, reporting, err := os.Pipe()
	if err != nil {
		control.Close()
		return nil, err
	}
	defer reporting.Close()
	cmd.ExtraFiles = []*os.File{fdControl - 3: orders, fdReport - 3: reporting}
	p := &Proc{
		log: spec.Log, margin: spec.Margin, watchdog: cmd, control: control,
		started: make(chan struct{}), done: make(chan struct{}), killAt: o.KillAt,
	}
	if p.raw, err = control.SyscallConn(); err == nil {
		watchdogs.Lock()
		if err = cmd.Start(); err == nil {
			watchdogs.pids[cmd.Process.Pid] = true
		}
		watchdogs.Unlock()
	}
	if err != nil {
		control.Close()
		reports.Close()
		return nil, err
	}
	p.mu.Lock()
	p.backup = time.AfterFunc(time.Until(spec.Deadline)-p.margin/2, func() { p.end(Deadline) })
	p.mu.Unlock()
	go p.follow(reports)
	return p, nil
}

// watchdogCommand is this program, as a watchdog.
func watchdogCommand(spec Spec) (*exec.Cmd, error) {
	self, err := selfPath()
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{
		Path:        self,
		Args:        []string{"watchdog", "of", strconv.Itoa(os.Getpid())},
		Env:         append(os.Environ(), marker+"=1"),
		SysProcAttr: watchdogAttr(),
	}
	// A nil *os.File in an interface would not be nil.
	if spec.Stdin != nil {
		cmd.Stdin = spec.Stdin
	}
	if spec.Stdout != nil {
		cmd.Stdout = spec.Stdout
	}
	if spec.Stderr != nil {
		cmd.Stderr = spec.Stderr
	}
	return cmd, nil
}

// sendOrder may block while the watchdog reads; end unblocks it. Its errors
// show as the watchdog's end.
func (p *Proc) sendOrder(o order) {
	line, err := json.Marshal(o)
	if err == nil {
		_, err = p.control.Write(append(line, '\n'))
	}
	if err != nil {
		p.log.Debug("the watchdog took no order", "error", err)
		p.Kill()
	}
}

// send hands a message to the watchdog, or fails; it never waits.
func (p *Proc) send(word string, args ...int64) error {
	b := encode(word, args...)
	var err error
	rawErr := p.raw.Write(func(fd uintptr) bool {
		_, err = syscall.Write(int(fd), b)
		return true
	})
	return errors.Join(rawErr, err)
}

// Pid returns the process id of the command's main process, which is that of
// its process group too.
func (p *Proc) Pid() int { return p.pid }

// Extend tells that the term was renewed and now ends at deadline, a time with
// a monotonic reading as in [Spec]. It never blocks, and takes microseconds. A
// deadline that is not later than the last one changes nothing, nor does one
// that comes after the command was killed. If it cannot be handed over, the
// command is killed at the old one.
func (p *Proc) Extend(deadline time.Time) {
	at := killInstant(deadline, p.margin)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending != 0 || at <= p.killAt {
		return
	}
	// Whoever stopped the watchdog has disarmed it; a renewal is a good time to
	// put that right.
	p.watchdog.Process.Signal(syscall.SIGCONT)
	if err := p.send(msgDeadline, at); err != nil {
		if !errors.Is(err, syscall.EPIPE) { // it is no longer needed
			p.log.Warn("the watchdog did not take the new deadline", "error", err)
		}
		return
	}
	p.killAt = at
	p.backup.Reset(time.Until(deadline) - p.margin/2)
}

// Signal sends sig to the command's process group. It does not block. The error
// is os.ErrProcessDone when the command is over or being killed.
func (p *Proc) Signal(sig os.Signal) error {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("supervise: cannot send %v: not a signal of this system", sig)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
	}
	if p.ending != 0 {
		return os.ErrProcessDone
	}
	if err := p.send(msgSignal, int64(s)); err != nil {
		return fmt.Errorf("supervise: the watchdog did not take signal %v: %w", s, err)
	}
	return nil
}

// Kill kills the main process and every descendant, also those that left its
// process group or session. It does not block, use [Proc.Wait] to know them
// dead, and may be called again.
func (p *Proc) Kill() { p.end(Killed) }

// end makes the watchdog kill everything, and does without it if it does not
// react: when it is gone the kernel kills the main process, follow the rest.
func (p *Proc) end(why Cause) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending != 0 {
		return
	}
	p.ending = why
	p.backup.Stop()
	p.control.Close() // the same as tenure's death
	p.watchdog.Process.Signal(syscall.SIGCONT)
	time.AfterFunc(p.margin/4, func() { p.watchdog.Process.Kill() })
}

// Done returns a channel that is closed when Wait would not block.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Wait blocks until the main process and all its descendants are dead, and says
// how it ended. It may be called any number of times.
func (p *Proc) Wait() Result {
	<-p.done
	return p.result
}

// follow hears the watchdog out, sees it dead, and after it everything else.
func (p *Proc) follow(reports *os.File) {
	defer close(p.done)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = p.watchdog.Wait() // what it reported counts, not its status
		// The pipe has ended too, unless a process that has not come as far as
		// its exec holds a copy.
		reports.SetReadDeadline(time.Now().Add(time.Second))
	}()
	ended := p.hear(bufio.NewScanner(reports))
	<-gone
	reports.Close()
	watchdogs.Lock()
	delete(watchdogs.pids, p.watchdog.Process.Pid)
	watchdogs.Unlock()

	p.mu.Lock()
	why := p.ending
	p.ending = Killed // nothing more to send or to signal
	p.backup.Stop()
	p.control.Close()
	p.mu.Unlock()
	if ended != nil {
		p.result = resultOf(ended.args, why)
		if p.result.Leftovers > 0 {
			p.log.Warn("the command left processes running; they were killed", "count", p.result.Leftovers)
		}
		return
	}
	if p.failure != nil {
		return
	}
	if why == 0 {
		why = WatchdogLost
		p.log.Error("the watchdog was killed; killing the command", "watchdog", p.watchdog.Process.Pid)
	}
	sweep(p.pid, p.survivor)
	p.result = Result{Cause: why, Code: -1, Signal: syscall.SIGKILL}
}

// hear handles the watchdog's messages and returns the last, if it says that
// everything is dead.
func (p *Proc) hear(lines *bufio.Scanner) *message {
	for lines.Scan() {
		m, err := decode(lines.Text())
		if err != nil {
			p.log.Error("the watchdog cannot be understood", "error", err)
			continue
		}
		switch m.word {
		case msgStarted:
			p.pid = int(m.args[0])
			close(p.started)
		case msgFailed:
			p.failure = syscall.Errno(m.args[0])
		case msgSurvivor:
			p.survivor(int(m.args[0]), syscall.Errno(m.args[1]))
		case msgEnded:
			return &m
		}
	}
	return nil
}

func (p *Proc) survivor(pid int, err error) {
	if err == nil || errors.Is(err, syscall.Errno(0)) {
		err = errors.New("in uninterruptible sleep")
	}
	p.log.Error("a process of the command does not die; waiting for it", "pid", pid, "error", err)
}

// resultOf reads what msgEnded carries. The watchdog cannot tell why it was
// told to kill; why can.
func resultOf(args []int64, why Cause) Result {
	r := Result{Cause: Cause(args[0]), Leftovers: int(args[2])}
	if r.Cause == Killed && why != 0 {
		r.Cause = why
	}
	status := syscall.WaitStatus(args[1])
	if status.Signaled() {
		r.Code, r.Signal = -1, status.Signal()
	} else {
		r.Code = status.ExitStatus()
	}
	return r
}

// startFailure says why the command never ran. done is closed.
func (p *Proc) startFailure(name string) error {
	switch {
	case p.failure != nil:
		return &StartError{Name: name, Err: p.failure}
	case p.result.Cause == Deadline:
		return ErrDeadline
	}
	return ErrWatchdog
}

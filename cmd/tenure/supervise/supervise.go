// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// DefaultMargin is the margin of a [Spec] that names none.
const DefaultMargin = 500 * time.Millisecond

var (
	// ErrDeadline is returned by [Start] when the deadline less the margin has
	// passed before the command could be started. Nothing runs.
	ErrDeadline = errors.New("supervise: the term is over, or too short to start the command in")

	// ErrWatchdog is returned by [Start] when the watchdog could not be started
	// or died before the command ran. Nothing runs.
	ErrWatchdog = errors.New("supervise: the watchdog did not start the command")
)

// Spec says what to run, and until when.
type Spec struct {
	// Argv is the command and its arguments. A name without a slash is looked
	// up in PATH.
	Argv []string

	// Env is the command's whole environment, as os.Environ gives it; nil
	// means this process' own. Of several entries for a name the last counts.
	Env []string

	// Dir is the command's working directory; empty means this process' own.
	Dir string

	// Stdin, Stdout and Stderr are inherited by the command; nil is the null
	// device.
	Stdin, Stdout, Stderr *os.File

	// Deadline is the term's end, made with Add from a time.Now, so that it
	// carries a monotonic reading.
	Deadline time.Time

	// Margin is how long before the deadline the command is killed; zero means
	// DefaultMargin. It pays for the watchdog to be scheduled, to find the
	// descendants (some 10 µs for each process on the machine, a few times
	// over), and for them to die.
	Margin time.Duration

	// Log is told what goes wrong; nil means slog.Default().
	Log *slog.Logger
}

// A StartError says that the command could not be executed. Err tells why:
// errors.Is(err, fs.ErrNotExist) or exec.ErrNotFound, fs.ErrPermission, ENOEXEC.
type StartError struct {
	Name string
	Err  error
}

// Error says which command, why, and what to look at.
func (e *StartError) Error() string {
	hint := "check that it is an executable file for this machine"
	if e.ExitCode() == 127 {
		hint = "check the name, PATH, and the interpreter that a script names in its first line"
	}
	return fmt.Sprintf("start %q: %v: %s", e.Name, e.Err, hint)
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// ExitCode returns what shells exit with: 127 for a command that is not there,
// 126 for one that cannot be executed.
func (e *StartError) ExitCode() int {
	if errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrNotExist) {
		return 127
	}
	return 126
}

// Cause is why a command ended.
type Cause int

const (
	// Exited means that its main process ended without [Proc.Kill], by exiting or by a
	// signal, be it one that [Proc.Signal] sent.
	Exited Cause = iota + 1
	// Deadline means that the deadline less the margin passed and it was killed.
	Deadline
	// Killed means that Proc.Kill killed it.
	Killed
	// WatchdogLost means that somebody killed the watchdog; the command was killed. How
	// its main process ended is not known.
	WatchdogLost
)

// String returns the cause in words.
func (c Cause) String() string {
	switch c {
	case Exited:
		return "exited"
	case Deadline:
		return "killed at the deadline"
	case Killed:
		return "killed"
	case WatchdogLost:
		return "killed after the watchdog was lost"
	}
	return fmt.Sprintf("Cause(%d)", int(c))
}

// Result says how a command ended.
type Result struct {
	Cause  Cause
	Code   int            // the main process' exit code, -1 if a signal ended it
	Signal syscall.Signal // the signal that ended it, 0 if it exited

	// Leftovers is how many descendants were still alive when the main process
	// had exited, and were killed.
	Leftovers int
}

// ExitCode returns the exit code as shells give it: 128+n for signal n.
func (r Result) ExitCode() int {
	if r.Signal != 0 {
		return 128 + int(r.Signal)
	}
	return r.Code
}

// Start runs the command under a watchdog. It blocks until the command has been
// executed (nil) or could not be: [*StartError], [ErrDeadline], [ErrWatchdog],
// or ctx's error when that ends first. After an error nothing runs any more.
// ctx bounds the start only; its end later does nothing. Start makes this process a child
// subreaper and is safe for concurrent use. The program's main must begin with
// [Watchdog].
//
// If the watchdog is lost, Start's caller kills all children of its process
// that are of another session and not watchdogs, so it should have none.
func Start(ctx context.Context, spec Spec) (*Proc, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	order, err := spec.order()
	if err != nil {
		return nil, err
	}
	p, err := launch(spec, order)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWatchdog, err)
	}
	detach := context.AfterFunc(ctx, p.Kill)
	p.sendOrder(order)
	select {
	case <-p.started:
	case <-p.done:
	}
	if !detach() {
		<-p.done
		return nil, ctx.Err()
	}
	select {
	case <-p.started:
		return p, nil
	default:
		return nil, p.startFailure(spec.Argv[0])
	}
}

// order checks the spec and makes of it what the watchdog is told.
func (s *Spec) order() (order, error) {
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return order{}, errors.New("supervise: no command to run: name one in Argv")
	}
	if s.Margin < 0 {
		return order{}, fmt.Errorf("supervise: the margin %v is negative: give how long before the deadline to kill", s.Margin)
	}
	if s.Margin == 0 {
		s.Margin = DefaultMargin
	}
	if s.Log == nil {
		s.Log = slog.Default()
	}
	path := s.Argv[0]
	if !strings.Contains(path, "/") {
		found, err := exec.LookPath(path)
		if err != nil {
			return order{}, &StartError{Name: path, Err: err}
		}
		path = found
	}
	if s.Dir != "" {
		if info, err := os.Stat(s.Dir); err != nil {
			return order{}, fmt.Errorf("supervise: the working directory: %w", err)
		} else if !info.IsDir() {
			return order{}, fmt.Errorf("supervise: the working directory %s is not a directory", s.Dir)
		}
	}
	env := s.Env
	if env == nil {
		env = os.Environ()
	}
	o := order{Path: []byte(path), Env: clean(env), Dir: []byte(s.Dir), KillAt: killInstant(s.Deadline, s.Margin)}
	for _, a := range s.Argv {
		o.Argv = append(o.Argv, []byte(a))
	}
	if o.KillAt <= bootNow() {
		return order{}, ErrDeadline
	}
	return o, nil
}

// killInstant returns when everything must be killed, on bootNow's clock. The
// wall clock counts too: it saw a suspend since the deadline was made, which
// the monotonic one slept through. bootNow is read first, so a pause in here
// makes the instant earlier.
func killInstant(deadline time.Time, margin time.Duration) int64 {
	const most = 10 * 365 * 24 * time.Hour // keeps the sum from overflowing
	boot, now := bootNow(), time.Now()
	left := min(deadline.Sub(now), deadline.Round(0).Sub(now.Round(0)), most)
	return boot + int64(max(left-margin, -most))
}

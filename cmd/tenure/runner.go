// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"tenure.dev"
	"tenure.dev/cmd/tenure/supervise"
)

// A runner runs the command in each term. What happens to it comes from three
// goroutines: the elector's (observe), the term's (work) and the signals'.
type runner struct {
	flags   *runFlags
	argv    []string
	lock    *tenure.Lock
	log     *slog.Logger
	files   stdio
	elector *tenure.Elector
	probed  probed
	margin  time.Duration
	cancel  context.CancelFunc // asks the elector to stop
	// contending is since when the elector runs.
	contending time.Time

	mu       sync.Mutex
	proc     *supervise.Proc
	working  bool // between the begin and the end of a term's work
	draining bool // the command has been asked to end
	killed   bool // by a second signal

	pending    []syscall.Signal // for the command that is being started
	stopSignal syscall.Signal   // the first that asked to stop
	stoppedAt  time.Time
	waitedOut  bool    // --wait ran out before a term
	began      bool    // a term has begun
	handedOver bool    // with --once
	ended      *ending // how the command ended, if run ends with it
	fatal      error   // why this copy may not contend
}

// ending is how the command ended.
type ending struct {
	code int
	err  error // why it could not be run; nil if it ran
}

const (
	restartFirst   = time.Second
	restartLongest = 30 * time.Second
	// sameSignal is how soon a second signal is still the first one.
	sameSignal = 100 * time.Millisecond
	// maxPending is how many signals wait for the command to be started.
	maxPending = 100
	// startTries is how often a watchdog that does not start is tried.
	startTries = 3
)

// observe takes the elector's events. It must not block.
func (r *runner) observe(ev tenure.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch ev.Kind {
	case tenure.EventRenewed:
		if r.proc != nil {
			r.proc.Extend(ev.Deadline)
		}
	case tenure.EventEnded:
		if r.proc != nil && othersMayLead(ev.Err) {
			r.proc.Kill()
		}
		if r.ended != nil {
			r.cancel() // see finish
		}
	case tenure.EventRefused:
		if r.refusal(ev.Err) {
			r.fatal = ev.Err
			r.cancel()
		}
	default:
	}
}

// othersMayLead reports whether a term ended with somebody else in the lock, or
// with nobody in it: then there is no time left for the command to drain. In
// all other cases others wait until the term's deadline is past.
func othersMayLead(cause error) bool {
	var lost *tenure.LostError
	if !errors.As(cause, &lost) {
		return false
	}
	if lost.Holder != "" {
		stopper := tenure.Record{HolderIdentity: lost.Holder}
		return !stopper.Stopper()
	}
	return errors.Is(cause, tenure.ErrNoLeader)
}

// refusal reports whether an elector that does not contend should give up.
// Others' settings are looked at before the start, and once more by the elector
// at its first announcement, for copies that were started together. If one with
// different settings comes later, it is that one that is wrong, and this one
// goes on trying.
func (r *runner) refusal(err error) bool {
	early := time.Since(r.contending) < 5*time.Second
	return errors.Is(err, tenure.ErrImplausibleEpoch) || early && errors.Is(err, tenure.ErrSettingsDiffer)
}

// waitedEnough ends a run that does not lead in time.
func (r *runner) waitedEnough() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.began {
		r.waitedOut = true
		r.cancel()
	}
}

// work is one term: it returns when the command and all that it started are
// dead, since then the lock may be released.
func (r *runner) work(ctx context.Context, term *tenure.Term) error {
	if !r.beginWork() {
		return nil
	}
	defer r.endWork()
	failures := 0
	for wait := restartFirst; ; wait = min(2*wait, restartLongest) {
		begin := time.Now()
		end := r.command(ctx, term)
		switch {
		case ctx.Err() != nil:
			r.afterTerm(ctx, end)
			return nil
		case end.byItself() && !r.flags.restart:
			return r.finish(ctx, end.ending())
		case end.err != nil && !r.flags.restart && !errors.Is(end.err, supervise.ErrDeadline):
			if failures++; end.final() || failures >= startTries {
				return r.finish(ctx, end.ending())
			}
		case end.result.Cause == supervise.WatchdogLost && !r.flags.restart:
			return r.finish(ctx, end.ending())
		}
		if time.Since(begin) > restartLongest {
			wait = restartFirst
		}
		r.log.Info("starting the command again", "after", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			r.afterTerm(ctx, nil)
			return nil
		}
	}
}

func (r *runner) beginWork() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waitedOut || r.ended != nil {
		return false
	}
	r.began, r.working, r.draining = true, true, false
	return true
}

func (r *runner) endWork() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.working, r.pending = false, nil
}

// finish ends the run: the command has ended by itself, or cannot be run. Also
// if the term is just being lost, the command is not run anywhere again: then
// the elector is asked to stop, once the term's end is known. Otherwise it stops
// because the work has ended, and its log says so.
func (r *runner) finish(ctx context.Context, e ending) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = &e
	if ctx.Err() != nil {
		r.cancel()
	}
	return nil
}

// afterTerm notes how the command ended, nil if none ran, after the term's
// context has.
func (r *runner) afterTerm(ctx context.Context, end *commandEnd) {
	cause := context.Cause(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if end != nil && end.err == nil && r.stopSignal != 0 {
		r.ended = &ending{code: end.result.ExitCode()}
	}
	if r.flags.once && errors.Is(cause, tenure.ErrHandover) {
		r.handedOver = true
		r.cancel()
	}
}

// commandEnd is the end of one command.
type commandEnd struct {
	err    error // it could not be started
	result supervise.Result
}

// byItself reports whether the command ran, and nobody here ended it.
func (e *commandEnd) byItself() bool {
	return e.err == nil && e.result.Cause == supervise.Exited
}

// final reports whether starting it again would be in vain.
func (e *commandEnd) final() bool {
	var start *supervise.StartError
	return errors.As(e.err, &start)
}

func (e *commandEnd) ending() ending {
	var start *supervise.StartError
	switch {
	case errors.As(e.err, &start):
		return ending{start.ExitCode(), e.err}
	case e.err != nil:
		return ending{exitFailed, e.err}
	case e.result.Cause == supervise.WatchdogLost:
		return ending{exitFailed, errors.New("the command's watchdog was killed, and with it the command")}
	default:
		return ending{code: e.result.ExitCode()}
	}
}

func (e *commandEnd) String() string {
	switch {
	case e.err != nil:
		return e.err.Error()
	case e.result.Signal != 0:
		return e.result.Cause.String() + ", signal " + e.result.Signal.String()
	default:
		return e.result.Cause.String() + ", code " + strconv.Itoa(e.result.Code)
	}
}

// command runs the command once, until it and all that it started are dead.
func (r *runner) command(ctx context.Context, term *tenure.Term) *commandEnd {
	proc, err := supervise.Start(ctx, supervise.Spec{
		Argv: r.argv, Env: r.environ(term),
		Stdin: r.files.in, Stdout: r.files.out, Stderr: r.files.err,
		Deadline: term.Deadline(), Margin: r.margin, Log: r.log,
	})
	if err != nil {
		if ctx.Err() == nil {
			r.log.Error("the command was not started", "error", err)
		}
		return &commandEnd{err: err}
	}
	r.attach(proc, term)
	defer r.detach()
	r.log.Info("the command is running", "pid", proc.Pid(), "epoch", term.Epoch())
	select {
	case <-proc.Done():
	case <-ctx.Done():
		stop := r.drain(ctx, proc)
		defer stop()
	}
	end := &commandEnd{result: proc.Wait()}
	r.log.Info("the command has ended", "how", end.String(), "epoch", term.Epoch())
	return end
}

func (r *runner) environ(term *tenure.Term) []string {
	return append(os.Environ(),
		"TENURE_LOCK="+r.lock.Name,
		"TENURE_IDENTITY="+r.elector.Status().Identity,
		"TENURE_EPOCH="+strconv.FormatInt(term.Epoch(), 10))
}

// attach makes proc the one that renewals and signals go to.
func (r *runner) attach(proc *supervise.Proc, term *tenure.Term) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc = proc
	proc.Extend(term.Deadline()) // renewals may have come while it was started
	for _, s := range r.pending {
		r.send(proc, s)
	}
	r.pending = nil
	if r.killed || !term.Valid() && othersMayLead(context.Cause(term.Context())) {
		proc.Kill()
	}
}

func (r *runner) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc = nil
}

// drain asks the command to end. After a voluntary end of the term it has the
// grace, while the term goes on being renewed; after a loss it has until the
// deadline less the margin, when the watchdog kills it. The function returned
// forgets the grace.
func (r *runner) drain(ctx context.Context, proc *supervise.Proc) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
	sig := syscall.SIGTERM
	cause := context.Cause(ctx)
	if r.stopSignal != 0 && errors.Is(cause, tenure.ErrStopped) {
		sig = r.stopSignal
	}
	r.log.Info("ending the command", "signal", sig.String(), "cause", cause)
	r.send(proc, sig)
	if !errors.Is(cause, tenure.ErrStopped) && !errors.Is(cause, tenure.ErrHandover) {
		return func() {}
	}
	grace := time.AfterFunc(r.flags.grace, func() {
		r.log.Warn("the command has not ended within the grace: killing it", "grace", r.flags.grace)
		proc.Kill()
	})
	return func() { grace.Stop() }
}

func (r *runner) send(proc *supervise.Proc, sig syscall.Signal) {
	if err := proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.log.Warn("the command was not sent a signal", "signal", sig.String(), "error", err)
	}
}

// watchSignals takes the signals to tenure until the function it returns is
// called. Those that tenure was started to ignore (nohup) stay ignored.
func (r *runner) watchSignals() (stop func()) {
	signals := make(chan os.Signal, 16)
	for _, s := range []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT,
		syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
	} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				r.signalled(s.(syscall.Signal))
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// signalled handles one signal to tenure.
func (r *runner) signalled(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch s {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT:
		r.stopAsked(s)
	case syscall.SIGHUP:
		if r.proc == nil && !r.working {
			r.stopAsked(s) // the terminal is gone, and nothing runs
			return
		}
		fallthrough
	default:
		switch {
		case r.proc != nil:
			r.send(r.proc, s)
		case r.working && len(r.pending) < maxPending:
			r.pending = append(r.pending, s)
		}
	}
}

// stopAsked stops for the first signal, and kills for the second.
func (r *runner) stopAsked(s syscall.Signal) {
	if r.stopSignal == 0 {
		r.log.Info("stopping", "signal", s.String())
		r.stopSignal, r.stoppedAt = s, time.Now()
		if r.draining && r.proc != nil {
			r.send(r.proc, s) // it had been asked by another's order
		}
		r.cancel()
		return
	}
	if s == r.stopSignal && time.Since(r.stoppedAt) < sameSignal {
		return // sent to this process and to its group, as timeout(1) does
	}
	r.killed = true
	if r.proc != nil {
		r.log.Warn("a second signal: killing the command", "signal", s.String())
		r.proc.Kill()
	}
	if !r.working {
		r.log.Warn("a second signal: not waiting for the lock to be released; if it is held, it expires", "signal", s.String())
		go func() {
			time.Sleep(100 * time.Millisecond) // for the log
			os.Exit(128 + int(s))
		}()
	}
}

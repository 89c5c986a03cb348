// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"tenure.dev"
	"tenure.dev/cmd/tenure/supervise"
)

type runFlags struct {
	lock     lockFlags
	identity string
	wait     time.Duration
	grace    time.Duration
	once     bool
	restart  bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run --lock URL [flags] -- COMMAND [ARGUMENTS]",
		Short: "Run a command while this copy leads, and in no other",
		Long: `Run contends for the lock, and runs the command while it leads. When the command ends by itself the lock is
released, and run exits with the command's status.

When the term cannot be kept the command gets TERM, and it and all that it started are killed before another
copy may lead, also if tenure itself is frozen or killed. Then run contends again. INT, TERM and QUIT to tenure
go to the command, which may take --grace to end; a second one kills it. Then the lock is released. HUP, USR1,
USR2 and WINCH are passed on.

The command finds TENURE_LOCK, TENURE_IDENTITY and TENURE_EPOCH in its environment. The epoch grows with each
term: give it to whatever the command writes to, to refuse older ones.

A command that ends by itself is done for this copy only: the next copy that waits runs it too. See --wait.`,
		Example: `  tenure run --lock file:///var/lib/tenure/server.lock -- /usr/local/bin/server --verbose

  # fail over within about 6 s, and start the command again if it ends
  tenure run --lock 'file:///var/lib/tenure/web.lock?ttl=5s' --restart -- ./server

  # a job that takes minutes, started by cron on each copy: those that do not lead within 5 s exit with 3 and do not
  # run it; the lock was made before, with tenure init
  tenure run --lock file:///var/lib/tenure/backup.lock --wait 5s -- ./backup`,
		RunE: a.action(func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd, args); err != nil {
				return err
			}
			return a.run(cmd.Context(), &f, args)
		}),
	}
	f.lock.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.identity, "identity", "", "this copy's `identity`, unique among all (default the host name and 8 random characters)")
	flags.DurationVar(&f.wait, "wait", 0, "exit with 3 if this copy does not lead within this time (default wait for ever)")
	flags.DurationVar(&f.grace, "grace", tenure.DefaultDrain, "how long the command may take to end when it is asked to")
	flags.BoolVar(&f.once, "once", false, "exit with 5 when leadership is lost or handed over, instead of contending again")
	flags.BoolVar(&f.restart, "restart", false, "start the command again when it ends, after 1s to 30s, while leading")
	return cmd
}

// check finds wrong use before anything is touched.
func (f *runFlags) check(cmd *cobra.Command, args []string) error {
	given := cmd.Flags().Changed
	dash := cmd.ArgsLenAtDash()
	switch {
	case len(args) > 0 && dash != 0:
		return wrongUse("%q stands before --: write tenure run --lock URL -- COMMAND [ARGUMENTS]", args[0])
	case len(args) == 0:
		return wrongUse("no command: write it after --, as in tenure run --lock URL -- COMMAND [ARGUMENTS]")
	case args[0] == "":
		return wrongUse("the command after -- is empty: name a program")
	case given("identity") && f.identity == "":
		return wrongUse("--identity is empty: each copy needs one of its own; leave the flag out for the host name and random characters")
	case given("wait") && f.wait <= 0:
		return wrongUse("--wait is %v: it must be longer than nothing", f.wait)
	case f.grace < 0:
		return wrongUse("--grace is %v: it cannot be negative", f.grace)
	}
	if _, err := exec.LookPath(args[0]); err != nil {
		return wrongUse("the command cannot be run: %w", err)
	}
	return nil
}

// run is the whole of `tenure run`.
func (a *app) run(ctx context.Context, f *runFlags, argv []string) error {
	lock, o, err := f.lock.open(ctx)
	if err != nil {
		return err
	}
	if f.identity != "" && o.Identity != "" && f.identity != o.Identity {
		return wrongUse("--identity is %q, and the URL's identity is %q: keep one", f.identity, o.Identity)
	}
	if f.identity != "" {
		o.Identity = f.identity
	}
	// That whoever read the log has gone is no reason to end. Caught, not
	// ignored: the command would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	lines := newLogWriter(a.err)
	defer lines.flush()
	r := &runner{flags: f, argv: argv, lock: lock, log: a.logger(lines), files: a.stdio, probed: newProbed()}
	o.Logger, o.Observe, o.Once = r.log, r.observe, f.once
	o.Drain = max(f.grace, time.Nanosecond) // zero would be the default
	if r.elector, err = tenure.New(o); err != nil {
		return &codedError{exitUse, err}
	}
	a.output = "text" // stdout is the command's from here on
	r.announce()
	return r.contend(ctx)
}

// announce says at start what will be done.
func (r *runner) announce() {
	s := r.elector.Status()
	d := s.Durations
	r.margin = killMargin(d.LeaseDuration)
	r.log.Info("contending", "lock", r.lock.Name, "identity", s.Identity, "command", r.argv[0],
		"ttl", d.LeaseDuration, "deadline", d.RenewDeadline, "renew", d.Period,
		"failover", d.Failover, "firstStart", d.FirstStart)
	if strings.HasPrefix(r.lock.Name, "file:") {
		r.log.Info("a lock in a file is for copies on this one host")
	}
	if text := missing(r.lock.Register); text != "" {
		r.log.Warn("this store keeps nothing beside the lock, or cannot list it", "missing", text)
	}
	if text := supervise.Containment(); text != "" {
		r.log.Warn("not everything that the command starts can be killed", "reason", text)
	}
}

// missing says what a run does without, where the store offers only the lock.
func missing(reg tenure.Register) string {
	_, beside := reg.(tenure.Siblinger)
	_, lists := reg.(tenure.Lister)
	var what []string
	if !beside {
		what = append(what, "the store's promises are not probed")
	}
	if !beside || !lists {
		what = append(what, "candidates are not listed", "their maxttl is not compared: give all copies the same")
	}
	return strings.Join(what, "; ")
}

// killMargin is how long before the term's deadline the command is killed. It
// must leave time after R, which is 0.65 D.
func killMargin(d time.Duration) time.Duration {
	return min(max(d/20, 200*time.Millisecond), supervise.DefaultMargin)
}

// contend probes the store, runs the election and returns how it ended.
func (r *runner) contend(parent context.Context) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	r.cancel = cancel
	stop := r.watchSignals()
	defer stop()
	if r.flags.wait > 0 {
		timer := time.AfterFunc(r.flags.wait, r.waitedEnough)
		defer timer.Stop()
	}
	err := r.prepare(ctx)
	if err == nil {
		r.contending = time.Now()
		err = r.elector.Run(ctx, r.work)
	}
	return r.outcome(err)
}

// prepare finds out whether the store can be trusted, and whether the live
// candidates agree with this one, before this one touches the lock. A store
// that does not answer is asked until it does.
func (r *runner) prepare(ctx context.Context) error {
	const first, longest = time.Second, 30 * time.Second
	for wait := first; ; wait = min(2*wait, longest) {
		err := r.probe(ctx)
		if err == nil {
			err = r.agree(ctx)
		}
		if err == nil || ctx.Err() != nil || !errors.Is(err, tenure.ErrCannotProbe) {
			return err
		}
		r.log.Warn("not contending yet: the store cannot be probed", "error", err, "after", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// probe finds out whether the store can be trusted, unless it did so lately.
func (r *runner) probe(ctx context.Context) error {
	beside, ok := r.lock.Register.(tenure.Siblinger)
	if !ok {
		return nil
	}
	if at, ok := r.probed.at(r.lock.Register, time.Now()); ok {
		r.log.Debug("the store passed the probe lately: not probing it again", "at", at)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := tenure.Probe(ctx, beside.Sibling(".probe/"+hostKey()), writeInterval(r.lock.Register)); err != nil {
		return fmt.Errorf("%s: %w", r.storeName(), err)
	}
	if err := r.probed.note(r.lock.Register, time.Now()); err != nil {
		r.log.Debug("that the store has passed the probe could not be noted", "error", err)
	}
	return nil
}

// storeName is the lock's name, and the store's where that says more.
func (r *runner) storeName() string {
	if namer, ok := r.lock.Register.(tenure.StoreNamer); ok && namer.StoreName() != "" {
		return fmt.Sprintf("%s (%s)", r.lock.Name, namer.StoreName())
	}
	return r.lock.Name
}

// agree compares settings with the live candidates. The elector does that too,
// but first it makes itself known: a copy with wrong settings would keep the
// others from contending.
func (r *runner) agree(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	all, err := tenure.Candidates(ctx, r.lock.Register)
	if err != nil {
		return fmt.Errorf("%w: %w", tenure.ErrCannotProbe, err)
	}
	own := r.elector.Status().Durations.MaxLeaseDuration
	now := time.Now()
	for _, c := range all {
		theirs := time.Duration(c.MaxLeaseDurationSeconds) * time.Second
		if c.Live(now) && c.State != tenure.StateEnded && theirs != own.Truncate(time.Second) {
			return fmt.Errorf("%w: %q, heard of %s, believes lease durations up to %v (maxttl), this copy up to %v; give all the same, and wait 3 minutes after ending the others",
				tenure.ErrSettingsDiffer, c.Identity, ago(now.Sub(c.Time)), theirs, own)
		}
	}
	return nil
}

// hostKey is this host's name as a register's suffix.
func hostKey() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' {
			return c
		}
		return '-'
	}, host)
}

// outcome is what the whole run comes to, from Run's error and what was noted.
func (r *runner) outcome(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lost *tenure.LostError
	switch {
	case r.fatal != nil:
		return &codedError{exitRefused, r.fatal}
	case r.ended != nil && r.ended.err != nil:
		return &codedError{r.ended.code, r.ended.err}
	case r.ended != nil:
		return r.silent(r.ended.code)
	case r.stopSignal != 0:
		return r.silent(128 + int(r.stopSignal))
	case r.waitedOut:
		return fail(exitNobody, "this copy does not lead after --wait %v; nothing was started", r.flags.wait)
	case r.handedOver:
		return fail(exitLost, "the lock was handed over, and --once was given")
	case errors.As(err, &lost), errors.Is(err, tenure.ErrRenewDeadline):
		return &codedError{exitLost, err}
	}
	return err
}

// silent ends with a code without a word: the command or whoever sent the
// signal knows why.
func (r *runner) silent(code int) error {
	r.log.Debug("exiting", slog.Int("code", code))
	if code == 0 {
		return nil
	}
	return &codedError{code: code}
}

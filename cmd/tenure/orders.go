// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tenure.dev"
)

// followPeriod is how often a command looks whether its order was carried out.
const followPeriod = 250 * time.Millisecond

// orderDoc is what handover and release print with -o json.
type orderDoc struct {
	lockDoc
	PreviousHolder string  `json:"previousHolder"`
	PreviousEpoch  int64   `json:"previousEpoch"`
	Done           bool    `json:"done"`
	WaitedSeconds  float64 `json:"waitedSeconds"`
}

// waitFlags say how long a command waits for its order to be carried out.
type waitFlags struct {
	timeout time.Duration
	noWait  bool
}

func (f *waitFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "how long to wait until it is carried out (default twice the lock's ttl)")
	cmd.Flags().BoolVar(&f.noWait, "no-wait", false, "do not wait until it is carried out")
}

func (f *waitFlags) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed("timeout")
	switch {
	case given && f.noWait:
		return wrongUse("--timeout and --no-wait contradict each other: keep one")
	case given && f.timeout <= 0:
		return wrongUse("--timeout is %v: it must be longer than nothing", f.timeout)
	}
	return nil
}

func (a *app) handoverCommand() *cobra.Command {
	var lock lockFlags
	var wait waitFlags
	var to string
	cmd := &cobra.Command{
		Use:   "handover --lock URL [--to IDENTITY]",
		Short: "Ask the leader to hand over to another candidate",
		Long: `Handover asks the leader to end its command and to release the lock to another candidate: the one named
with --to, or whoever comes first. The leader meets the order at its next renewal, drains, and releases.

It waits until another candidate leads; it exits with 3 if none does in time. The order stands all the same.
A paused lock is not handed over (4): nobody could take it.`,
		Example: `  tenure handover --lock file:///var/lib/tenure/nightly.lock
  tenure handover --lock file:///var/lib/tenure/nightly.lock --to host-2-1a2b3c4d`,
		Args: noArgs,
		RunE: a.action(func(cmd *cobra.Command, _ []string) error {
			if err := wait.check(cmd); err != nil {
				return err
			}
			if cmd.Flags().Changed("to") && to == "" {
				return wrongUse("--to is empty: name a candidate, or leave it out for any")
			}
			ctx, cancel := a.interrupted(cmd.Context())
			defer cancel()
			return a.order(ctx, &lock, &wait, to, func(v *tenure.View) bool { return v.State == tenure.RecordHeld })
		}),
	}
	lock.add(cmd)
	wait.add(cmd)
	cmd.Flags().StringVar(&to, "to", "", "`identity` of the candidate that shall lead (default any)")
	return cmd
}

// order asks the leader for the lock, and follows until done says that it was
// carried out; done is asked only once the holder's term is over.
func (a *app) order(ctx context.Context, f *lockFlags, w *waitFlags, to string, done func(*tenure.View) bool) error {
	lock, o, err := f.open(ctx)
	if err != nil {
		return err
	}
	if to == "" {
		to = tenure.AnyHolder
	}
	begin := time.Now()
	asked, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	given, err := tenure.Handover(asked, lock.Register, to)
	if err != nil {
		return err
	}
	was := given.Record
	ended := func(v *tenure.View) bool {
		over := v.Epoch() > was.Epoch || v.State == tenure.RecordReleased
		return over && done(v)
	}
	now, isDone := given, was.HolderIdentity == to
	if !isDone && !w.noWait {
		timeout := w.timeout
		if timeout == 0 {
			timeout = 2 * was.LeaseDuration
		}
		if was.HolderIdentity == "" {
			a.say("the lock (epoch %d) was given up for %s already; waiting up to %s", was.Epoch, to, timeout)
		} else {
			a.say("asked %s (epoch %d) for the lock; waiting up to %s", was.HolderIdentity, was.Epoch, timeout)
		}
		if now, isDone, err = follow(ctx, lock.Register, ended, timeout); err != nil {
			return err
		}
	}
	doc := orderDoc{describe(lock.Name, now, o, time.Now()), was.HolderIdentity, was.Epoch, isDone, seconds(time.Since(begin))}
	a.print(doc, func(b *strings.Builder) {
		switch {
		case was.HolderIdentity == to:
			fmt.Fprintf(b, "nothing was done: %s is %s already\n", lock.Name, doc.summary())
		case isDone:
			fmt.Fprintf(b, "%s is %s\n", lock.Name, doc.summary())
		default:
			fmt.Fprintf(b, "%s is still %s\n", lock.Name, doc.summary())
		}
	})
	if !isDone && !w.noWait {
		return fail(exitNobody, "not carried out in %.1fs; the order stands: the leader may be draining, or no other candidate runs%s",
			doc.WaitedSeconds, doc.lastSign(time.Now()))
	}
	return nil
}

// lastSign says when the holder last renewed, and what follows.
func (d *lockDoc) lastSign(now time.Time) string {
	if d.State != tenure.RecordHeld || d.RenewTime == nil {
		return ""
	}
	text := fmt.Sprintf(". %s last renewed %s by its clock; if it is dead or frozen, ", d.Holder, ago(now.Sub(*d.RenewTime)))
	if until := d.pausedUntil(now); until != "" {
		return text + "its lock expires, and after the pause, at " + until + ", a candidate takes it"
	}
	return text + fmt.Sprintf("its lock expires, and a candidate takes it by itself within %.1fs of that renewal", d.TakeoverSeconds)
}

// follow looks at a lock until done, and returns what it saw last.
func follow(ctx context.Context, reg tenure.Register, done func(*tenure.View) bool, timeout time.Duration) (*tenure.View, bool, error) {
	end := time.Now().Add(timeout)
	tick := time.NewTicker(followPeriod)
	defer tick.Stop()
	for {
		v, err := look(ctx, reg)
		if err != nil {
			return nil, false, fmt.Errorf("the order was given, but cannot be followed: %w", err)
		}
		if done(v) {
			return v, true, nil
		}
		if !time.Now().Before(end) {
			return v, false, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, false, fmt.Errorf("the order was given; not waiting until it is carried out: %w", ctx.Err())
		}
	}
}

func (a *app) pauseCommand() *cobra.Command {
	var lock lockFlags
	var length time.Duration
	var until, reason string
	cmd := &cobra.Command{
		Use:   "pause --lock URL --for DURATION | --until TIME",
		Short: "Keep everybody from taking a lock for a while",
		Long: `Pause keeps candidates from taking the lock: expired, released or deleted, until the time given or until
tenure resume. The leader goes on. If it dies meanwhile nobody takes over, and it cannot be asked to hand over
or release: resume first. A second pause replaces the first.`,
		Example: `  tenure pause --lock file:///var/lib/tenure/nightly.lock --for 1h --reason 'moving the disk'
  tenure pause --lock file:///var/lib/tenure/nightly.lock --until 2030-01-31T18:00:00Z`,
		Args: noArgs,
		RunE: a.action(func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.interrupted(cmd.Context())
			defer cancel()
			p := tenure.Pause{By: whoAmI(), Why: reason, At: time.Now()}
			var err error
			if p.Until, err = pauseEnd(cmd, length, until, p.At); err != nil {
				return err
			}
			return a.amend(ctx, &lock, func(ctx context.Context, reg tenure.Register) (*tenure.View, error) {
				before, err := tenure.Look(ctx, reg)
				if err != nil {
					return nil, err
				}
				v, err := tenure.PauseLock(ctx, reg, p)
				if err == nil {
					a.replaced(before.Record, p.At)
				}
				return v, err
			})
		}),
	}
	lock.add(cmd)
	cmd.Flags().DurationVar(&length, "for", 0, "how long, such as 1h; at most 24h")
	cmd.Flags().StringVar(&until, "until", "", "until when, an RFC 3339 `time` such as 2030-01-31T18:00:00Z; at most 24h away")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever looks at the status")
	return cmd
}

// replaced says which pause a new one took the place of, if it still lasted.
func (a *app) replaced(before *tenure.Record, now time.Time) {
	if before == nil || before.Paused == nil || !before.Paused.Until.After(now) {
		return
	}
	old, why := before.Paused, ""
	if old.Why != "" {
		why = ": " + old.Why
	}
	a.say("this replaces the pause until %s by %s%s", old.Until.Format(time.RFC3339), old.By, why)
}

func pauseEnd(cmd *cobra.Command, length time.Duration, until string, now time.Time) (time.Time, error) {
	byLength, byTime := cmd.Flags().Changed("for"), cmd.Flags().Changed("until")
	if byLength == byTime {
		return time.Time{}, wrongUse("give one of --for DURATION and --until TIME")
	}
	end, flag := now.Add(length), "--for"
	if byTime {
		var err error
		flag = "--until"
		if end, err = time.Parse(time.RFC3339, until); err != nil {
			return time.Time{}, wrongUse("--until %q is not an RFC 3339 time: write one such as %s", until, now.Add(time.Hour).UTC().Format(time.RFC3339))
		}
	}
	// The record keeps whole seconds.
	if left := end.Sub(now); left < time.Second || left > tenure.MaxPause {
		return time.Time{}, wrongUse("%s ends in %v: a pause lasts from 1s to %v", flag, left.Round(time.Second), tenure.MaxPause)
	}
	return end, nil
}

func (a *app) resumeCommand() *cobra.Command {
	var lock lockFlags
	cmd := &cobra.Command{
		Use:     "resume --lock URL",
		Short:   "End a pause",
		Example: `  tenure resume --lock file:///var/lib/tenure/nightly.lock`,
		Args:    noArgs,
		RunE: a.action(func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.interrupted(cmd.Context())
			defer cancel()
			return a.amend(ctx, &lock, tenure.ResumeLock)
		}),
	}
	lock.add(cmd)
	return cmd
}

// amend gives an order that needs no carrying out.
func (a *app) amend(ctx context.Context, f *lockFlags, give func(context.Context, tenure.Register) (*tenure.View, error)) error {
	lock, o, err := f.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	v, err := give(ctx, lock.Register)
	if err != nil {
		return err
	}
	doc := describe(lock.Name, v, o, time.Now())
	a.print(doc, func(b *strings.Builder) {
		state := "not paused"
		if p := doc.Paused; p != nil {
			state = "paused until " + p.Until.Format(time.RFC3339)
		}
		fmt.Fprintf(b, "%s is %s; %s\n", lock.Name, state, doc.summary())
	})
	return nil
}

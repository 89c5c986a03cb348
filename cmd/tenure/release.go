// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tenure.dev"
)

type releaseFlags struct {
	lock  lockFlags
	wait  waitFlags
	epoch int64
	dead  bool
	yes   bool
}

func (a *app) releaseCommand() *cobra.Command {
	var f releaseFlags
	cmd := &cobra.Command{
		Use:   "release --lock URL [--force EPOCH [--holder-is-dead]]",
		Short: "Ask the leader to release a lock, or take it from its holder",
		Long: `Release asks the leader to end its command and to release the lock. Any candidate takes it then; the
leader itself stays away for one ttl.

A dead or frozen leader needs neither: its lock expires, and is taken within the takeover time that tenure
status shows. Force is for a holder that renews and does not obey, or whose ttl is very long.

With --force EPOCH the lock is taken from its holder: its record is replaced, all wait
1.5 times its ttl, in which a holder that lives must stop its command, and then the lock is free. EPOCH is
what tenure status shows: from a holder that came later nothing is taken. Two never lead.

With --holder-is-dead the wait is skipped. If the holder lives after all, TWO LEAD until it notices, up to
its ttl. Only say so if its machine is known to be off.`,
		Example: `  tenure release --lock file:///var/lib/tenure/nightly.lock
  tenure release --lock file:///var/lib/tenure/nightly.lock --force 1785412800`,
		Args: noArgs,
		RunE: a.action(func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.interrupted(cmd.Context())
			defer cancel()
			return a.release(ctx, cmd, &f)
		}),
	}
	f.lock.add(cmd)
	f.wait.add(cmd)
	cmd.Flags().Int64Var(&f.epoch, "force", 0, "take the lock from the holder of this `epoch`")
	cmd.Flags().BoolVar(&f.dead, "holder-is-dead", false, "with --force: do not wait (if the holder lives, two lead)")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "with --force: do not ask")
	return cmd
}

func (a *app) release(ctx context.Context, cmd *cobra.Command, f *releaseFlags) error {
	given := cmd.Flags().Changed
	if err := f.wait.check(cmd); err != nil {
		return err
	}
	switch {
	case !given("force") && (f.dead || f.yes):
		return wrongUse("--holder-is-dead and --yes belong to --force EPOCH: tenure status shows the epoch")
	case !given("force"):
		return a.order(ctx, &f.lock, &f.wait, "", func(*tenure.View) bool { return true })
	case given("timeout") || f.wait.noWait:
		return wrongUse("--timeout and --no-wait do not go with --force: its wait is given by the holder's ttl")
	}
	return a.force(ctx, f)
}

// force takes the lock from its holder.
func (a *app) force(ctx context.Context, f *releaseFlags) error {
	if !f.yes && (!isTerminal(a.in) || !isTerminal(a.err)) {
		return wrongUse("nobody can be asked, there is no terminal: give --yes if that is what you want")
	}
	lock, o, err := f.lock.open(ctx)
	if err != nil {
		return err
	}
	before, err := look(ctx, lock.Register)
	if err != nil {
		return err
	}
	switch {
	case before.State == tenure.RecordAbsent || before.State == tenure.RecordReleased:
		return fmt.Errorf("nothing to release by force: %w", tenure.ErrNoLeader)
	case before.Epoch() != f.epoch:
		return fmt.Errorf("%w: %d, not %d; look at the status again", tenure.ErrOtherEpoch, before.Epoch(), f.epoch)
	}
	if err := a.confirm(f, lock, before); err != nil {
		return err
	}
	begin := time.Now()
	v, err := tenure.ForceRelease(ctx, lock.Register, tenure.ForceOptions{
		Who: whoAmI(), Epoch: f.epoch, HolderIsDead: f.dead, LeaseDuration: o.LeaseDuration,
		Waiting: func(d time.Duration) { a.say("waiting %s: the holder must have stopped by then", short(d)) },
	})
	if err != nil {
		return err
	}
	doc := orderDoc{lockDoc: describe(lock.Name, v, o, time.Now()), PreviousEpoch: f.epoch, Done: true, WaitedSeconds: seconds(time.Since(begin))}
	if before.Record != nil {
		doc.PreviousHolder = before.Record.HolderIdentity
	}
	a.print(doc, func(b *strings.Builder) { fmt.Fprintf(b, "%s is %s\n", lock.Name, doc.summary()) })
	return nil
}

// confirm says what is at risk and asks a person.
func (a *app) confirm(f *releaseFlags, lock *tenure.Lock, v *tenure.View) error {
	holder := "a holder that cannot be told"
	if v.Record != nil && v.Record.HolderIdentity != "" {
		holder = v.Record.HolderIdentity
	}
	risk := "if it is alive, its command is ended; all candidates wait until it must have stopped"
	if f.dead {
		risk = "without waiting: IF IT IS ALIVE, TWO WILL LEAD until it notices"
	}
	if v.State == tenure.RecordImplausible {
		a.say("the epoch %d is implausible: the next one will be LOWER, and what has seen %d will refuse it", f.epoch, f.epoch)
	}
	a.say("taking %s from %s, epoch %d: %s", lock.Name, holder, f.epoch, risk)
	if f.yes {
		return nil
	}
	fmt.Fprint(a.err, "tenure: type yes to go on: ")
	answer, err := bufio.NewReader(a.in).ReadString('\n')
	if strings.TrimSpace(answer) != "yes" {
		if err != nil {
			fmt.Fprintln(a.err)
		}
		return fail(exitRefused, "not confirmed, nothing was changed")
	}
	return nil
}

// isTerminal reports whether a person is at the other end of f.
func isTerminal(f *os.File) bool { return f != nil && hasTermios(f.Fd()) }

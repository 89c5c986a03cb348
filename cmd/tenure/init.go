// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tenure.dev"
)

// initDoc is what init prints with -o json.
type initDoc struct {
	lockDoc
	Created       bool    `json:"created"`
	WaitedSeconds float64 `json:"waitedSeconds"`
}

func (a *app) initCommand() *cobra.Command {
	var lock lockFlags
	var firstEver bool
	cmd := &cobra.Command{
		Use:   "init --lock URL",
		Short: "Make a lock, so that its first leader need not wait",
		Long: `Init makes the record of a lock, released: the first candidate takes it at once. Without init the first
candidate makes the record itself, and waits as long.

The wait is 1.5 times the lease duration (ttl): if a record of this lock was there and was deleted, its
holder may still lead for as long. Only if no record of this lock was ever there may --first-ever skip it.

A store that needs a table first (postgres://) gets it made, if it is not there: nothing else makes tables.

A lock that exists is left as it is.`,
		Example: `  tenure init --lock file:///var/lib/tenure/nightly.lock
  tenure init --lock 'file:///var/lib/tenure/nightly.lock?ttl=5s'`,
		Args: noArgs,
		RunE: a.action(func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.interrupted(cmd.Context())
			defer cancel()
			return a.init(ctx, &lock, firstEver)
		}),
	}
	lock.add(cmd)
	cmd.Flags().BoolVar(&firstEver, "first-ever", false, "skip the wait: no record of this lock was ever there (if one was, and its holder lives, two lead)")
	return cmd
}

func (a *app) init(ctx context.Context, f *lockFlags, firstEver bool) error {
	lock, o, err := f.open(ctx)
	if err != nil {
		return err
	}
	if err := prepare(ctx, lock); err != nil {
		return err
	}
	begin := time.Now()
	v, err := tenure.Init(ctx, lock.Register, tenure.InitOptions{
		Who: whoAmI(), LeaseDuration: o.LeaseDuration, FirstEver: firstEver,
		Waiting: func(d time.Duration) {
			a.say("waiting %s: the holder by a record that was here before must have stopped by then", short(d))
		},
	})
	exists := errors.Is(err, tenure.ErrExists)
	if err != nil && !exists {
		return err
	}
	doc := initDoc{lockDoc: describe(lock.Name, v, o, time.Now()), Created: !exists, WaitedSeconds: seconds(time.Since(begin))}
	a.print(doc, func(b *strings.Builder) {
		if exists {
			fmt.Fprintf(b, "%s exists, nothing was changed: %s\n", lock.Name, doc.summary())
			return
		}
		fmt.Fprintf(b, "%s is made: %s\n", lock.Name, doc.summary())
	})
	if v.State == tenure.RecordUnreadable || v.State == tenure.RecordImplausible {
		return &codedError{code: exitRefused}
	}
	return nil
}

// prepare makes what the store needs before there can be a lock in it.
func prepare(ctx context.Context, lock *tenure.Lock) error {
	store, ok := lock.Register.(tenure.Initializer)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := store.Initialize(ctx); err != nil {
		return fmt.Errorf("making what %s needs: %w", lock.Name, err)
	}
	return nil
}

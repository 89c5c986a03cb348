// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"os/user"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"tenure.dev"
	_ "tenure.dev/kube"           // k8s://…
	_ "tenure.dev/store/azblob"   // azblob://…
	_ "tenure.dev/store/etcd"     // etcd://…
	_ "tenure.dev/store/file"     // file:///…
	_ "tenure.dev/store/gcs"      // gs://…
	_ "tenure.dev/store/mem"      // mem://…, to refuse it with a reason
	_ "tenure.dev/store/postgres" // postgres://…
	_ "tenure.dev/store/s3"       // s3://…
)

// openTimeout bounds opening a lock, requestTimeout each other thing that is
// asked of a store, waits not counted.
const (
	openTimeout    = 10 * time.Second
	requestTimeout = 30 * time.Second
)

// lockFlags are those that name a lock.
type lockFlags struct {
	url  string
	vars tenure.Vars
}

func (f *lockFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.url, "lock", "", "the lock's `URL`, such as file:///var/lib/tenure/nightly.lock?ttl=5s")
	flags.StringVar(&f.vars.Namespace, "namespace", "", "value of the template {namespace} in the URL")
	flags.StringVar(&f.vars.Name, "name", "", "value of the template {name} in the URL")
	flags.StringVar(&f.vars.Cluster, "cluster", "", "value of the template {cluster} in the URL's identity")
}

// open returns the lock and checked options for it. All its errors mean wrong
// use or configuration: nothing has been touched.
func (f *lockFlags) open(ctx context.Context) (*tenure.Lock, tenure.Options, error) {
	if f.url == "" {
		return nil, tenure.Options{}, noLockNamed()
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	lock, err := f.openOnce(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, tenure.Options{}, &codedError{exitFailed, err}
	case err != nil:
		return nil, tenure.Options{}, &codedError{exitUse, err}
	}
	o, err := checkedOptions(lock)
	if err != nil {
		return nil, tenure.Options{}, err
	}
	return lock, o, nil
}

// openOnce opens the lock, unless it is one that excludes nobody.
func (f *lockFlags) openOnce(ctx context.Context) (*tenure.Lock, error) {
	u, err := tenure.ParseURL(f.url, f.vars)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "mem" {
		return nil, wrongUse("a lock in the memory of one process excludes no other process: name a file, such as file:///var/lib/tenure/nightly.lock")
	}
	return tenure.Open(ctx, f.url, f.vars)
}

func noLockNamed() error {
	return wrongUse("no lock is named: give --lock URL, such as --lock file:///var/lib/tenure/nightly.lock")
}

// checkedOptions returns options for a lock, or what is wrong with its settings.
func checkedOptions(lock *tenure.Lock) (tenure.Options, error) {
	o := lock.Options()
	if _, err := tenure.New(o); err != nil {
		return tenure.Options{}, &codedError{exitUse, err}
	}
	return o, nil
}

// durations returns what an election at lease duration d would run by.
func durations(o tenure.Options, d time.Duration) tenure.Durations {
	if d >= 2*time.Second {
		o = tenure.Options{Register: o.Register, LeaseDuration: d, MaxLeaseDuration: d}
	}
	e, err := tenure.New(o)
	if err != nil {
		return tenure.Durations{} // not reached: o has been checked, d is whole seconds
	}
	return e.Status().Durations
}

// interrupted makes a context that ends with SIGINT and SIGTERM, for commands
// that run no other.
func (a *app) interrupted(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			a.stopped.Store(int32(s.(syscall.Signal)))
			signal.Stop(signals) // a second one ends the program
			cancel()
		case <-ctx.Done():
			signal.Stop(signals)
		}
	}()
	return ctx, cancel
}

// whoAmI names the person who gives an order, for people.
func whoAmI() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	} else if env := os.Getenv("USER"); env != "" {
		name = env
	}
	if h, err := os.Hostname(); err == nil && h != "" {
		host = h
	}
	return name + "@" + host
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Command up starts control planes on this machine, prints how to reach them,
// and stops all of them when it is interrupted.
//
//	up -n 3 -servers 2 -all
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"tenure.dev/test/cluster"
)

type config struct {
	n, servers int
	all        bool
	dir        string
}

func main() {
	var conf config
	flag.IntVar(&conf.n, "n", 2, "how many clusters: a, b, ...")
	flag.IntVar(&conf.servers, "servers", 1, "how many API servers each has")
	flag.BoolVar(&conf.all, "all", false, "with controller manager, scheduler and kwok, which plays the nodes")
	flag.StringVar(&conf.dir, "dir", "", "keep the clusters in this folder, and go on with what is there (default: a temporary one)")
	flag.Parse()
	if flag.NArg() > 0 || conf.n < 1 || conf.n > 26 || conf.servers < 1 {
		fmt.Fprintln(os.Stderr, "up: use flags only, 1 to 26 clusters of 1 or more API servers: see up -h")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, conf, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "up: %v\n", err)
		os.Exit(1)
	}
}

// run returns when ctx is done and all clusters are gone, or one does not start.
func run(ctx context.Context, conf config, out io.Writer) error {
	begin := time.Now()
	clusters := make([]*cluster.Cluster, conf.n)
	errs := make([]error, conf.n)
	var all sync.WaitGroup
	for i := range conf.n {
		o := cluster.Options{Name: string(rune('a' + i)), APIServers: conf.servers}
		if conf.dir != "" {
			o.Dir = filepath.Join(conf.dir, o.Name)
		}
		if conf.all {
			o.ControllerManager, o.Scheduler, o.Kwok = &cluster.Part{}, &cluster.Part{}, &cluster.Part{}
		}
		all.Go(func() { clusters[i], errs[i] = cluster.Start(ctx, o) })
	}
	all.Wait()
	defer func() {
		for _, c := range clusters {
			if c != nil {
				c.Close()
			}
		}
	}()
	if err := errors.Join(errs...); err != nil {
		if ctx.Err() != nil {
			return nil // interrupted while starting
		}
		return err
	}
	for _, c := range clusters {
		for i := range c.APIServers() {
			fmt.Fprintf(out, "%s  https://%s  kubectl --kubeconfig %s\n", c.Name(), c.APIServer(i), c.Admin(i))
		}
	}
	fmt.Fprintf(out, "ready after %.1f s; Ctrl-C stops all\n", time.Since(begin).Seconds())
	<-ctx.Done()
	fmt.Fprintln(out, "stopping")
	return nil
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Command tenure runs a command as the only active copy: `tenure run --lock
// file:///… -- CMD` on several hosts or in several shells runs CMD in exactly
// one of them. The other subcommands look at a lock and give its leader orders.
package main

import (
	"context"
	"os"

	"tenure.dev/cmd/tenure/supervise"
)

// version is set when the program is built.
var version = "unknown"

func main() {
	supervise.Watchdog()
	os.Exit(execute(context.Background(), os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr}))
}

// stdio are the files that a process begins with.
type stdio struct {
	in, out, err *os.File
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// exits runs a program and requires an exit code: exits 2 tenure status. What
// it printed is in the files out and err, for grep, since a program that fails
// leaves stdout and stderr to the script only where any code will do.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARGUMENTS]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	path, err := exec.LookPath(args[1])
	ts.Check(err)
	cmd := exec.CommandContext(ctx, path, args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "WORK="+ts.Getenv("WORK"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		ts.Fatalf("%v", err)
	}
	ts.Check(os.WriteFile(ts.MkAbs("out"), out.Bytes(), 0o666))
	ts.Check(os.WriteFile(ts.MkAbs("err"), errs.Bytes(), 0o666))
	ts.Logf("[stdout]\n%s[stderr]\n%s", out.String(), errs.String())
	if got := cmd.ProcessState.ExitCode(); got != want {
		ts.Fatalf("%s exits with %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}

// waitFor waits until a file, or one in a folder, holds a text: waitfor FILE TEXT.
func waitFor(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: waitfor FILE TEXT")
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if holds(ts.MkAbs(args[0]), args[1]) {
			return
		}
	}
	ts.Fatalf("%s never held %q", args[0], args[1])
}

func holds(path, text string) bool {
	found := false
	_ = filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		b, _ := os.ReadFile(p)
		found = found || strings.Contains(string(b), text)
		return err
	})
	return found
}

// fill makes a file of a size: fill FILE BYTES.
func fill(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: fill FILE BYTES")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), bytes.Repeat([]byte("x"), n), 0o666))
}

// nobodyMain is tenure as a user without rights: `nobody tenure …`. Root may
// write everywhere, so there a test of permissions has to be somebody else.
func nobodyMain() {
	os.Args = os.Args[1:]
	if os.Geteuid() == 0 {
		const nobody = 65534
		for _, err := range []error{syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)} {
			if err != nil {
				panic(err)
			}
		}
	}
	main()
}

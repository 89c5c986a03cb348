// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"bufio"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// holdWith starts psql, begins a transaction with the statement, and returns
// when that is done.
func holdWith(t testing.TB, bin string, args []string, statement string) func(end string) {
	t.Helper()
	cmd := exec.Command(bin, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	finish := sync.OnceFunc(func() {
		in.Close()
		cmd.Wait() // its exit code says nothing about the transaction
	})
	t.Cleanup(finish)
	if _, err := io.WriteString(in, "BEGIN; "+statement+";\n\\echo held\n"); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); ; {
		if !lines.Scan() {
			t.Fatalf("psql ended before %s", statement)
		}
		if strings.TrimSpace(lines.Text()) == "held" {
			break
		}
	}
	return func(end string) {
		t.Helper()
		if _, err := io.WriteString(in, end+";\n"); err != nil {
			t.Fatal(err)
		}
		finish()
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, config{n: 2, servers: 1}, w)
		w.CloseWithError(err)
		done <- err
	}()
	var files, said []string
	for s := bufio.NewScanner(r); s.Scan(); {
		said = append(said, s.Text())
		if _, file, ok := strings.Cut(s.Text(), "--kubeconfig "); ok {
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
			files = append(files, file)
		}
		if strings.HasPrefix(s.Text(), "ready") {
			cancel()
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 {
		t.Fatalf("it said %q: want a kubeconfig of each of two clusters", said)
	}
	for _, file := range files {
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("%s is left behind: %v", file, err)
		}
	}
}

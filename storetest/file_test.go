// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package storetest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tenure.dev"
	"tenure.dev/store/file"
)

// processMarks is how many marks each process adds.
const processMarks = 15

// processPath and processID make this test program a client of a lock instead.
const (
	processPath = "TENURE_STORETEST_PATH"
	processID   = "TENURE_STORETEST_ID"
)

func openFile(t T, path string) *file.Register {
	t.Helper()
	r, err := file.Open(t.Context(), path)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return r
}

func pathOf(r tenure.Register) string {
	return strings.TrimPrefix(r.(*file.Register).String(), "file://")
}

func TestFile(t *testing.T) {
	Run(t, Harness{
		New: func(t T) tenure.Register { return openFile(t, filepath.Join(t.TempDir(), "x.lock")) },
		Open: func(t T) (a, b tenure.Register) {
			path := filepath.Join(t.TempDir(), "x.lock")
			return openFile(t, path), openFile(t, path)
		},
		Delete: func(t T, r tenure.Register) {
			if err := os.Remove(pathOf(r)); err != nil {
				t.Fatalf("%v", err)
			}
		},
		Corrupt: func(t T, r tenure.Register, value []byte) {
			if err := os.WriteFile(pathOf(r), value, 0o644); err != nil {
				t.Fatalf("%v", err)
			}
		},
		Histories: 5,
	})
}

// TestFileProcesses lets processes race on one file: what holds two instances
// of one process apart may not hold two processes apart.
func TestFileProcesses(t *testing.T) {
	const processes = 3
	path := filepath.Join(t.TempDir(), "x.lock")
	h := Harness{}.withDefaults()
	p := &probe{t, h, openFile(t, path)}
	p.mustWrite("", "")
	together(t, processes, func(i int) error {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFileClient$")
		cmd.Env = append(os.Environ(), processPath+"="+path, fmt.Sprintf("%s=%d", processID, i))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("client %d: %w\n%s", i, err, out.Bytes())
		}
		return nil
	})
	text, _ := p.mustRead()
	for i := range processes {
		for n := range processMarks {
			if mark := fmt.Sprintf("[%d.%d]", i, n); strings.Count(text, mark) != 1 {
				t.Errorf("process %d added %s once and was told so, but it is there %d times: %q", i, mark, strings.Count(text, mark), text)
			}
		}
	}
	if want := processes * processMarks; strings.Count(text, "[") != want {
		t.Errorf("%d marks are there, want %d", strings.Count(text, "["), want)
	}
}

// TestFileClient is what the processes of TestFileProcesses run.
func TestFileClient(t *testing.T) {
	path := os.Getenv(processPath)
	if path == "" {
		return // this is the program's own run
	}
	p := &probe{t, Harness{}.withDefaults(), openFile(t, path)}
	for n := range processMarks {
		if err := addMark(p, fmt.Sprintf("[%s.%d]", os.Getenv(processID), n), 2000); err != nil {
			t.Fatal(err)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// built is the folder with the programs that the tests run.
var built string

// buildFlags are added to each call of go build.
var buildFlags []string

func TestMain(m *testing.M) {
	code := 1
	defer func() { os.Exit(code) }()
	var err error
	if built, err = os.MkdirTemp("", "tenure-e2e-"); err == nil {
		defer os.RemoveAll(built)
		err = build(Programs{Tenure: filepath.Join(built, "tenure"), Elector: filepath.Join(built, "elector")})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return
	}
	code = m.Run()
}

// build builds the programs, with flags for the go command. Its cache makes that
// seconds when nothing has changed.
func build(p Programs, flags ...string) error {
	for pkg, out := range map[string]string{"tenure.dev/cmd/tenure": p.Tenure, "tenure.dev/test/e2e/elector": p.Elector} {
		if out == "" {
			continue
		}
		args := slices.Concat([]string{"build", "-o", out}, buildFlags, flags, []string{pkg})
		if b, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, b)
		}
	}
	return nil
}

// programs are built once for all tests.
func programs(t *testing.T) Programs {
	t.Helper()
	return Programs{Tenure: filepath.Join(built, "tenure"), Elector: filepath.Join(built, "elector")}
}

// folder is a test's own: a temporary one, or below TENURE_E2E_DIR, where it stays.
func folder(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TENURE_E2E_DIR")
	if dir == "" {
		return t.TempDir()
	}
	dir = filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build mutant

package probe

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMutants switches on each mistake that somebody could make in a probe, and
// sees that a test which passes without it fails with it.
func TestMutants(t *testing.T) {
	for name, c := range map[string]struct{ test, complaint string }{
		"any-refusal-counts":     {"^TestRefused$/^refused_by_RBAC$", "want ErrNoAnswer with what RBAC says"},
		"restarted-counts-twice": {"^TestRestarted$", "want ErrNoAnswer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, err := again(c.test, ""); err != nil {
				t.Fatalf("%s fails without the mutation: %v\n%s", c.test, err, out)
			}
			out, err := again(c.test, name)
			if err == nil || !strings.Contains(out, c.complaint) {
				t.Errorf("%s does not find the mutation: %v\n%s", c.test, err, out)
			}
		})
	}
}

// again runs a test of this program in a process of its own.
func again(test, mutant string) (string, error) {
	cmd := exec.Command(os.Args[0], "-test.run", test, "-test.v")
	cmd.Env = append(os.Environ(), "TENURE_MUTANT="+mutant)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

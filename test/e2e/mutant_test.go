// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build mutant

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func init() { buildFlags = append(buildFlags, "-tags", "mutant") }

// TestMutants switches on each mistake that somebody could make, and sees that a test
// which passes without it fails with it. Those of the probe are found beside it.
func TestMutants(t *testing.T) {
	for name, c := range map[string]struct{ test, complaint string }{
		"counts-from-sending": {"^TestMistakes$/^grants_end", "before all pods have stopped"},
		"emptied-believed":    {"^TestMistakes$/^Lease_emptied", "OVERLAP"},
		"status-may-go":       {"^TestMistakes$/^closed_epoch", "was closed, and now"},
		"seat-alone":          {"^TestClones$/^cloned_while_cut_off_for", "a copy goes on with the term"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run", c.test, "-test.v", "-test.timeout", "10m")
			cmd.Env = append(os.Environ(), "TENURE_MUTANT="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.complaint) {
				t.Errorf("%s does not find the mutation: %v\n%s", c.test, err, out)
			}
		})
	}
}

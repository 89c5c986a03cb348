// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build mutant

package probe

import "os"

// The mistakes that the tests must catch, by the name in TENURE_MUTANT.
func anyRefusalCounts() bool { return os.Getenv("TENURE_MUTANT") == "any-refusal-counts" }

func restartedCountsTwice() bool { return os.Getenv("TENURE_MUTANT") == "restarted-counts-twice" }

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build mutant

package operator

import "os"

// The mistakes that the tests must catch, by the name in TENURE_MUTANT.
func countsFromSending() bool { return os.Getenv("TENURE_MUTANT") == "counts-from-sending" }

func emptiedBelieved() bool { return os.Getenv("TENURE_MUTANT") == "emptied-believed" }

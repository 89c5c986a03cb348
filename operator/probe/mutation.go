// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !mutant

package probe

func anyRefusalCounts() bool { return false }

func restartedCountsTwice() bool { return false }

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !mutant

package tenure

const activeMutation = noMutation

func mutated(m mutation) bool { return activeMutation == m }

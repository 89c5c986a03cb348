// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !mutant

package replica

func seatAlone() bool { return false }

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build mutant

package replica

import "tenure.dev"

func seatAlone() bool { return tenure.Mutated("seat-alone") }

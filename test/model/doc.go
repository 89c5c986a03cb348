// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package model checks a Promela model of the election, election.pml, with
// spin: that it keeps the invariants I1, I2 and I7, that somebody leads once
// faults have stopped, and that planted mistakes are found. There is nothing in
// it but tests; README.md says what the model covers.
//
//	go test ./test/model                        small enough for every change
//	TENURE_MODEL=large go test ./test/model -v  minutes, up to twice 4 GB of memory
package model

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package rules holds the rules of this repository as ordinary tests: what may
// import what, which files carry what, and what the documents may claim. There
// is nothing in it but tests.
//
// A rule is a function from a tree of files to its violations. Each has a
// planted tree that breaks it, so that a rule which no longer finds anything
// fails as well.
//
//	go test ./test/rules            check
//	go test ./test/rules -update    write the golden lists anew
package rules

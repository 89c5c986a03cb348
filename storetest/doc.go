// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package storetest is the test of every register driver. A driver that passes
// [Run] may be trusted with a lock; one that does not lets two clusters write.
//
// Run takes a [Harness], which says how to make registers and, where it can be
// done, how to damage them behind the driver's back. The suite has two halves.
// The named cases each test one promise of [tenure.Register] and explain, when
// they fail, which corruption the promise prevents and where to look. The
// histories record what concurrent clients called and were told, and look for
// one order of all these calls that a compare-and-swap register could have
// followed. Requests may fail at any time: a write whose error is not
// ErrConflict may or may not have happened, and the suite allows for both.
//
// [Faulty] makes such errors on purpose. Package broken holds stores that break
// one promise each; the suite must fail every one of them.
package storetest

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package sim runs the production election loop against a simulated store and
// simulated clocks, injects faults by a schedule that a seed determines, and
// checks the invariants with the knowledge that no candidate has: true time,
// everybody's clocks, and what every request did. It must run in a bubble of
// testing/synctest. See README.md for what is checked, and what is not claimed.
package sim

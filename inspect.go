// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import "context"

// An Inspector is a [Register] that can look at its store's configuration, for
// what would harm an election: versioning, retention, replication, rights.
type Inspector interface {
	// Inspect asks the store and returns what it found, one finding for each
	// thing that it looked at. It changes nothing, blocks for a few requests, at
	// most until ctx ends, and needs no rights beyond those of the lock: what it
	// may not see is a finding with [FindingUnknown].
	Inspect(ctx context.Context) []Finding
}

// A Finding is one thing that was looked at in a store's configuration.
type Finding struct {
	// Check names what was looked at, in a word or two: "versioning".
	Check string
	// Level says what it means for the lock.
	Level FindingLevel
	// Detail says what was found.
	Detail string
	// Next says what to do about it; empty if nothing needs to be done.
	Next string
}

// FindingLevel says what a [Finding] means for a lock.
type FindingLevel string

// The levels of findings.
const (
	// FindingOK is as it should be.
	FindingOK FindingLevel = "ok"
	// FindingUnknown could not be seen, most often for want of rights.
	FindingUnknown FindingLevel = "unknown"
	// FindingNote is harmless but good to know.
	FindingNote FindingLevel = "note"
	// FindingWarning costs time, money or safety in depth, not safety.
	FindingWarning FindingLevel = "warning"
	// FindingUnsafe means that the store must not be used for a lock.
	FindingUnsafe FindingLevel = "unsafe"
)

// A Price is a store's public list price for what an election does.
type Price struct {
	// ReadsPer10k and WritesPer10k are US dollars per 10,000 requests.
	ReadsPer10k, WritesPer10k float64
	// Source says whose price list, for which class of storage and region, and
	// as of when.
	Source string
}

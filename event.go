// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import "time"

// An EventKind names what happened to an elector.
type EventKind string

// The kinds of events.
const (
	// EventBegan: a term began. Epoch, Deadline.
	EventBegan EventKind = "TermBegan"
	// EventRenewed: the term was extended. Epoch, Deadline, Latency.
	EventRenewed EventKind = "TermRenewed"
	// EventStopping: the term's context ended and the work drains. Epoch, Err is the cause.
	EventStopping EventKind = "TermStopping"
	// EventEnded: the term is over. Epoch, Err is the cause.
	EventEnded EventKind = "TermEnded"
	// EventReleased: the lock was given up. Epoch.
	EventReleased EventKind = "Released"
	// EventFollowing: the record names another holder than before, or none. Holder, Epoch.
	EventFollowing EventKind = "Following"
	// EventDamaged: the record is absent, unreadable or a stranger's. Err.
	EventDamaged EventKind = "RecordDamaged"
	// EventFailed: a request failed, or its outcome is unknown. Err, Latency.
	EventFailed EventKind = "RequestFailed"
	// EventRefused: this candidate does not contend, and Err says why.
	EventRefused EventKind = "Refused"
	// EventSurprised: the store has answered what a sound one does not. The record
	// was or will be read before anything rests on it. Err.
	EventSurprised EventKind = "StoreSurprised"
	// EventOrdered: an order was found in the record. Holder is the preferred holder.
	EventOrdered EventKind = "Ordered"
)

// An Event is one thing that happened to an elector; see [Options.Observe].
// Fields that the kind does not name are zero.
type Event struct {
	Kind     EventKind
	Epoch    int64
	Holder   string
	Deadline time.Time
	Latency  time.Duration
	Err      error
}

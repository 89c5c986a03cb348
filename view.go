// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	"errors"
	"fmt"
)

// A RecordState says what a record means to anybody who reads it.
type RecordState string

// The states of a record.
const (
	// RecordAbsent: there is none.
	RecordAbsent RecordState = "Absent"
	// RecordHeld: a holder's, who may or may not still be alive.
	RecordHeld RecordState = "Held"
	// RecordReleased: the holder gave the lock up.
	RecordReleased RecordState = "Released"
	// RecordStopper: the lock is new, or was taken from its holder by force;
	// it is being waited out and leads nobody.
	RecordStopper RecordState = "Stopper"
	// RecordStranger: another elector's record.
	RecordStranger RecordState = "Stranger"
	// RecordUnreadable: nobody can tell who holds the lock.
	RecordUnreadable RecordState = "Unreadable"
	// RecordImplausible: its epoch is above MaxPlausibleEpoch.
	RecordImplausible RecordState = "Implausible"
)

// A View is one look at a lock.
type View struct {
	State RecordState
	// Record is what was read, or nil where it does not parse.
	Record *Record
	// Version is the register's.
	Version Version
	// Why says what is wrong with an absent, unreadable, implausible or a
	// stranger's record.
	Why error
}

// Epoch returns the record's fencing token as far as it can be told, else 0.
func (v *View) Epoch() int64 {
	if v.Record == nil {
		return 0
	}
	return max(v.Record.Epoch, v.Record.LeaseTransitions)
}

// Look reads a lock once. It blocks until the store has answered or ctx ends;
// the error is the store's. A record that is absent or damaged is no error but
// a state.
func Look(ctx context.Context, reg Register) (*View, error) {
	value, version, err := reg.Read(ctx)
	if err != nil && !errors.Is(err, ErrNotExist) && !errors.Is(err, ErrValueTooLarge) {
		return nil, fmt.Errorf("tenure: reading the record: %w", err)
	}
	var m machine // without a past: no lineage and no epoch is known
	s := m.classify(parse(value, err), version)
	v := &View{Record: s.rec, Version: version, Why: s.why}
	switch s.kind {
	case absent:
		v.State, v.Why = RecordAbsent, ErrNotExist
	case held:
		v.State = RecordHeld
		if s.rec.Stopper() {
			v.State = RecordStopper
		}
	case released:
		v.State = RecordReleased
	case stranger:
		v.State, v.Why = RecordStranger, errForeign
	case implausible:
		v.State = RecordImplausible
	default:
		v.State = RecordUnreadable
	}
	return v, nil
}

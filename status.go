// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import "time"

// A State is where a candidate stands.
type State string

// The states of a candidate.
const (
	StateStandby   State = "Standby"
	StateLeading   State = "Leading"
	StateDraining  State = "Draining"
	StateReleasing State = "Releasing"
	StateEnded     State = "Ended"
)

// Durations are those that an election runs by.
type Durations struct {
	// LeaseDuration is D, RenewDeadline R, Period P.
	LeaseDuration, RenewDeadline, Period time.Duration
	// MaxLeaseDuration caps what is believed of a record's D.
	MaxLeaseDuration time.Duration
	// Failover is the longest that it takes a healthy standby to lead after
	// the leader's last renewal, with an answering store.
	Failover time.Duration
	// FirstStart is the same for a lock that does not exist yet.
	FirstStart time.Duration
}

// Status is what an elector knows.
type Status struct {
	Identity string
	State    State
	// Holder and Epoch are the record's; empty where it names nobody.
	Holder string
	Epoch  int64
	// Lineage is the record's lineage, as this process believes it.
	Lineage string
	// Refused says why this candidate does not contend, or is nil.
	Refused error
	// LastError is why the last request failed, and Failing since when
	// requests fail; both zero while they succeed.
	LastError error
	Failing   time.Time
	Durations Durations
}

// Status returns what the elector knows. It does not block.
func (e *Elector) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

func (s *state) publicState() State {
	switch s.phase {
	case leading:
		return StateLeading
	case draining:
		return StateDraining
	case releasing:
		return StateReleasing
	case done:
		return StateEnded
	default:
		return StateStandby
	}
}

func (s *settings) public() Durations {
	return Durations{
		LeaseDuration: s.d, RenewDeadline: s.r, Period: s.p, MaxLeaseDuration: s.maxD,
		Failover:   s.wait(s.d) + s.p,
		FirstStart: s.longWait(s.d) + s.p,
	}
}

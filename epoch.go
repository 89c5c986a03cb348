// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import "time"

// builtAfter is a time that no correct clock reads less than. It is raised with
// releases.
var builtAfter = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)

// trustedSkew is how far our clock may be from another witness to count as one.
const trustedSkew = 24 * time.Hour

// nextEpoch returns the epoch of an acquisition made now: above every one that
// any witness knows of, and above the time in seconds, so that it also grows
// when the record is gone (I2).
func (m *machine) nextEpoch() int64 {
	var inRecord int64
	if rec := m.sight.rec; rec != nil {
		for _, n := range []int64{rec.Epoch, rec.LeaseTransitions} {
			if n <= MaxPlausibleEpoch {
				inRecord = max(inRecord, n)
			}
		}
	}
	if mutated(epochRestarts) {
		return inRecord + 1
	}
	return 1 + max(inRecord, m.highest, m.peers.epoch, m.unixTime())
}

// unixTime is the store's clock in seconds, else ours where somebody vouches
// for it, else 0.
func (m *machine) unixTime() int64 {
	if m.store.known {
		return m.store.unix + int64(m.now.AtMost(m.store.at)/time.Second)
	}
	var vouched []time.Time
	if t := m.sight.stamp(); !t.IsZero() {
		vouched = append(vouched, t)
	}
	if m.peers.newest != 0 {
		vouched = append(vouched, time.Unix(0, m.peers.newest))
	}
	return ownUnixTime(time.Unix(0, m.now.Wall), vouched...)
}

// ownUnixTime is our wall clock in seconds if it lies within a day of another
// witness; without any, if it is not before this program was made; else 0.
func ownUnixTime(wall time.Time, witnesses ...time.Time) int64 {
	near := len(witnesses) == 0 && wall.After(builtAfter)
	for _, t := range witnesses {
		near = near || wall.Sub(t).Abs() <= trustedSkew
	}
	if !near {
		return 0
	}
	return wall.Unix()
}

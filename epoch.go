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
	wall := time.Unix(0, m.now.Wall)
	alone := true
	near := func(t time.Time) bool {
		alone = false
		return wall.Sub(t).Abs() <= trustedSkew
	}
	if t := m.sight.stamp(); !t.IsZero() && near(t) {
		return wall.Unix()
	}
	if m.peers.newest != 0 && near(time.Unix(0, m.peers.newest)) {
		return wall.Unix()
	}
	if alone && wall.After(builtAfter) {
		return wall.Unix()
	}
	return 0
}

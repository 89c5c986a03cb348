// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package gate is the arithmetic of a gate, without I/O: how long a stock elector
// may go on, which lease duration follows, until when a grant may be valid, and
// when the last one is over.
package gate

import (
	"errors"
	"fmt"
	"math"
	"time"

	"tenure.dev"
	"tenure.dev/api/v1alpha1"
)

// Defaults of a MultiClusterLease.
const (
	DefaultPeriod        = 3 * time.Second
	DefaultSkew          = 2 * time.Second
	DefaultLeaseDuration = 15 * time.Second
)

// StopAfter returns how long the elector of a gated Lease may go on after its last
// accepted renewal. Its answer can be as late as its own renew deadline, from
// which it then counts another, and it looks once per retry period. Where it was
// not declared, 1.5 times the lease duration covers client-go's defaults and what is
// in proportion to them.
func StopAfter(l v1alpha1.GatedLease) time.Duration {
	if l.RenewDeadlineSeconds > 0 {
		return time.Duration(2*l.RenewDeadlineSeconds+l.RetryPeriodSeconds) * time.Second
	}
	return time.Duration(math.Ceil(1.5*Duration(l).Seconds())) * time.Second
}

// Duration returns the longest lease duration that the Lease may have.
func Duration(l v1alpha1.GatedLease) time.Duration {
	if l.LeaseDurationSeconds > 0 {
		return time.Duration(l.LeaseDurationSeconds) * time.Second
	}
	return DefaultLeaseDuration
}

// Settings are what the objects of one lock in this cluster amount to.
type Settings struct {
	// LeaseDuration D, Period P and RenewDeadline R are the lock's.
	LeaseDuration, Period, RenewDeadline time.Duration
	// StopAfter is the longest of all Leases, Skew that of all objects.
	StopAfter, Skew time.Duration
	// Drift is ρ.
	Drift float64
	// Arithmetic says how D follows, for people.
	Arithmetic string
}

// SettingsOf works out the settings of a lock from the specs of all its objects in
// this cluster. The error says which is too small, with the arithmetic.
func SettingsOf(specs []v1alpha1.MultiClusterLeaseSpec) (Settings, error) {
	s := Settings{Drift: tenure.DefaultDrift, Skew: DefaultSkew, Period: DefaultPeriod}
	var declared, period, skew int32
	for i := range specs {
		declared = max(declared, specs[i].LeaseDurationSeconds)
		skew = max(skew, specs[i].SkewSeconds)
		if p := specs[i].PeriodSeconds; p > 0 && (period == 0 || p < period) {
			period = p
		}
		for _, l := range specs[i].Leases {
			s.StopAfter = max(s.StopAfter, StopAfter(l))
		}
	}
	if period > 0 {
		s.Period = time.Duration(period) * time.Second
	}
	if skew > 0 {
		s.Skew = time.Duration(skew) * time.Second
	}
	least := s.least()
	s.LeaseDuration = least
	if declared > 0 {
		s.LeaseDuration = time.Duration(declared) * time.Second
	}
	s.Arithmetic = fmt.Sprintf("D >= (stopAfter + skew + 3 P) / (1 - %v) = (%v + %v + 3 * %v) / %v, rounded up: %v",
		s.Drift, s.StopAfter, s.Skew, s.Period, 1-s.Drift, least)
	if s.LeaseDuration < least {
		return s, fmt.Errorf("leaseDurationSeconds %d is too small: %s; raise it or leave it out", declared, s.Arithmetic)
	}
	s.RenewDeadline = s.LeaseDuration * 65 / 100
	if s.Period > s.RenewDeadline/3 {
		return s, fmt.Errorf("periodSeconds: P = %v is more than a third of the renew deadline R = 0.65 D = %v", s.Period, s.RenewDeadline)
	}
	return s, nil
}

func (s Settings) least() time.Duration {
	sum := s.StopAfter + s.Skew + 3*s.Period + 50*time.Millisecond
	return time.Duration(math.Ceil(sum.Seconds()/(1-s.Drift))) * time.Second
}

// ErrNoTime says that a grant would be over before it is written.
var ErrNoTime = errors.New("gate: the term leaves no time for a grant")

// A Stamp is a reading of an API server's clock: Server is the time that it put on a
// write of ours, to the second and cut off, and At is when the answer to that write
// was in hand, on our monotonic clock. Server time at At is Server or later.
type Stamp struct {
	Server time.Time
	At     time.Time
}

// serverAt returns a time that the server's clock has reached at local time t, at
// least, whatever both clocks' rates are within drift of true time.
func (s Stamp) serverAt(t time.Time, drift float64) time.Time {
	d := t.Sub(s.At)
	return s.Server.Add(d - time.Duration(2*drift*math.Abs(float64(d))))
}

// Grant returns until when, by the API server's clock, a grant may be valid that
// stands on a term which ends at deadline, a local time with a monotonic reading:
// whoever renews before then has stopped when the term ends.
func (s Settings) Grant(stamp Stamp, now, deadline time.Time) (time.Time, error) {
	until := stamp.serverAt(deadline, s.Drift).Add(-s.StopAfter - s.Skew)
	if !until.After(stamp.serverAt(now, 0)) {
		return time.Time{}, ErrNoTime
	}
	return until.UTC().Truncate(time.Microsecond), nil
}

// Over returns the local time at which a grant is over at every API server of the
// cluster.
func (s Settings) Over(stamp Stamp, validUntil time.Time) time.Time {
	wait := validUntil.Add(s.Skew).Sub(stamp.Server)
	return stamp.At.Add(wait + time.Duration(2*s.Drift*max(0, float64(wait))))
}

// Full returns how long a grant lasts that is written right after a renewal.
func (s Settings) Full() time.Duration {
	valid := s.LeaseDuration - time.Duration(s.Drift*float64(s.LeaseDuration)) - 50*time.Millisecond
	return valid - time.Duration(2*s.Drift*float64(s.LeaseDuration)) - s.StopAfter - s.Skew
}

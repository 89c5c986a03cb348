// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tenure.dev/api/v1alpha1"
)

func lease(d, r, p int32) v1alpha1.GatedLease {
	return v1alpha1.GatedLease{Name: "ctl", LeaseDurationSeconds: d, RenewDeadlineSeconds: r, RetryPeriodSeconds: p}
}

func TestStopAfter(t *testing.T) {
	for _, c := range []struct {
		lease v1alpha1.GatedLease
		want  time.Duration
	}{
		{lease(15, 10, 2), 22 * time.Second},
		{lease(15, 0, 0), 23 * time.Second},
		{lease(0, 0, 0), 23 * time.Second},
		{lease(6, 4, 1), 9 * time.Second},
		{lease(60, 40, 10), 90 * time.Second},
		{lease(137, 107, 26), 240 * time.Second}, // which 1.5 times does not cover
	} {
		if got := StopAfter(c.lease); got != c.want {
			t.Errorf("%+v: %v, want %v", c.lease, got, c.want)
		}
	}
}

func TestSettingsOf(t *testing.T) {
	spec := func(d, p, skew int32, leases ...v1alpha1.GatedLease) v1alpha1.MultiClusterLeaseSpec {
		return v1alpha1.MultiClusterLeaseSpec{LeaseDurationSeconds: d, PeriodSeconds: p, SkewSeconds: skew, Leases: leases}
	}
	for name, c := range map[string]struct {
		specs []v1alpha1.MultiClusterLeaseSpec
		d     time.Duration
		err   string
	}{
		"defaults":              {specs: []v1alpha1.MultiClusterLeaseSpec{spec(0, 0, 0, lease(15, 10, 2))}, d: 34 * time.Second},
		"not declared":          {specs: []v1alpha1.MultiClusterLeaseSpec{spec(0, 0, 0, lease(15, 0, 0))}, d: 35 * time.Second},
		"quick":                 {specs: []v1alpha1.MultiClusterLeaseSpec{spec(0, 0, 0, lease(6, 4, 1))}, d: 21 * time.Second},
		"the largest rules":     {specs: []v1alpha1.MultiClusterLeaseSpec{spec(0, 0, 0, lease(6, 4, 1)), spec(0, 0, 0, lease(15, 10, 2))}, d: 34 * time.Second},
		"declared":              {specs: []v1alpha1.MultiClusterLeaseSpec{spec(60, 0, 0, lease(15, 10, 2))}, d: 60 * time.Second},
		"too small":             {specs: []v1alpha1.MultiClusterLeaseSpec{spec(20, 0, 0, lease(15, 10, 2))}, err: "leaseDurationSeconds 20 is too small: D >= (stopAfter + skew + 3 P)"},
		"too small by another":  {specs: []v1alpha1.MultiClusterLeaseSpec{spec(34, 0, 0, lease(15, 10, 2)), spec(0, 0, 0, lease(60, 40, 10))}, err: "too small"},
		"a period does not fit": {specs: []v1alpha1.MultiClusterLeaseSpec{spec(0, 20, 0, lease(6, 4, 1))}, err: "periodSeconds"},
	} {
		s, err := SettingsOf(c.specs)
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: error %v, want %q", name, err, c.err)
		case c.err == "" && (err != nil || s.LeaseDuration != c.d):
			t.Errorf("%s: D = %v, want %v (%v)", name, s.LeaseDuration, c.d, err)
		}
	}
}

// TestGrantEndsBeforeTerm: whoever is admitted at the last moment of a grant, by
// the slowest clock that is allowed, has stopped when the term ends.
func TestGrantEndsBeforeTerm(t *testing.T) {
	s, err := SettingsOf([]v1alpha1.MultiClusterLeaseSpec{{Leases: []v1alpha1.GatedLease{lease(15, 10, 2)}}})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for _, serverRate := range []float64{0.99, 1, 1.01} {
		for _, localRate := range []float64{0.99, 1, 1.01} {
			for _, fraction := range []time.Duration{0, 400 * time.Millisecond, 999 * time.Millisecond} {
				for _, age := range []time.Duration{0, 3 * time.Second, 10 * time.Second} {
					// True time 0 is now; the stamp's answer arrived age ago, its stamp is cut.
					offset := 300 * time.Hour // of the server's clock
					server := func(true_ time.Duration) time.Time {
						return begin.Add(offset + time.Duration(serverRate*float64(true_)))
					}
					local := func(true_ time.Duration) time.Time { return begin.Add(time.Duration(localRate * float64(true_))) }
					stamp := Stamp{Server: server(-age).Add(-fraction), At: local(-age)}
					deadline := local(0).Add(s.LeaseDuration - time.Duration(s.Drift*float64(s.LeaseDuration)) - 50*time.Millisecond)
					until, err := s.Grant(stamp, local(0), deadline)
					if err != nil {
						t.Fatal(err)
					}
					// The last moment, in true time, at which another server, a second behind, admits.
					last := time.Duration(float64(until.Add(time.Second).Sub(server(0))) / serverRate)
					ends := time.Duration(float64(deadline.Sub(local(0))) / localRate)
					if last+s.StopAfter > ends {
						t.Errorf("server rate %v, local rate %v, stamp %v old: admitted until %v, stopped at %v, the term ends at %v",
							serverRate, localRate, age, last, last+s.StopAfter, ends)
					}
					if over := s.Over(stamp, until); local(last).After(over) {
						t.Errorf("server rate %v, local rate %v: believed to be over at %v, admitted until %v", serverRate, localRate, over.Sub(begin), last)
					}
				}
			}
		}
	}
}

func TestNoGrantWithoutTime(t *testing.T) {
	s, err := SettingsOf([]v1alpha1.MultiClusterLeaseSpec{{Leases: []v1alpha1.GatedLease{lease(15, 10, 2)}}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if _, err := s.Grant(Stamp{now, now}, now, now.Add(24*time.Second)); !errors.Is(err, ErrNoTime) {
		t.Errorf("error %v, want ErrNoTime", err)
	}
}

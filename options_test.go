// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

func TestNewFillsDefaults(t *testing.T) {
	e, err := tenure.New(tenure.Options{Register: mem.New()})
	if err != nil {
		t.Fatal(err)
	}
	d := e.Status().Durations
	if d.LeaseDuration != 10*time.Second || d.RenewDeadline != 6500*time.Millisecond || d.Period != 2*time.Second || d.MaxLeaseDuration != time.Minute {
		t.Errorf("defaults are %+v", d)
	}
	if d.Failover != 12150*time.Millisecond || d.FirstStart != 17050*time.Millisecond {
		t.Errorf("failover is %v and first start %v, want 12.15s and 17.05s", d.Failover, d.FirstStart)
	}
	if id := e.Status().Identity; len(id) < 9 || id[len(id)-9] != '-' {
		t.Errorf("default identity is %q, want the host name and 8 random characters", id)
	}
}

func TestNewDerivesFromLeaseDuration(t *testing.T) {
	for _, ttl := range []time.Duration{2, 3, 5, 10, 35, 60, 240, 3600} {
		if _, err := tenure.New(tenure.Options{Register: mem.New(), LeaseDuration: ttl * time.Second}); err != nil {
			t.Errorf("ttl=%ds alone is refused: %v", ttl, err)
		}
	}
}

func TestNewRefusesWhatDoesNotFit(t *testing.T) {
	tests := []struct {
		name   string
		change func(*tenure.Options)
		want   []string
	}{
		{"no register", func(o *tenure.Options) { o.Register = nil }, []string{"Options.Register is required"}},
		{"D with a fraction", func(o *tenure.Options) { o.LeaseDuration = 1500 * time.Millisecond }, []string{"ttl", "1.5s", "whole seconds"}},
		{"D of one second", func(o *tenure.Options) { o.LeaseDuration = time.Second }, []string{"at least 2s"}},
		{"D above the most that is believed", func(o *tenure.Options) { o.LeaseDuration, o.MaxLeaseDuration = 90*time.Second, time.Minute }, []string{"1m30s", "1m0s", "maxttl"}},
		{"R too long", func(o *tenure.Options) { o.RenewDeadline = 9 * time.Second }, []string{"R + R/3 = 9s + 3s = 12s", "9.85s", "lower deadline"}},
		{"P too long", func(o *tenure.Options) { o.Period = 4 * time.Second }, []string{"P = 4s", "R/3 = 2.166666666s", "three attempts"}},
		{"P tiny", func(o *tenure.Options) { o.Period = time.Millisecond }, []string{"P = 1ms"}},
		{"R negative", func(o *tenure.Options) { o.RenewDeadline = -time.Second }, []string{"must be positive"}},
		{"drift", func(o *tenure.Options) { o.Drift = 0.5 }, []string{"Drift is 0.5"}},
		{"identity with a space", func(o *tenure.Options) { o.Identity = "a b" }, []string{"Identity", "space"}},
		{"identity for any", func(o *tenure.Options) { o.Identity = "*" }, []string{"any holder"}},
		{"identity like a stopper", func(o *tenure.Options) { o.Identity = "release/x" }, []string{"stopper"}},
		{"identity too long", func(o *tenure.Options) { o.Identity = strings.Repeat("x", 254) }, []string{"254 bytes"}},
		{"CA bundle too large", func(o *tenure.Options) { o.CABundle = strings.Repeat("x", 40000) }, []string{"40000 bytes"}},
		{"two mistakes", func(o *tenure.Options) { o.Drift = 0.5; o.Identity = "*" }, []string{"Drift", "Identity"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := tenure.Options{Register: mem.New(), Identity: "a"}
			tt.change(&o)
			_, err := tenure.New(o)
			if err == nil {
				t.Fatal("it was accepted")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
		})
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	g := Gate{Namespace: "n", Name: "g", Policy: "tenure-gate.n.g", Revision: "abc", Lease: "ctl", Epoch: 7, ClosedEpoch: 6, Leading: true}
	const by, state = "leases \"ctl\" is forbidden: ValidatingAdmissionPolicy 'tenure-gate.n.g' with binding 'tenure-gate.n.g' denied request: ",
		"tenure gate n/g rev=abc epoch=7 closed=6 leading=true until=2026-01-01T00:00:00Z lease=ctl: renewTime is missing"
	for name, c := range map[string]struct {
		code    int
		message string
		want    error
	}{
		"ours":               {403, by + state, nil},
		"admitted":           {200, "", ErrNotRefused},
		"created":            {201, "", ErrNotRefused},
		"another epoch":      {403, by + "tenure gate n/g rev=abc epoch=8 closed=6 leading=true until=x lease=ctl: x", ErrNotRefused},
		"another revision":   {403, by + "tenure gate n/g rev=abd epoch=7 closed=6 leading=true until=x lease=ctl: x", ErrNotRefused},
		"no status":          {403, by + "tenure gate n/g rev=abc epoch=none closed=none leading=false until=none lease=ctl: x", ErrNotRefused},
		"another policy":     {403, "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: " + state, ErrNotRefused},
		"a foreign policy":   {403, "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no", ErrNoAnswer},
		"RBAC":               {403, `User "p" cannot patch resource "leases"`, ErrNoAnswer},
		"RBAC that quotes":   {403, `User "p" cannot patch resource "leases": ` + state, ErrNoAnswer},
		"a webhook":          {403, `admission webhook "x" denied the request: ` + state, ErrNoAnswer},
		"unauthorized":       {401, "Unauthorized", ErrNoAnswer},
		"too many requests":  {429, "too many requests", ErrNoAnswer},
		"a server's fault":   {500, "x", ErrNoAnswer},
		"a missing argument": {403, "ValidatingAdmissionPolicy 'tenure-gate.n.g' with binding 'tenure-gate.n.g' denied request: no params found", ErrNoAnswer},
	} {
		body, err := json.Marshal(metav1.Status{Message: c.message})
		if err != nil {
			t.Fatal(err)
		}
		if err := judge(g, c.code, body); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if err := judge(g, 200, []byte("<html>")); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("HTML: got %v, want ErrNoAnswer", err)
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	answer := func(server string, ready, live float64) Answer {
		return Answer{Server: server, checks: map[string]float64{"ready": ready, "live": live}}
	}
	for name, c := range map[string]struct {
		answers []Answer
		want    int
	}{
		"one, asked again":                 {[]Answer{answer("1", 5, 5), answer("1", 5, 5), answer("1", 6, 5)}, 1},
		"two":                              {[]Answer{answer("1", 5, 5), answer("2", 5, 5), answer("1", 9, 9)}, 2},
		"two that started at once":         {[]Answer{answer("1", 5, 5), answer("1", 4, 5)}, 2},
		"in the other order":               {[]Answer{answer("1", 4, 5), answer("1", 5, 5), answer("1", 4, 5)}, 2},
		"and each again":                   {[]Answer{answer("1", 9, 5), answer("1", 4, 5), answer("1", 9, 6), answer("1", 5, 6), answer("1", 10, 6)}, 2},
		"three that started at once":       {[]Answer{answer("1", 9, 9), answer("1", 6, 6), answer("1", 3, 3)}, 3},
		"that cannot be told apart":        {[]Answer{answer("1", 5, 5), answer("1", 5, 5)}, 1},
		"one grew in this, one in another": {[]Answer{answer("1", 5, 9), answer("1", 9, 5)}, 2},
	} {
		var answers []Answer
		for _, a := range c.answers {
			answers = count(answers, a)
		}
		if len(answers) != c.want {
			t.Errorf("%s: counted %d servers, want %d", name, len(answers), c.want)
		}
	}
}

func TestUpSince(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		start string
		date  float64
		want  bool
	}{
		"long ago":           {"1000.25", 5000, true},
		"just before":        {"1000.25", 1003, true},
		"within the reading": {"1000.25", 1001, false},
		"meanwhile":          {"1000.25", 1000, false},
		"a clock set back":   {"1000.25", 900, false},
		"nonsense":           {"x", 5000, false},
	} {
		// The probe began a second before the answer.
		a := Answer{Server: c.start, Date: time.Unix(int64(c.date), 0), begun: now, took: 100 * time.Millisecond}
		if got := a.upSince(now.Add(-900 * time.Millisecond)); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &Prober{Skew: 2 * time.Second}
	answer := func(date, begun, took time.Duration) Answer {
		return Answer{Date: base.Add(date).Truncate(time.Second), begun: base.Add(begun), took: took}
	}
	for name, c := range map[string]struct {
		answers []Answer
		want    error
	}{
		"one":                          {[]Answer{answer(time.Hour, 0, 0)}, nil},
		"alike":                        {[]Answer{answer(0, 0, 0), answer(0, 0, 0)}, nil},
		"asked one after the other":    {[]Answer{answer(0, 0, 0), answer(time.Minute, time.Minute, 0)}, nil},
		"the same date a minute later": {[]Answer{answer(0, 0, 0), answer(0, time.Minute, 0)}, ErrClockSkew},
		"two seconds apart":            {[]Answer{answer(0, 0, 0), answer(2*time.Second, 0, 0)}, nil},
		"three seconds apart":          {[]Answer{answer(0, 0, 0), answer(3*time.Second, 0, 0)}, ErrClockSkew},
		"the other way":                {[]Answer{answer(3*time.Second, 0, 0), answer(0, 0, 0)}, ErrClockSkew},
		"a slow answer":                {[]Answer{answer(0, 0, 0), answer(3*time.Second, 0, 1500*time.Millisecond)}, nil},
		"the third":                    {[]Answer{answer(0, 0, 0), answer(0, 0, 0), answer(5*time.Second, 0, 0)}, ErrClockSkew},
	} {
		if err := p.compare(c.answers); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		slices.Reverse(c.answers)
		if err := p.compare(c.answers); !errors.Is(err, c.want) {
			t.Errorf("%s, reversed: got %v, want %v", name, err, c.want)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// stamps is a register that dates what it keeps.
type stamps struct{ nothing }

func (stamps) ReadDated(context.Context) (DatedValue, error) { return DatedValue{}, nil }

func datedWalk(t *testing.T) *walk {
	w := newWalk(t)
	w.s.set.storeClock = true
	return w
}

// TestStoreClockTakeover is the table of what has to be true for a lock to be
// taken at once: each line but the first lacks one thing.
func TestStoreClockTakeover(t *testing.T) {
	w := datedWalk(t)
	now := time.Unix(0, w.now.Wall)
	held := func(d int, renewed time.Time) []byte {
		return fmt.Appendf(nil, `{"holderIdentity":"x","leaseDurationSeconds":%d,"leaseTransitions":1,"epoch":5,"nonce":"n","renewTime":%q}`,
			d, renewed.UTC().Format(time.RFC3339Nano))
	}
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const long = 301 * time.Second
	for _, c := range []struct {
		what         string
		value        []byte
		written, now time.Time
		want         bool
	}{
		{"long dead", held(10, ago(long)), ago(long), now, true},
		{"5 minutes", held(10, ago(long)), ago(5 * time.Minute), now, false},
		{"10 D of a long lease", held(60, ago(long)), ago(long), now, false},
		{"more than 10 D of a long lease", held(60, ago(601*time.Second)), ago(601 * time.Second), now, true},
		{"a lease longer than is believed", held(61, ago(time.Hour)), ago(time.Hour), now, false},
		{"the holder's clock was behind", held(10, ago(long+62*time.Second)), ago(long), now, false},
		{"the holder's clock was ahead", held(10, ago(long-62*time.Second)), ago(long), now, false},
		{"the store's clock has been set forward", held(10, ago(0)), ago(0), now.Add(time.Hour), false},
		{"the store's clock was set back, and the record is old", held(10, ago(long)), ago(long).Add(-2 * time.Minute), now.Add(-2 * time.Minute), false},
		{"own clock is behind", held(10, now.Add(62*time.Second-long)), now.Add(62*time.Second - long), now.Add(62 * time.Second), false},
		{"written in the future", held(10, now.Add(time.Minute)), now.Add(time.Minute), now, false},
		{"no stamp", held(10, ago(long)), time.Time{}, now, false},
		{"no clock", held(10, ago(long)), ago(long), time.Time{}, false},
		{"no time in the record", recordOf("x", "", "n"), ago(long), now, false},
		{"a stopper", []byte(strings.Replace(string(held(10, ago(long))), `"x"`, `"release/x"`, 1)), ago(long), now, false},
		{"unreadable", []byte(`{}`), ago(long), now, false},
		{"a stranger's", fmt.Appendf(nil, `{"holderIdentity":"x","leaseDurationSeconds":10,"renewTime":%q}`, ago(long).UTC().Format(time.RFC3339)), ago(long), now, false},
	} {
		w := datedWalk(t).send(event{kind: evTick})
		w.need(actDated)
		w.answer(event{parsed: parse(c.value, nil), version: "v1", written: c.written, storeNow: c.now})
		if got := w.has(actWrite) != nil; got != c.want {
			t.Errorf("%s: taken at once is %v", c.what, got)
		}
		if c.want && w.has(actWrite).version != "v1" {
			t.Errorf("%s: the takeover is conditional on %q", c.what, w.has(actWrite).version)
		}
		if c.want { // another was quicker: the record that is there now is waited out
			w.answer(event{err: ErrConflict})
			w.looks(recordOf("y", "", "m"), "v2")
			w.after(10 * time.Second).send(event{kind: evTick})
			if w.has(actWrite) != nil {
				t.Errorf("%s: a record that came meanwhile was not waited out", c.what)
			}
		}
	}
}

// TestStoreClockIsAskedOnce, at the start; without an answer it waits like
// anybody.
func TestStoreClockIsAskedOnce(t *testing.T) {
	w := datedWalk(t).send(event{kind: evTick})
	w.need(actDated)
	w.answer(event{err: ErrConflict}) // any error
	w.after(2 * time.Second).send(event{kind: evTick})
	if w.has(actDated) != nil {
		t.Error("it was asked again")
	}
	w.need(actRead)
}

// TestStoreClockHeedsPauses: what keeps everybody from the lock keeps this one.
func TestStoreClockHeedsPauses(t *testing.T) {
	w := datedWalk(t).send(event{kind: evTick})
	now := time.Unix(0, w.now.Wall)
	at := func(d time.Duration) string { return now.Add(d).UTC().Format(time.RFC3339Nano) }
	value := fmt.Appendf(nil, `{"holderIdentity":"x","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":"n","renewTime":%q,`+
		`"paused":{"by":"p","at":%q,"until":%q}}`, at(-time.Hour), at(-time.Hour), at(time.Hour))
	w.answer(event{parsed: parse(value, nil), version: "v1", written: now.Add(-time.Hour), storeNow: now})
	if w.has(actWrite) != nil {
		t.Error("a paused lock was taken")
	}
}

func TestTakeoverOption(t *testing.T) {
	for _, c := range []struct {
		reg      Register
		takeover Takeover
		want     string
	}{
		{stamps{}, TakeoverStoreClock, ""},
		{stamps{}, TakeoverWait, ""},
		{nothing{}, TakeoverWait, ""},
		{nothing{}, TakeoverStoreClock, "does not say when it was written"},
		{stamps{}, "soon", `"wait" or "storeclock"`},
	} {
		e, err := New(Options{Register: c.reg, Takeover: c.takeover})
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%T, %q: %v", c.reg, c.takeover, err)
		case err == nil && e.set.storeClock != (c.takeover == TakeoverStoreClock):
			t.Errorf("%T, %q: asks the store is %v", c.reg, c.takeover, e.set.storeClock)
		}
	}
}

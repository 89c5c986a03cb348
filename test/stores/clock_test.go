// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tenure.dev"
)

// dated are the stores that say when a record was written.
var dated = []string{"postgres", "s3", "gs", "azblob"}

// TestDated: the store's two times belong to the value, come from the store, and
// move as they must.
func TestDated(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		names(t, s)
		name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		reg := opened(t, s, 0, "")
		dater, ok := reg.(tenure.Dater)
		want := false
		for _, d := range dated {
			want = want || d == name
		}
		if ok != want {
			t.Fatalf("it is a Dater: %v", ok)
		}
		_, err := tenure.Open(t.Context(), s.url(0, 0, "takeover=storeclock"), tenure.Vars{})
		must(t, err)
		if !ok {
			return
		}
		if _, err := dater.ReadDated(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
			t.Errorf("of nothing: %v", err)
		}
		version, err := reg.Write(t.Context(), []byte("one"), "")
		must(t, err)
		// As a process that has just started: one that wrote itself may be answered
		// without the stamp.
		dater = opened(t, s, 1, "").(tenure.Dater)
		first := readDated(t, dater, "one", version)
		time.Sleep(1100 * time.Millisecond) // some tell whole seconds
		again := readDated(t, dater, "one", version)
		if !again.Written.Equal(first.Written) || !again.Now.After(first.Now) {
			t.Errorf("an unchanged value: %v written, %v now; a second later %v and %v", first.Written, first.Now, again.Written, again.Now)
		}
		version, err = reg.Write(t.Context(), []byte("two"), version)
		must(t, err)
		if later := readDated(t, dater, "two", version); !later.Written.After(first.Written) {
			t.Errorf("a value written a second later is dated %v, the one before it %v", later.Written, first.Written)
		}
	})
}

func readDated(t *testing.T, d tenure.Dater, value string, version tenure.Version) tenure.DatedValue {
	t.Helper()
	v, err := d.ReadDated(t.Context())
	must(t, err)
	if string(v.Value) != value || v.Version != version {
		t.Errorf("it has %q at %q, want %q at %q", v.Value, v.Version, value, version)
	}
	if age := v.Now.Sub(v.Written); age < -2*time.Second || age > 10*time.Second || time.Since(v.Now).Abs() > 10*time.Second {
		t.Errorf("written %v, now %v, here it is %v", v.Written, v.Now, time.Now())
	}
	return v
}

// opened opens a lock by the proxy of a side.
func opened(t *testing.T, s *site, side int, params string) tenure.Register {
	t.Helper()
	lock, err := tenure.Open(t.Context(), s.url(side, 1000, params), tenure.Vars{})
	must(t, err)
	t.Cleanup(closerOf(lock.Register))
	return lock.Register
}

// names: a store that says which it is says so the same each time, and something
// else by another way to it.
func names(t *testing.T, s *site) {
	a, ok := opened(t, s, 0, "").(tenure.StoreNamer)
	if !ok {
		return
	}
	b := opened(t, s, 0, "ttl=7s").(tenure.StoreNamer)
	other := opened(t, s, 1, "").(tenure.StoreNamer)
	if a.StoreName() == "" || a.StoreName() != b.StoreName() || a.StoreName() == other.StoreName() {
		t.Errorf("names: %q, opened again %q, by another endpoint %q", a.StoreName(), b.StoreName(), other.StoreName())
	}
}

// TestStoreClock: everybody is down for more than five minutes. Then a candidate
// that believes the store's clock leads at once, and one that does not waits for D.
func TestStoreClock(t *testing.T) {
	if number("TENURE_STORES_LONG", 0) == 0 {
		return // minutes; make stores runs it
	}
	eachOf(t, true, func(t *testing.T, s *site) { // they mostly wait
		name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		for _, d := range dated {
			if d == name {
				coldStart(t, s)
			}
		}
	})
}

func coldStart(t *testing.T, s *site) {
	params := []string{"takeover=storeclock", "takeover=wait"}
	var all []*lane
	for n, p := range params {
		l, err := newLane(t, s, n, p, 0, 1)
		must(t, err)
		all = append(all, l)
		leader, ok := l.see.next(0, 30*time.Second)
		if !ok {
			t.Fatal("nobody leads 30 s after the start")
		}
		l.other(l.candidate(leader.who)).crash()
		l.candidate(leader.who).crash()
	}
	time.Sleep(5*time.Minute + 5*time.Second)
	var took []time.Duration
	for _, l := range all {
		begin := time.Now()
		before, _ := l.see.totals()
		must(t, l.restart())
		for n := before; n == before; n, _ = l.see.totals() {
			if time.Since(begin) > time.Minute {
				t.Fatal("nobody leads a minute after the restart")
			}
			time.Sleep(5 * time.Millisecond)
		}
		took = append(took, time.Since(begin))
	}
	finish(t, all)
	if took[0] > 3*time.Second || took[1] < all[1].d.LeaseDuration {
		t.Errorf("by the store's clock a leader after %v, by waiting after %v", took[0], took[1])
	}
	note(t, fmt.Sprintf("%s: after 5 minutes without anybody a leader within %v of the restart by the store's clock, within %v by waiting",
		t.Name(), round(took[0]), round(took[1])))
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
	"tenure.dev/storetest/broken"
)

// patient is a store whose keys beside the lock are the store under test.
type patient struct {
	tenure.Register
	beside tenure.Register
}

func (p patient) Sibling(string) tenure.Register { return p.beside }

// examined has a doctor look at a store, opened twice.
func examined(t *testing.T, a, b tenure.Register, timeout time.Duration) *doctor {
	t.Helper()
	record := mem.New()
	if _, err := tenure.Init(t.Context(), record, tenure.InitOptions{Who: "test", FirstEver: true}); err != nil {
		t.Fatal(err)
	}
	tenure.RegisterScheme(schemeOf(t), tenure.Driver{Open: opens(patient{record, a}, patient{record, b})})
	return examine(t, schemeOf(t)+"://x", timeout)
}

// opens returns the registers by turns.
func opens(regs ...tenure.Register) func(context.Context, *tenure.URL) (tenure.Register, error) {
	next := 0
	return func(context.Context, *tenure.URL) (tenure.Register, error) {
		next++
		return regs[(next-1)%len(regs)], nil
	}
}

var schemes = map[string]string{}

// schemeOf returns a URL scheme for a test.
func schemeOf(t *testing.T) string {
	if schemes[t.Name()] == "" {
		schemes[t.Name()] = fmt.Sprintf("doctor%d", len(schemes))
	}
	return schemes[t.Name()]
}

func examine(t *testing.T, url string, timeout time.Duration) *doctor {
	t.Helper()
	d := &doctor{app: &app{stdio: stdio{os.Stdin, os.Stdout, os.Stderr}}, timeout: timeout}
	if err := d.examine(t.Context(), &lockFlags{url: url}); err != nil {
		t.Fatal(err)
	}
	d.doc.Verdict = d.verdict()
	var b strings.Builder
	d.doc.text(&b)
	t.Logf("%s", &b)
	return d
}

func (d *doctor) outcome(name string) checkDoc {
	for _, c := range d.doc.Checks {
		if c.Check == name {
			return c
		}
	}
	return checkDoc{}
}

// unseen are broken stores that one caller cannot tell from sound ones, by
// name, and why.
var unseen = map[string]string{
	"creates on match":                 deletes,
	"version that starts anew":         deletes,
	"not found on write":               deletes,
	"cuts what is too large":           driver,
	"too large, no version":            driver,
	"empty is absent":                  driver,
	"shares buffers":                   driver,
	"ignores the context":              driver,
	"notices the context late":         driver,
	"another error than the context's": driver,
	"two sentinels at once":            driver,
	"sibling with a separator":         driver,
	"list of the first page":           driver,
	"list out of order":                driver,
	"watch from now":                   driver,
	"watch that does not wait":         driver,
	"watch without end":                driver,
	"clock in another unit":            "its clock is warned of",
}

const (
	deletes = "it would have to delete"
	driver  = "it is the driver's fault, not the server's, and every driver is tested for it"
)

// TestDoctorRefusesBrokenStores: it finds what makes two leaders.
func TestDoctorRefusesBrokenStores(t *testing.T) {
	for _, s := range broken.Stores() {
		t.Run(s.Name, func(t *testing.T) {
			a, b := s.Open()
			d := examined(t, a, b, 2*time.Second)
			want := usable
			switch {
			case s.Name == "errors without sentinels": // every one of them says that nothing is known
				want = notReached
			case len(s.Fails) > 0 && unseen[s.Name] == "":
				want = mustNotUse
			}
			if d.doc.Verdict != want {
				t.Errorf("the verdict is %s, want %s: %s", d.doc.Verdict, want, s.Trap)
			}
		})
	}
}

// TestDoctorSparesTheLock: a store whose other keys are the lock is refused
// before anything is written.
func TestDoctorSparesTheLock(t *testing.T) {
	record := mem.New()
	if _, err := tenure.Init(t.Context(), record, tenure.InitOptions{Who: "test", FirstEver: true}); err != nil {
		t.Fatal(err)
	}
	_, before, _ := record.Read(t.Context())
	tenure.RegisterScheme(schemeOf(t), tenure.Driver{Open: opens(patient{record, record})})
	d := examine(t, schemeOf(t)+"://x", time.Second)
	if d.doc.Verdict != mustNotUse || !strings.Contains(d.outcome("probe").Detail, "is the lock itself") {
		t.Errorf("the verdict is %s: %+v", d.doc.Verdict, d.outcome("probe"))
	}
	if _, after, _ := record.Read(t.Context()); after != before {
		t.Error("the lock was written")
	}
}

// hangs answers no request, and heeds no context.
type hangs struct{ tenure.Register }

func (hangs) Read(context.Context) ([]byte, tenure.Version, error) { select {} }

// TestDoctorIsBounded: a store that hangs costs the timeout, not more.
func TestDoctorIsBounded(t *testing.T) {
	tenure.RegisterScheme(schemeOf(t), tenure.Driver{Open: opens(hangs{mem.New()})})
	begin := time.Now()
	d := examine(t, schemeOf(t)+"://x", 200*time.Millisecond)
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if c := d.outcome("read"); d.doc.Verdict != notReached || c.Level != levelFailed || !strings.Contains(c.Detail, "no answer within 200ms") {
		t.Errorf("the verdict is %s: %+v", d.doc.Verdict, c)
	}
	if c := d.outcome("writers"); c.Level != levelSkipped {
		t.Errorf("without an answer it went on: %+v", c)
	}
}

// slow takes its time, and allows few writes.
type slow struct {
	*mem.Register
	took, every time.Duration
	mu          *sync.Mutex
	last        *time.Time
	denied      *int
}

func newSlow(took, every time.Duration) slow {
	return slow{mem.New(), took, every, new(sync.Mutex), new(time.Time), new(int)}
}

func (s slow) Sibling(suffix string) tenure.Register {
	o := newSlow(s.took, s.every)
	o.Register, o.denied = s.Register.Sibling(suffix).(*mem.Register), s.denied
	return o
}

func (s slow) MinWriteInterval() time.Duration { return s.every }

func (s slow) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	time.Sleep(s.took)
	return s.Register.Read(ctx)
}

func (s slow) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	time.Sleep(s.took)
	version, err := s.Register.Write(ctx, value, old)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if time.Since(*s.last) < s.every {
			*s.denied++
		}
		*s.last = time.Now()
	}
	return version, err
}

// TestDoctorFitsDurations: to what was measured, and to what the store allows.
func TestDoctorFitsDurations(t *testing.T) {
	scheme := schemeOf(t)
	t.Parallel()
	s := newSlow(150*time.Millisecond, 150*time.Millisecond)
	tenure.RegisterScheme(scheme, tenure.Driver{Open: opens(s), Price: tenure.Price{ReadsPer10k: 0.004, WritesPer10k: 0.05, Source: "a list"}})
	d := examine(t, scheme+"://x?ttl=2s", 8*time.Second)
	if d.doc.Verdict != usable || *s.denied > 0 {
		t.Errorf("the verdict is %s, and %d writes came sooner than the store allows", d.doc.Verdict, *s.denied)
	}
	if c := d.outcome("durations"); c.Level != tenure.FindingWarning || !strings.Contains(c.Detail, "R/3 = 433ms, less than 3 times the p99") {
		t.Errorf("ttl=2s with requests of 150 ms: %+v", c)
	}
	if p := d.doc.WriteLatency.P50Seconds; p < 0.15 || p > 1 {
		t.Errorf("writes of 150 ms were measured as %v s", p)
	}
	if least := d.doc.Smallest; least == nil || least.LeaseDurationSeconds < 3 || least.LeaseDurationSeconds > 60 || !least.Fits {
		t.Errorf("the smallest durations are %+v", least)
	}
}

func TestDemand(t *testing.T) {
	for _, c := range []struct {
		n    demand
		want time.Duration // the smallest D
	}{
		{demand{}, 2 * time.Second},
		{demand{space: time.Second}, 5 * time.Second},           // P = 0.2 D
		{demand{slow: 200 * time.Millisecond}, 3 * time.Second}, // 3 p99 <= R/3 = 0.2167 D
		{demand{slow: time.Second}, 14 * time.Second},
		{demand{slow: 10 * time.Minute}, 0},
	} {
		got, ok := c.n.smallest(tenure.Options{Register: mem.New()})
		if got.LeaseDuration != c.want || ok != (c.want != 0) {
			t.Errorf("%+v: D = %v, want %v", c.n, got.LeaseDuration, c.want)
		}
	}
}

// TestCostOf is the arithmetic that the drivers' documents show.
func TestCostOf(t *testing.T) {
	got := costOf(tenure.Price{ReadsPer10k: 0.004, WritesPer10k: 0.05, Source: "a list"}, 2*time.Second, true)
	// 1,296,000 renewals and polls; 43,200 minutes with 6 reads and 4 writes.
	want := costDoc{ReadsPerMonth: 1_555_200, WritesPerMonth: 1_468_800, DollarsPerMonth: 7.97, Source: "a list"}
	if *got != want {
		t.Errorf("%+v, want %+v", *got, want)
	}
}

func TestJudgeClock(t *testing.T) {
	for _, c := range []struct {
		offset, slack time.Duration
		level         tenure.FindingLevel
	}{
		{0, time.Second, tenure.FindingOK},
		{-time.Minute, time.Second, tenure.FindingOK}, // it may be less
		{62 * time.Second, time.Second, tenure.FindingWarning},
		{-20 * time.Minute, time.Second, tenure.FindingWarning},
	} {
		if f := judgeClock(c.offset, c.slack).findings[0]; f.Level != c.level {
			t.Errorf("%v ± %v: %+v, want %s", c.offset, c.slack, f, c.level)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tenure.dev"
)

// The levels of checks, beside those of findings.
const (
	// levelFailed: the check could not be made, and has to be.
	levelFailed tenure.FindingLevel = "failed"
	// levelSkipped: it was not made, because of another one.
	levelSkipped tenure.FindingLevel = "skipped"
)

// A verdict is what a doctor's checks come to.
type verdict string

const (
	usable     verdict = "usable"
	mustNotUse verdict = "unsafe"
	notReached verdict = "notReached"
)

// doctorDoc is what doctor prints with -o json.
type doctorDoc struct {
	Lock    string     `json:"lock"`
	Verdict verdict    `json:"verdict"`
	Checks  []checkDoc `json:"checks"`
	// The rest is left out where it could not be measured.
	Clock        *clockDoc   `json:"clock,omitempty"`
	ReadLatency  *latencyDoc `json:"readLatency,omitempty"`
	WriteLatency *latencyDoc `json:"writeLatency,omitempty"`
	Settings     *fitDoc     `json:"settings,omitempty"`
	Smallest     *fitDoc     `json:"smallest,omitempty"`
	Cost         *costDoc    `json:"cost,omitempty"`
}

// checkDoc is the outcome of one check, or one finding of the store's driver.
type checkDoc struct {
	Check   string              `json:"check"`
	Level   tenure.FindingLevel `json:"level"`
	Detail  string              `json:"detail"`
	Next    string              `json:"next,omitempty"`
	Seconds float64             `json:"seconds"`
}

type doctorFlags struct {
	lock    lockFlags
	timeout time.Duration
}

func (a *app) doctorCommand() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor --lock URL",
		Short: "Find out whether a store can be trusted with a lock, and how fast and dear it is",
		Long: `Doctor checks the store of a lock: whether it is reached and lets this account do what an election does, whether
its conditional writes exclude each other under 20 writers at once, what in its configuration would harm an election,
how far its clock is from this one, and how long it takes to answer. From that it says whether the URL's durations fit,
which are the smallest that do, the failover time and the outage of the store that they allow, and the price a month.

It writes only to a key beside the lock, LOCK.probe/doctor.HOST, which stays. To the lock it sends at most one write, a
creation over the record that is there, which a sound store refuses; and only after it has seen that the store is sound.

It exits with 0 if the store is usable, notes and warnings included; 4 if it must not be used; 3 if it was not reached, or a
check that has to be made could not be.`,
		Example: `  tenure doctor --lock 's3://bucket/nightly?region=eu-west-1'
  tenure doctor --lock file:///var/lib/tenure/nightly.lock -o json | jq -r .verdict`,
		Args: noArgs,
		RunE: a.action(func(cmd *cobra.Command, _ []string) error {
			if f.timeout <= 0 {
				return wrongUse("--timeout is %v: it must be longer than nothing", f.timeout)
			}
			ctx, cancel := a.interrupted(cmd.Context())
			defer cancel()
			return a.doctor(ctx, &f)
		}),
	}
	f.lock.add(cmd)
	cmd.Flags().DurationVar(&f.timeout, "timeout", 10*time.Second, "how long each check may take")
	return cmd
}

func (a *app) doctor(ctx context.Context, f *doctorFlags) error {
	if f.lock.url == "" {
		return noLockNamed()
	}
	u, err := tenure.ParseURL(f.lock.url, f.lock.vars)
	if err != nil {
		return &codedError{exitUse, err}
	}
	d := &doctor{app: a, timeout: f.timeout}
	d.doc.Lock = u.String()
	if err := d.examine(ctx, &f.lock); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // interrupted: what was found is no verdict
		return err
	}
	d.doc.Verdict = d.verdict()
	a.print(&d.doc, d.doc.text)
	switch d.doc.Verdict {
	case mustNotUse:
		return &codedError{code: exitRefused}
	case notReached:
		return &codedError{code: exitNobody}
	default:
		return nil
	}
}

// A doctor makes one check after another, and notes what comes of them.
type doctor struct {
	app     *app
	timeout time.Duration
	lock    *tenure.Lock
	// other is a second instance of the lock's register, as another process
	// would have it.
	other tenure.Register
	opt   tenure.Options
	doc   doctorDoc
}

// outcome is what a check comes to. Only if it came in time is any of it used.
type outcome struct {
	findings []tenure.Finding
	// set notes what was measured.
	set func(*doctor)
}

func found(level tenure.FindingLevel, next, format string, args ...any) outcome {
	return outcome{findings: []tenure.Finding{{Level: level, Detail: fmt.Sprintf(format, args...), Next: next}}}
}

// hangGrace is how long a check may take to notice that its time is up.
const hangGrace = 500 * time.Millisecond

// check makes one check within the timeout, also if the driver does not heed
// its context, and reports whether it came through.
func (d *doctor) check(ctx context.Context, name string, f func(context.Context) outcome) bool {
	d.app.progress(name)
	bounded, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	begin := time.Now()
	done := make(chan outcome, 1)
	go func() { done <- f(bounded) }()
	limit := time.NewTimer(d.timeout + hangGrace)
	defer limit.Stop()
	var out outcome
	select {
	case out = <-done:
	case <-ctx.Done():
		return false
	case <-limit.C:
		out = found(levelFailed, "find out what hangs between here and the store, or raise --timeout",
			"no answer within %v, and the driver does not heed that its time is up", d.timeout)
	}
	if out.set != nil {
		out.set(d)
	}
	ok := true
	for _, finding := range out.findings {
		label := name
		if finding.Check != "" {
			label = finding.Check
		}
		d.doc.Checks = append(d.doc.Checks, checkDoc{label, finding.Level, finding.Detail, finding.Next, seconds(time.Since(begin))})
		ok = ok && finding.Level != levelFailed && finding.Level != tenure.FindingUnsafe
	}
	return ok
}

func (d *doctor) skip(why string, names ...string) {
	for _, name := range names {
		d.doc.Checks = append(d.doc.Checks, checkDoc{Check: name, Level: levelSkipped, Detail: why})
	}
}

// examine makes all checks. What one needs of another is its order. The error
// means wrong use.
func (d *doctor) examine(ctx context.Context, f *lockFlags) error {
	var wrong error
	opened := d.check(ctx, "open", func(ctx context.Context) outcome { return d.open(ctx, f, &wrong) })
	if !opened && wrong != nil {
		return wrong
	}
	if !opened {
		d.skip("the lock was not opened", "read", "probe", "writers", "latency", "durations", "price")
		return nil
	}
	if !d.check(ctx, "read", d.read) {
		d.check(ctx, "configuration", d.inspect) // may say why
		d.skip("the store was not reached", "probe", "writers", "latency", "durations", "price")
		return nil
	}
	d.check(ctx, "configuration", d.inspect)
	d.check(ctx, "clock", d.clock)
	safe := d.check(ctx, "probe", d.probe)
	if safe {
		safe = d.check(ctx, "writers", d.writers)
	} else {
		d.skip("the probe did not pass", "writers")
	}
	if safe {
		d.check(ctx, "values", d.values)
		d.check(ctx, "lock", d.mayWriteLock)
		d.check(ctx, "candidates", d.candidates)
		d.check(ctx, "latency", d.latency)
	} else {
		d.skip("conditional writes do not work", "values", "lock", "latency")
	}
	if safe && d.doc.WriteLatency != nil {
		d.check(ctx, "durations", d.fit)
	}
	d.check(ctx, "price", d.price)
	return nil
}

// verdict: what is unsafe outweighs what could not be found out.
func (d *doctor) verdict() verdict {
	v := usable
	for _, c := range d.doc.Checks {
		switch c.Level {
		case tenure.FindingUnsafe:
			return mustNotUse
		case levelFailed:
			v = notReached
		default:
		}
	}
	return v
}

// count returns how many checks came out at a level.
func (d *doctorDoc) count(level tenure.FindingLevel) int {
	n := 0
	for _, c := range d.Checks {
		if c.Level == level {
			n++
		}
	}
	return n
}

func (d *doctorDoc) text(b *strings.Builder) {
	row(b, "lock", "%s", d.Lock)
	warnings := ""
	if n := d.count(tenure.FindingWarning); n > 0 {
		warnings = fmt.Sprintf(", with %d warning(s)", n)
	}
	switch d.Verdict {
	case mustNotUse:
		row(b, "verdict", "must not be used for a lock: see %q below", tenure.FindingUnsafe)
	case notReached:
		row(b, "verdict", "not known: see %q below", levelFailed)
	default:
		row(b, "verdict", "usable%s", warnings)
	}
	b.WriteString("\n")
	for _, c := range d.Checks {
		row(b, fmt.Sprintf("%-14s", plain(c.Check, false)), "%-8s %s", string(c.Level), c.Detail)
		if c.Next != "" {
			row(b, "", "           %s", "→ "+c.Next)
		}
	}
}

// progress tells a person at a terminal what is being done.
func (a *app) progress(what string) {
	if a.output != "json" && a.verbose {
		a.say("checking: %s", what)
	}
}

// unreached says what a request that failed means, in one place for all checks.
func unreached(doing string, err error) outcome {
	next := ""
	if errors.Is(err, context.DeadlineExceeded) {
		next = "see whether this host reaches the store, or raise --timeout"
	}
	return found(levelFailed, next, "%s: %s", doing, message(err))
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tenure.dev"
)

// statusDoc is what status prints with -o json.
type statusDoc struct {
	lockDoc
	Candidates []candidateDoc `json:"candidates"`
	// CandidatesProblem says why they could not be listed.
	CandidatesProblem string `json:"candidatesProblem,omitempty"`
}

type candidateDoc struct {
	tenure.Candidate
	AgeSeconds float64 `json:"ageSeconds"`
	Live       bool    `json:"live"`
	// Leads says that the record names it.
	Leads bool `json:"leads"`
}

func (a *app) statusCommand() *cobra.Command {
	var lock lockFlags
	cmd := &cobra.Command{
		Use:   "status --lock URL",
		Short: "Say who holds a lock, and who stands by",
		Long: `Status makes one look at a lock. From one look nobody can tell a live holder from one that died a moment
ago: the age of the last renewal, by the holder's clock, is a hint. Nothing is changed.

It exits with 0 if a holder is named, 3 if there is no record or nobody holds the lock, 4 if the record
cannot be read or its epoch is implausible.`,
		Example: `  tenure status --lock file:///var/lib/tenure/nightly.lock
  tenure status --lock file:///var/lib/tenure/nightly.lock -o json | jq -r .holder`,
		Args: noArgs,
		RunE: a.action(func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.interrupted(cmd.Context())
			defer cancel()
			return a.status(ctx, &lock)
		}),
	}
	lock.add(cmd)
	return cmd
}

func (a *app) status(ctx context.Context, f *lockFlags) error {
	lock, o, err := f.open(ctx)
	if err != nil {
		return err
	}
	v, err := look(ctx, lock.Register)
	if err != nil {
		return err
	}
	now := time.Now()
	doc := statusDoc{lockDoc: describe(lock.Name, v, o, now), Candidates: []candidateDoc{}}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	all, err := tenure.Candidates(ctx, lock.Register)
	if err != nil {
		doc.CandidatesProblem = message(err)
	}
	for _, c := range all {
		leads := v.State == tenure.RecordHeld && c.ClusterUID == v.Record.ClusterUID
		if leads && c.State == tenure.StateStandby {
			c.State = tenure.StateLeading // the record knows better than an entry written just before
		}
		doc.Candidates = append(doc.Candidates, candidateDoc{c, seconds(now.Sub(c.Time)), c.Live(now), leads})
	}
	slices.SortFunc(doc.Candidates, func(a, b candidateDoc) int {
		return cmp.Or(cmp.Compare(a.Identity, b.Identity), cmp.Compare(a.ClusterUID, b.ClusterUID))
	})
	a.print(doc, func(b *strings.Builder) { doc.text(b, now) })
	return stateError(v.State)
}

// look reads a lock once.
func look(ctx context.Context, reg tenure.Register) (*tenure.View, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return tenure.Look(ctx, reg)
}

// stateError is the exit code that a state stands for. The answer has said why.
func stateError(s tenure.RecordState) error {
	switch s {
	case tenure.RecordHeld, tenure.RecordStranger:
		return nil
	case tenure.RecordUnreadable, tenure.RecordImplausible:
		return &codedError{code: exitRefused}
	default:
		return &codedError{code: exitNobody}
	}
}

func (d *statusDoc) text(b *strings.Builder, now time.Time) {
	d.lockDoc.text(b, now)
	for i, c := range d.Candidates {
		name := "candidates"
		if i > 0 {
			name = ""
		}
		row(b, name, "%s", c.text())
	}
	if d.CandidatesProblem != "" {
		row(b, "candidates", "not known: %s", d.CandidatesProblem)
	}
}

func row(b *strings.Builder, name, format string, args ...any) {
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			args[i] = plain(s, false)
		}
	}
	fmt.Fprintf(b, "%-12s "+format+"\n", append([]any{name}, args...)...)
}

// text writes what the record says, a line each.
func (d *lockDoc) text(b *strings.Builder, now time.Time) {
	row(b, "lock", "%s", d.Lock)
	row(b, "state", "%s", d.stateText())
	if d.Holder != "" {
		row(b, "holder", "%s", d.Holder)
	}
	if d.Candidate != "" {
		row(b, "candidate", "%s", d.Candidate)
	}
	if d.Epoch != 0 {
		row(b, "epoch", "%d", d.Epoch)
	}
	if d.LeaseDurationSeconds != 0 {
		row(b, "ttl", "%ds", d.LeaseDurationSeconds)
	}
	if d.AcquireTime != nil && d.State != tenure.RecordReleased {
		row(b, "since", "%s (%s by its clock)", d.AcquireTime.Format(time.RFC3339), ago(now.Sub(*d.AcquireTime)))
	}
	if d.RenewTime != nil {
		verb := "renewed"
		if d.State == tenure.RecordReleased {
			verb = "released"
		}
		row(b, verb, "%s by its clock", ago(now.Sub(*d.RenewTime)))
	}
	if d.PreferredHolder == tenure.AnyHolder {
		row(b, "preferred", "any other candidate")
	} else if d.PreferredHolder != "" {
		row(b, "preferred", "%s", d.PreferredHolder)
	}
	if p := d.Paused; p != nil {
		why := ""
		if p.Why != "" {
			why = ": " + p.Why
		}
		row(b, "paused", "until %s by %s%s", p.Until.Format(time.RFC3339), p.By, why)
	}
	row(b, "takeover", "%s", d.takeoverText(now))
}

func (d *lockDoc) stateText() string {
	switch d.State {
	case tenure.RecordHeld:
		return "held"
	case tenure.RecordReleased:
		return "released: nobody leads"
	case tenure.RecordAbsent:
		return "absent: there is no record, nobody leads"
	case tenure.RecordStopper:
		return "being waited out: nobody leads"
	case tenure.RecordStranger:
		return "held by another elector's record, not one of Tenure's: candidates wait it out"
	case tenure.RecordImplausible:
		return "implausible: " + d.Problem
	default:
		return "unreadable: " + d.Problem
	}
}

func (d *lockDoc) takeoverText(now time.Time) string {
	text := fmt.Sprintf("at most %.1fs", d.TakeoverSeconds)
	if until := d.pausedUntil(now); until != "" && d.State != tenure.RecordImplausible {
		return "paused: nobody takes it until " + until
	}
	switch d.State {
	case tenure.RecordHeld, tenure.RecordStranger:
		text += " after the holder's last renewal"
	case tenure.RecordImplausible:
		return "never: a person decides (tenure release --force)"
	default:
		text += " if a candidate runs"
	}
	return text
}

// ago says how long ago something was by another clock, which may be ahead.
func ago(d time.Duration) string {
	if d < -time.Second {
		return short(-d) + " in the future"
	}
	return short(max(d, 0)) + " ago"
}

// short rounds a duration to what matters of it.
func short(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return d.Round(time.Second).String()
	default:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
}

func (c *candidateDoc) text() string {
	state := strings.ToLower(string(c.State))
	if !c.Leads && (!c.Live || c.State != tenure.StateStandby) {
		state = "last said " + state // it has died, is frozen, or has just ceased to lead
	}
	text := fmt.Sprintf("%s on %s, %s, seen %s", c.Identity, c.Host, state, ago(time.Duration(c.AgeSeconds*float64(time.Second))))
	if !c.Ready {
		text += ", not contending"
	}
	if !c.Live {
		text += ", gone"
	}
	return text
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"tenure.dev"
)

// lockDoc is what the commands that look at a lock, or change it, print of it
// with -o json. docs/command.md documents each field.
type lockDoc struct {
	Lock                 string             `json:"lock"`
	State                tenure.RecordState `json:"state"`
	Problem              string             `json:"problem,omitempty"`
	Holder               string             `json:"holder,omitempty"`
	Candidate            string             `json:"candidate,omitempty"`
	Epoch                int64              `json:"epoch"`
	LeaseDurationSeconds int64              `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          *time.Time         `json:"acquireTime,omitempty"`
	RenewTime            *time.Time         `json:"renewTime,omitempty"`
	RenewAgeSeconds      *float64           `json:"renewAgeSeconds,omitempty"`
	PreferredHolder      string             `json:"preferredHolder,omitempty"`
	Paused               *tenure.Pause      `json:"paused,omitempty"`
	TakeoverSeconds      float64            `json:"takeoverSeconds"`
}

// describe makes the document of a look at a lock at now.
func describe(name string, v *tenure.View, o tenure.Options, now time.Time) lockDoc {
	d := lockDoc{Lock: name, State: v.State, Epoch: v.Epoch()}
	if v.Why != nil {
		d.Problem = message(v.Why)
	}
	var lease time.Duration
	if r := v.Record; r != nil {
		lease = r.LeaseDuration
		d.Holder, d.Candidate, d.PreferredHolder, d.Paused = r.HolderIdentity, r.Candidate, r.PreferredHolder, r.Paused
		d.LeaseDurationSeconds = int64(lease / time.Second)
		d.AcquireTime, d.RenewTime = stamp(r.AcquireTime), stamp(r.RenewTime)
		if d.Candidate == d.Holder {
			d.Candidate = ""
		}
		if !r.RenewTime.IsZero() {
			age := seconds(now.Sub(r.RenewTime))
			d.RenewAgeSeconds = &age
		}
	}
	known := durations(o, lease)
	switch v.State {
	case tenure.RecordHeld:
		d.TakeoverSeconds = seconds(known.Failover)
	case tenure.RecordReleased:
		d.TakeoverSeconds = seconds(known.Period)
	case tenure.RecordImplausible: // nobody takes it
	default:
		d.TakeoverSeconds = seconds(known.FirstStart)
	}
	return d
}

func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// seconds returns d to the millisecond, as a number for people and JSON.
func seconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond)) / float64(time.Second)
}

// print writes doc as JSON, or what text writes.
func (a *app) print(doc any, text func(*strings.Builder)) {
	if a.output == "json" {
		a.printJSON(doc)
		return
	}
	var b strings.Builder
	text(&b)
	if _, err := fmt.Fprint(a.out, plain(b.String(), true)); err != nil {
		a.unwritten(err)
	}
}

// unwritten notes that the answer did not get out: exit 1, whatever it was.
func (a *app) unwritten(err error) {
	a.lost = true
	fmt.Fprintln(a.err, "tenure: writing the answer:", err)
}

// plain escapes what a terminal might obey, and line ends too unless they are
// ours: anybody may have written what stands in a record.
func plain(s string, lines bool) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) || lines && r == '\n' {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

func (a *app) printJSON(doc any) {
	a.printed = true
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		a.unwritten(err)
	}
}

// say tells a person what goes on, beside the answer.
func (a *app) say(format string, args ...any) {
	fmt.Fprintln(a.err, plain(fmt.Sprintf("tenure: "+format, args...), true))
}

// pausedUntil returns the end of a pause that lasts at now, "" if none does.
func (d *lockDoc) pausedUntil(now time.Time) string {
	if d.Paused == nil || !d.Paused.Until.After(now) {
		return ""
	}
	return d.Paused.Until.Format(time.RFC3339)
}

// summary is one line on a lock.
func (d *lockDoc) summary() string {
	holder := plain(d.Holder, false)
	switch {
	case d.State == tenure.RecordHeld:
		return fmt.Sprintf("held by %s, epoch %d", holder, d.Epoch)
	case d.State == tenure.RecordStranger && d.Holder != "":
		return fmt.Sprintf("held by %s, by another elector's record", holder)
	case d.State == tenure.RecordReleased:
		if until := d.pausedUntil(time.Now()); until != "" {
			return fmt.Sprintf("released, epoch %d: paused, nobody takes it until %s", d.Epoch, until)
		}
		return fmt.Sprintf("released, epoch %d: the first candidate takes it", d.Epoch)
	case d.State == tenure.RecordStopper:
		return fmt.Sprintf("being waited out (%s), epoch %d: nobody leads", holder, d.Epoch)
	case d.State == tenure.RecordAbsent:
		return "there is no record of it: nobody leads"
	default:
		return fmt.Sprintf("%s: %s", strings.ToLower(string(d.State)), d.Problem)
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  tenure version -o json",
		Args:    noArgs,
		RunE: a.action(func(*cobra.Command, []string) error {
			doc := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			a.print(doc, func(b *strings.Builder) {
				fmt.Fprintf(b, "tenure %s (%s, %s)\n", doc.Version, doc.Go, doc.Platform)
			})
			return nil
		}),
	}
}

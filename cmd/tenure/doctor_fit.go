// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"tenure.dev"
)

// fitDoc is a set of durations, and what they give with this store.
type fitDoc struct {
	LeaseDurationSeconds float64 `json:"leaseDurationSeconds"`
	RenewDeadlineSeconds float64 `json:"renewDeadlineSeconds"`
	PeriodSeconds        float64 `json:"periodSeconds"`
	Fits                 bool    `json:"fits"`
	FailoverSeconds      float64 `json:"failoverSeconds"`
	FirstStartSeconds    float64 `json:"firstStartSeconds"`
	StoreOutageSeconds   float64 `json:"storeOutageSeconds"`
}

// Room that the slowest hundredth of requests must leave: they take longer in a
// bad hour than in the seconds in which they were measured.
const (
	timeoutRoom = 3 // times p99, in the R/3 that a request may take
	periodRoom  = 2 // times p99, in P
)

// demand is what a store needs of the durations.
type demand struct {
	slow  time.Duration // p99 of the slower kind of request
	space time.Duration // between two writes
}

// misfit says why durations do not fit, "" if they do.
func (n demand) misfit(d tenure.Durations) string {
	var why []string
	if d.Period < n.space {
		why = append(why, fmt.Sprintf("P = %v is less than the %v that the store needs between two writes", d.Period, n.space))
	}
	if timeout := d.RenewDeadline / 3; timeout < timeoutRoom*n.slow {
		why = append(why, fmt.Sprintf("a request may take R/3 = %v, less than %d times the p99 of %v", round(timeout), timeoutRoom, round(n.slow)))
	}
	if d.Period < periodRoom*n.slow {
		why = append(why, fmt.Sprintf("P = %v is less than %d times the p99 of %v", d.Period, periodRoom, round(n.slow)))
	}
	return strings.Join(why, "; ")
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// smallest returns the shortest durations that fit, R and P following D.
func (n demand) smallest(o tenure.Options) (tenure.Durations, bool) {
	for d := 2 * time.Second; d <= 10*time.Minute; d += time.Second {
		if all := durations(o, d); n.misfit(all) == "" {
			return all, true
		}
	}
	return tenure.Durations{}, false
}

func (n demand) doc(d tenure.Durations) *fitDoc {
	return &fitDoc{
		LeaseDurationSeconds: seconds(d.LeaseDuration), RenewDeadlineSeconds: seconds(d.RenewDeadline), PeriodSeconds: seconds(d.Period),
		Fits: n.misfit(d) == "", FailoverSeconds: seconds(d.Failover), FirstStartSeconds: seconds(d.FirstStart),
		// The last renewal may be a period old when the store goes away, and the
		// first one after it came back takes a request.
		StoreOutageSeconds: seconds(max(0, d.RenewDeadline-d.Period-n.slow)),
	}
}

func (f *fitDoc) String() string {
	return fmt.Sprintf("ttl=%gs, deadline=%gs, renew=%gs: after a crash another leads within %gs, and the leader goes on while the store is away for up to %gs",
		f.LeaseDurationSeconds, f.RenewDeadlineSeconds, f.PeriodSeconds, f.FailoverSeconds, f.StoreOutageSeconds)
}

// fit says whether the URL's durations fit this store.
func (d *doctor) fit(context.Context) outcome {
	n := demand{slow: max(d.doc.ReadLatency.p99, d.doc.WriteLatency.p99), space: writeInterval(d.lock.Register)}
	chosen := durations(d.opt, 0)
	given := n.doc(chosen)
	least, ok := n.smallest(d.opt)
	var out outcome
	switch {
	case !ok:
		out = found(tenure.FindingWarning, "find out what makes the store so slow, or use another", "no durations up to 10 minutes fit: the slowest hundredth of requests takes %v", round(n.slow))
	case given.Fits:
		out = found(tenure.FindingOK, "", "fit: %v", given)
	default:
		out = found(tenure.FindingWarning, "give "+ttlOf(least), "do not fit: %s; %v", n.misfit(chosen), given)
	}
	if ok && least.LeaseDuration != chosen.LeaseDuration {
		out.findings = append(out.findings, tenure.Finding{Check: "smallest", Level: tenure.FindingNote,
			Detail: fmt.Sprintf("the smallest that fit what was measured: %v", n.doc(least))})
	}
	out.set = func(d *doctor) {
		d.doc.Settings = given
		if ok {
			d.doc.Smallest = n.doc(least)
		}
	}
	return out
}

func ttlOf(d tenure.Durations) string { return fmt.Sprintf("ttl=%gs", d.LeaseDuration.Seconds()) }

// costDoc is what an election costs, with one leader and one standby.
type costDoc struct {
	ReadsPerMonth   int64   `json:"readsPerMonth"`
	WritesPerMonth  int64   `json:"writesPerMonth"`
	DollarsPerMonth float64 `json:"dollarsPerMonth"`
	Source          string  `json:"source,omitempty"`
}

const month = 30 * 24 * time.Hour

// costOf counts requests: the leader writes and the standby reads once per P.
// Beside the lock each of the two makes itself known once a minute: it reads and
// writes its entry, lists all and reads both. Stores price lists like writes.
func costOf(p tenure.Price, period time.Duration, peers bool) *costDoc {
	c := &costDoc{ReadsPerMonth: int64(month / period), WritesPerMonth: int64(month / period), Source: p.Source}
	if peers {
		minutes := int64(month / time.Minute)
		c.ReadsPerMonth += 2 * 3 * minutes
		c.WritesPerMonth += 2 * 2 * minutes
	}
	dollars := float64(c.ReadsPerMonth)/10000*p.ReadsPer10k + float64(c.WritesPerMonth)/10000*p.WritesPer10k
	c.DollarsPerMonth = float64(int64(dollars*100+0.5)) / 100
	return c
}

func (d *doctor) price(context.Context) outcome {
	_, siblings := d.lock.Register.(tenure.Siblinger)
	_, lists := d.lock.Register.(tenure.Lister)
	c := costOf(d.lock.Price, durations(d.opt, 0).Period, siblings && lists)
	requests := fmt.Sprintf("one leader and one standby make %.1f million reads and %.1f million writes a month",
		float64(c.ReadsPerMonth)/1e6, float64(c.WritesPerMonth)/1e6)
	out := found(tenure.FindingOK, "", "%s; requests to this store have no price of their own", requests)
	if d.lock.Price != (tenure.Price{}) {
		out = found(tenure.FindingOK, "", "%s, $%.2f (%s); each further standby adds reads", requests, c.DollarsPerMonth, c.Source)
	}
	out.set = func(d *doctor) { d.doc.Cost = c }
	return out
}

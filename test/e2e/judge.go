// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"time"
)

// A Reign is from the first to the last write of one process while it ran. A
// process of ours leads once: when its leadership ends, it ends.
type Reign struct {
	Holder      string
	First, Last Beat
	Writes      int
}

// Reigns sorts the writes of running processes by process, in the order in which
// they began.
func Reigns(beats []Beat) (out []Reign) {
	index := make(map[string]int)
	for _, b := range beats {
		if b.Late {
			continue
		}
		i, ok := index[b.Holder]
		if !ok {
			i = len(out)
			index[b.Holder] = i
			out = append(out, Reign{Holder: b.Holder, First: b})
		}
		out[i].Last = b
		out[i].Writes++
	}
	return out
}

// An Overlap is a reign that had not ended when one of another cluster began.
type Overlap struct{ Early, Late Reign }

func (o Overlap) String() string {
	return fmt.Sprintf("%s wrote until %v after %s had begun (%d and %d writes)",
		o.Early.Holder, o.Early.Last.At.Sub(o.Late.First.At).Round(time.Millisecond), o.Late.Holder, o.Early.Writes, o.Late.Writes)
}

// Overlaps returns all overlaps of processes of different clusters.
func Overlaps(beats []Beat) (out []Overlap) {
	all := Reigns(beats)
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.First.Cluster() != b.First.Cluster() && a.Last.At.After(b.First.At) {
				out = append(out, Overlap{a, b})
			}
		}
	}
	return out
}

// Late returns the writes of processes that were frozen and went on, by holder.
func Late(beats []Beat) map[string]int {
	out := make(map[string]int)
	for _, b := range beats {
		if b.Late {
			out[b.Holder]++
		}
	}
	return out
}

// Leaders returns the clusters that led, in order, each once per turn.
func Leaders(beats []Beat) (out []string) {
	for _, r := range Reigns(beats) {
		if c := r.First.Cluster(); len(out) == 0 || out[len(out)-1] != c {
			out = append(out, c)
		}
	}
	return slices.Clip(out)
}

// Gap returns the longest time without a write of a running process, between a time
// and the last write.
func Gap(since time.Time, beats []Beat) (gap time.Duration) {
	for _, b := range beats {
		if !b.Late {
			gap = max(gap, b.At.Sub(since))
			since = b.At
		}
	}
	return gap
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"

	"tenure.dev"
)

// conditionCases are about what a write may do, one caller at a time.
var conditionCases = []testCase{
	{
		name: "read-absent",
		why:  "a candidate waits before it creates a lock that is absent. A driver that takes an unreachable store for an absent record, or the other way round, makes it create too early, or never.",
		look: "which answers of the store become ErrNotExist: only the one that says that this key has no value.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			p.mustBeAbsent()
			p.mustBeAbsent() // the first read must not have made it
		},
	},
	{
		name: "create",
		why:  "the first candidate makes the lock with a create-only write; without it no lock ever starts.",
		look: "what the zero version becomes in the request: If-None-Match: *, generation 0, INSERT, O_EXCL.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			version := p.mustWrite("made", "")
			p.mustHold("made", version)
		},
	},
	{
		name: "create-exists",
		why:  "two candidates that see an absent record both create it. If the second create succeeds both lead, each with a term that it has every reason to believe in.",
		look: "whether the store honours the create-only condition at all (several ignore headers that they do not know), and whether its refusal becomes ErrConflict.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			version := p.mustWrite("first", "")
			p.mustConflict("second", "")
			p.mustHold("first", version)
		},
	},
	{
		name: "write-current",
		why:  "every renewal is a write at the version that the one before returned. A driver that refuses it loses the term once a period.",
		look: "whether a version is passed back exactly as it came: quotes of an ETag, weak ETags, numbers that were rounded.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			version := p.mustWrite("0", "")
			for _, text := range []string{"1", "2", "3"} {
				version = p.mustWrite(text, version)
				p.mustHold(text, version)
			}
		},
	},
	{
		name: "write-stale",
		why:  "a leader that was frozen past its term renews at the version it remembers. If that write lands it overwrites its successor's record: two leaders.",
		look: "whether the condition reaches the store, and is checked by the store in the same step as the write, not by the driver before it.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			first := p.mustWrite("1", "")
			second := p.mustWrite("2", first)
			p.mustConflict("stale", first)
			p.mustHold("2", second)
			third := p.mustWrite("3", second)
			p.mustConflict("stale", first)
			p.mustConflict("stale", second)
			p.mustHold("3", third)
		},
	},
	{
		name: "write-absent",
		why:  "some stores answer a write at a version with a create when the key is missing. A leader would then bring back a record that somebody removed, beside the candidate that has waited out its absence.",
		look: "the store's answer to a conditional write of a missing key (200, 404 and 412 all exist): anything but a refusal rules the store out, and the refusal must become ErrConflict, not ErrNotExist.",
		run: func(t T, h *Harness) {
			other, p := open(t, h), open(t, h)
			first := other.mustWrite("1", "")
			p.mustConflict("from another register", first)
			p.mustBeAbsent()
			p.mustConflict("from another register", other.mustWrite("2", first))
			p.mustBeAbsent()
		},
	},
	{
		name: "write-deleted",
		why:  "a record may be deleted by hand or by a life-cycle rule while somebody leads. The leader must learn of it as a loss. Were the record created again under the old term, a candidate that has waited out the absence and the old leader would both lead.",
		look: "the store's answer to a conditional write of a key that is gone, delete markers of versioned buckets included.",
		run: func(t T, h *Harness) {
			if h.Delete == nil {
				t.Skipf("the harness has no Delete")
			}
			p := open(t, h)
			version := p.mustWrite("1", "")
			h.Delete(t, p.r)
			p.mustBeAbsent()
			p.mustConflict("2", version)
			p.mustBeAbsent()
			again := p.mustWrite("3", "")
			p.mustConflict("4", version)
			p.mustHold("3", again)
		},
	},
	{
		name: "sentinels",
		why:  "the election decides by errors.Is. A conflict that it cannot recognise is taken for an outage, and a term goes on that is lost; an outage that looks like a conflict ends a term for nothing.",
		look: "that every answer that means a sentinel wraps it with %w, and no other sentinel with it. The store's own error belongs in the chain too.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			_, _, err := p.read()
			mustBeOnly(t, "read of an empty register", err, tenure.ErrNotExist)
			version := p.mustWrite("1", "")
			mustBeOnly(t, "create of an existing register", p.refusal("2", ""), tenure.ErrConflict)
			p.mustWrite("2", version)
			mustBeOnly(t, "write at an old version", p.refusal("3", version), tenure.ErrConflict)
		},
	},
}

func mustBeOnly(t T, what string, err, want error) {
	t.Helper()
	for _, sentinel := range []error{tenure.ErrNotExist, tenure.ErrConflict, tenure.ErrValueTooLarge} {
		if errors.Is(err, sentinel) != errors.Is(want, sentinel) {
			t.Fatalf("%s: error %v; want one that wraps %q, and only that", what, err, want)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import "tenure.dev"

// versionCases are about versions: equal only if nothing was written between.
var versionCases = []testCase{
	{
		name: "version-changes",
		why:  "a version that stays the same over a write of the same bytes hides that write: a writer that saw the state before it can still write over it.",
		look: "what the version is made of. A hash of the content (an object store's ETag) is not a version: store something that differs in every write beside the value, and take it off again in Read.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			first := p.mustWrite("same", "")
			second := p.mustWrite("same", first)
			third := p.mustWrite("same", second)
			mustDiffer(t, first, second, third)
			p.mustConflict("stale", first)
			p.mustConflict("stale", second)
			p.mustHold("same", third)
		},
	},
	{
		name: "version-aba",
		why:  "an order is set and taken back: the record is again what it was. A write delayed since the first state must not fit the third, or it undoes what happened between.",
		look: "what the version is made of: it must never be made of the value alone.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			a := p.mustWrite("A", "")
			b := p.mustWrite("B", a)
			again := p.mustWrite("A", b)
			mustDiffer(t, a, b, again)
			p.mustConflict("delayed", a)
			p.mustHold("A", again)
		},
	},
	{
		name: "version-recreated",
		why:  "a counter that starts anew with the record gives the new record the versions of the old one. The leader from before the deletion then renews a lock that is another's.",
		look: "where the version is counted: in the record it dies with the record. Count over the whole store, use the store's revision, or make a random one for each write.",
		run: func(t T, h *Harness) {
			if h.Delete == nil {
				t.Skipf("the harness has no Delete")
			}
			p := open(t, h)
			var seen []tenure.Version
			for range 3 {
				version := p.mustWrite("same", "")
				seen = append(seen, version, p.mustWrite("same", version))
				h.Delete(t, p.r)
				p.mustBeAbsent()
			}
			p.mustWrite("same", "")
			mustDiffer(t, seen...)
			for _, old := range seen {
				p.mustConflict("delayed", old)
			}
		},
	},
	{
		name: "version-of-write",
		why:  "a leader goes on from the version that its write returned. If a read calls the same state by another name, its next renewal conflicts and the term is lost.",
		look: "that both come from the same field in the same spelling: an ETag with and without quotes, a generation and a metageneration.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			var version tenure.Version
			for _, text := range []string{"0", "1", "2", "3", "4"} {
				version = p.mustWrite(text, version)
				p.mustHold(text, version)
				p.mustHold(text, version) // reading is no change
			}
		},
	},
}

func mustDiffer(t T, versions ...tenure.Version) {
	t.Helper()
	for i, version := range versions {
		for j := range i {
			if versions[j] == version {
				t.Fatalf("two states have version %q; all of them in order: %q", version, versions)
			}
		}
	}
}

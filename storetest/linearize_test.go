// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"strings"
	"testing"
	"time"

	"tenure.dev"
)

// at places an operation in time, in steps of one.
func at(call, answer int, op operation) operation {
	op.call, op.answer = time.Duration(call), time.Duration(answer)
	return op
}

func wrote(text string, old, version tenure.Version) operation {
	return operation{write: true, text: text, old: old, version: version}
}

func conflicted(text string, old tenure.Version) operation {
	return operation{write: true, text: text, old: old, outcome: outcomeConflict}
}

func unanswered(text string, old tenure.Version) operation {
	return operation{write: true, text: text, old: old, outcome: outcomeUnknown}
}

func saw(text string, version tenure.Version) operation {
	return operation{text: text, version: version}
}

func sawNothing() operation { return operation{outcome: outcomeAbsent} }

func TestJudge(t *testing.T) {
	const noOrder = "no order"
	for _, tc := range []struct {
		name string
		ops  []operation
		want string // part of the problem; none if the history is sound
	}{
		{"nothing", nil, ""},
		{"one after another", []operation{
			at(1, 2, sawNothing()),
			at(3, 4, wrote("a", "", "1")),
			at(5, 6, saw("a", "1")),
			at(7, 8, conflicted("b", "")),
			at(9, 10, wrote("c", "1", "2")),
			at(11, 12, saw("c", "2")),
		}, ""},
		{"a read beside a write sees either", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 9, wrote("b", "1", "2")),
			at(4, 5, saw("a", "1")),
			at(6, 7, saw("b", "2")),
		}, ""},
		{"a read beside a write does not go back", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 9, wrote("b", "1", "2")),
			at(4, 5, saw("b", "2")),
			at(6, 7, saw("a", "1")),
		}, noOrder},
		{"stale read", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, wrote("b", "1", "2")),
			at(5, 6, saw("a", "1")),
		}, noOrder},
		{"lost update", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 6, wrote("b", "1", "2")),
			at(4, 5, wrote("c", "1", "3")),
		}, noOrder},
		{"conflict without another version", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, conflicted("b", "1")),
		}, noOrder},
		{"a record that is gone", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, sawNothing()),
		}, noOrder},

		// Writes without an answer fork.
		{"it never happened", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, unanswered("b", "1")),
			at(5, 6, saw("a", "1")),
			at(7, 8, wrote("c", "1", "2")),
		}, ""},
		{"it happened at once", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, unanswered("b", "1")),
			at(5, 6, saw("b", "2")),
			at(7, 8, wrote("c", "2", "3")),
		}, ""},
		{"it happened later", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, unanswered("b", "1")),
			at(5, 6, saw("a", "1")),
			at(7, 8, conflicted("c", "1")),
			at(9, 10, saw("b", "2")),
		}, ""},
		{"it happened and nobody saw it but by a conflict", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, unanswered("b", "1")),
			at(5, 6, conflicted("c", "1")),
		}, ""},
		{"it happened before it was asked for", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, saw("b", "2")),
			at(5, 6, unanswered("b", "1")),
		}, noOrder},
		{"it happened and was undone", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, unanswered("b", "1")),
			at(5, 6, saw("b", "2")),
			at(7, 8, saw("a", "1")),
		}, noOrder},
		{"it happened although its condition was over", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, wrote("b", "1", "2")),
			at(5, 6, unanswered("c", "1")),
			at(7, 8, saw("c", "3")),
		}, noOrder},
		{"two of them, in turn", []operation{
			at(1, 2, unanswered("a", "")),
			at(3, 4, saw("a", "1")),
			at(5, 6, unanswered("b", "1")),
			at(7, 8, unanswered("c", "1")),
			at(9, 10, saw("a", "1")),
			at(11, 12, saw("c", "2")),
		}, ""},
		{"two of them, at one version", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, unanswered("b", "1")),
			at(5, 6, unanswered("c", "1")),
			at(7, 8, saw("b", "2")),
			at(9, 10, saw("c", "3")),
		}, noOrder},
		{"it happened twice", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, unanswered("b", "1")),
			at(5, 6, saw("b", "2")),
			at(7, 8, saw("b", "3")),
		}, "that value has version"},

		// What two operations alone tell.
		{"version repeated", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 4, wrote("b", "1", "2")),
			at(5, 6, wrote("c", "2", "1")),
		}, `that version is the one of "a"`},
		{"torn read", []operation{
			at(1, 2, wrote("a", "", "1")),
			at(3, 9, wrote("b", "1", "2")),
			at(4, 8, saw("a", "2")),
		}, "that version is the one of"},
		{"zero version", []operation{at(1, 2, wrote("a", "", ""))}, "zero version"},
		{"value from nowhere", []operation{at(1, 2, saw("x", "1"))}, "nobody wrote that"},
		{"conflict that was applied", []operation{
			at(1, 2, conflicted("a", "")),
			at(3, 4, saw("a", "1")),
		}, "returned ErrConflict"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := judge(tc.ops)
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("judge found %q; want %q", got, tc.want)
			}
		})
	}
}

// TestJudgeManyUnanswered fails by taking for ever if writes that may never have
// happened are tried at every place.
func TestJudgeManyUnanswered(t *testing.T) {
	ops := []operation{at(0, 1, wrote("start", "", "v0"))}
	for i := range 60 {
		old, next := tenure.Version('a'+rune(i)), tenure.Version('a'+rune(i+1))
		if i == 0 {
			old = "v0"
		}
		ops = append(ops,
			at(10*i+2, 10*i+3, unanswered("lost "+string(next), old)),
			at(10*i+4, 10*i+5, wrote("kept "+string(next), old, next)))
	}
	start := time.Now()
	if problem := judge(ops); problem != "" {
		t.Errorf("a sound history: %s", problem)
	}
	if took := time.Since(start); took > patience/2 {
		t.Errorf("the search took %v", took)
	}
	// And when there is no order at all.
	ops = append(ops, at(10000, 10001, saw("start", "v0")))
	if problem := judge(ops); !strings.Contains(problem, "no order of these") {
		t.Errorf("a stale read after many unanswered writes: %q", problem)
	}
}

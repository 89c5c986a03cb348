// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"tenure.dev"
)

// patience bounds the search for an order of one history.
const patience = 30 * time.Second

// judge returns what is wrong with a history, or nothing. It names what can be
// told from two operations alone before it looks for an order of all of them.
func judge(ops []operation) string {
	if problem := judgePairs(ops); problem != "" {
		return problem
	}
	model, history := linearizable(ops)
	switch porcupine.CheckOperationsTimeout(model, history, patience) {
	case porcupine.Illegal:
		return "no order of these operations is that of a compare-and-swap register"
	case porcupine.Unknown:
		return fmt.Sprintf("no order was found within %v, nor that there is none: lower Harness.Clients or Harness.Requests", patience)
	}
	return ""
}

// judgePairs checks that each text has one version and each version one text.
// Versions that repeat, values that nobody wrote and conflicts that were applied
// all come out here.
func judgePairs(ops []operation) string {
	writes := map[string]operation{}
	textOf, versionOf := map[tenure.Version]string{}, map[string]tenure.Version{}
	pairUp := func(op operation) string {
		if op.version == "" {
			return fmt.Sprintf("%v: the zero version stands for an empty register", op)
		}
		if text, ok := textOf[op.version]; ok && text != op.text {
			return fmt.Sprintf("%v: that version is the one of %q", op, text)
		}
		if version, ok := versionOf[op.text]; ok && version != op.version {
			return fmt.Sprintf("%v: that value has version %q", op, version)
		}
		textOf[op.version], versionOf[op.text] = op.text, op.version
		return ""
	}
	for _, op := range ops {
		if !op.write {
			continue
		}
		writes[op.text] = op
		if op.outcome == outcomeDone {
			if problem := pairUp(op); problem != "" {
				return problem
			}
		}
	}
	for _, op := range ops {
		if op.write || op.outcome == outcomeAbsent {
			continue
		}
		if w, ok := writes[op.text]; !ok {
			return fmt.Sprintf("%v: nobody wrote that", op)
		} else if w.outcome == outcomeConflict {
			return fmt.Sprintf("%v: the write of it returned ErrConflict", op)
		}
		if problem := pairUp(op); problem != "" {
			return problem
		}
	}
	return ""
}

// A registerState is what the model's register holds after some operations.
type registerState struct {
	text    string
	version tenure.Version
	// answered counts the operations so far that were answered.
	answered int
}

// linearizable returns the model of a compare-and-swap register and the history
// in the model's terms.
//
// A write without an answer forks the history: it happened at some time after
// its call, or never. Its operation therefore lasts beyond the end. Wherever its
// condition holds it may be applied; never having happened is told by its place
// after all operations that were answered. Only there may it do nothing, which
// loses no order and spares the search from trying "nothing" at every place.
func linearizable(ops []operation) (porcupine.Model, []porcupine.Operation) {
	answered := 0
	var end time.Duration
	versionOf := map[string]tenure.Version{}
	for _, op := range ops {
		end = max(end, op.answer)
		if op.outcome != outcomeUnknown {
			answered++
		}
		if op.version != "" {
			versionOf[op.text] = op.version
		}
	}
	var history []porcupine.Operation
	for _, op := range ops {
		if op.outcome == outcomeUnknown {
			op.answer = end + 1
			// If anybody saw it, its version is known; if nobody did, it has
			// one that nobody has named.
			op.version = cmp.Or(versionOf[op.text], tenure.Version("unseen "+op.text))
		}
		history = append(history, porcupine.Operation{
			ClientId: op.client, Input: op, Call: int64(op.call), Return: int64(op.answer),
		})
	}
	model := porcupine.Model{
		Init: func() any { return registerState{} },
		Step: func(state, input, _ any) (bool, any) {
			return step(state.(registerState), input.(operation), answered)
		},
		DescribeOperation: func(input, _ any) string { return input.(operation).String() },
		DescribeState: func(state any) string {
			s := state.(registerState)
			return fmt.Sprintf("%s @%s", s.text, s.version)
		},
	}
	return model, history
}

// step reports whether the operation can come next, and the state after it.
func step(s registerState, op operation, answered int) (bool, registerState) {
	if op.outcome == outcomeUnknown {
		if s.version == op.old {
			return true, registerState{op.text, op.version, s.answered}
		}
		return s.answered == answered, s
	}
	next := s
	next.answered++
	switch {
	case !op.write: // an absent register has neither text nor version
		return s.text == op.text && s.version == op.version, next
	case op.outcome == outcomeConflict:
		return s.version != op.old, next
	default:
		next.text, next.version = op.text, op.version
		return s.version == op.old, next
	}
}

// draw writes a drawing of the history to a file in the folder and says where it
// is; the file is for whoever reads the failure, and stays. Without a drawing it
// returns the operations.
func draw(folder string, ops []operation) string {
	model, history := linearizable(ops)
	_, info := porcupine.CheckOperationsVerbose(model, history, patience)
	f, err := os.CreateTemp(folder, "tenure-history-*.html")
	if err != nil {
		return fmt.Sprintf("no drawing: %v\n%s", err, list(ops))
	}
	err = errors.Join(porcupine.Visualize(model, info, f), f.Close())
	if err != nil {
		return fmt.Sprintf("no drawing: %v\n%s", err, list(ops))
	}
	return "drawing, for a browser: " + f.Name()
}

// list prints the operations in the order of their calls.
func list(ops []operation) string {
	ops = slices.SortedFunc(slices.Values(ops), func(a, b operation) int { return cmp.Compare(a.call, b.call) })
	out := ""
	for _, op := range ops {
		out += fmt.Sprintf("%12v %12v client %d: %v\n", op.call, op.answer, op.client, op)
	}
	return out
}

// String says what was asked and what was answered.
func (op operation) String() string {
	switch {
	case !op.write && op.outcome == outcomeAbsent:
		return "read: absent"
	case !op.write:
		return fmt.Sprintf("read: %q, version %q", op.text, op.version)
	case op.outcome == outcomeConflict:
		return fmt.Sprintf("write %q at %q: conflict", op.text, op.old)
	case op.outcome == outcomeUnknown:
		return fmt.Sprintf("write %q at %q: no answer", op.text, op.old)
	default:
		return fmt.Sprintf("write %q at %q: version %q", op.text, op.old, op.version)
	}
}

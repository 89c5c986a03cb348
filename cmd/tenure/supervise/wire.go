// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package supervise

import (
	"fmt"
	"strconv"
	"strings"
)

// What goes through the two pipes is lines. Tenure to watchdog: an order as
// JSON, then messages; the end of the pipe means kill. Watchdog to tenure:
// messages. A message is a word and numbers, shorter than what a pipe takes in
// one piece, so none is ever cut.
const (
	msgDeadline = "deadline" // the new instant to kill at, ns of bootNow
	msgSignal   = "signal"   // number, for the process group

	msgStarted  = "started"  // pid
	msgFailed   = "failed"   // errno of the exec
	msgSurvivor = "survivor" // pid, errno: it would not die for a second
	msgEnded    = "ended"    // cause, wait status, leftovers: everything is dead
)

// marker is the environment variable that makes a process a watchdog.
const marker = "TENURE_WATCHDOG"

// The watchdog's ends of the pipes.
const (
	fdControl = 3
	fdReport  = 4
)

// order is what to run. Arguments and environment are bytes, not text: JSON
// strings would mangle what is not UTF-8.
type order struct {
	Path   []byte
	Argv   [][]byte
	Env    [][]byte
	Dir    []byte
	KillAt int64
}

type message struct {
	word string
	args []int64
}

func encode(word string, args ...int64) []byte {
	b := []byte(word)
	for _, a := range args {
		b = strconv.AppendInt(append(b, ' '), a, 10)
	}
	return append(b, '\n')
}

// decode reads a line that encode wrote with n numbers for each known word.
func decode(line string) (message, error) {
	counts := map[string]int{
		msgDeadline: 1, msgSignal: 1,
		msgStarted: 1, msgFailed: 1, msgSurvivor: 2, msgEnded: 3,
	}
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return message{}, fmt.Errorf("supervise: an empty message")
	}
	m := message{word: fields[0]}
	for _, f := range fields[1:] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return message{}, fmt.Errorf("supervise: message %q: %w", line, err)
		}
		m.args = append(m.args, n)
	}
	if want, ok := counts[m.word]; !ok || len(m.args) != want {
		return message{}, fmt.Errorf("supervise: message %q is not known", line)
	}
	return m, nil
}

// clean makes an environment fit for the command: the last of several entries
// for a name counts, as os/exec has it, and the marker stays out.
func clean(env []string) (kept [][]byte) {
	last := map[string]int{}
	name := func(entry string) string { n, _, _ := strings.Cut(entry, "="); return n }
	for i, e := range env {
		last[name(e)] = i
	}
	for i, e := range env {
		if n := name(e); last[n] == i && n != marker {
			kept = append(kept, []byte(e))
		}
	}
	return kept
}

func strs(b [][]byte) []string {
	s := make([]string, len(b))
	for i := range b {
		s[i] = string(b[i])
	}
	return s
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package nearest

import "testing"

func TestWord(t *testing.T) {
	words := []string{"identity", "lock", "maxttl", "once", "pause", "status", "timeout", "ttl", "wait"}
	for typed, want := range map[string]string{
		"identiy": "identity", "idnetity": "identity", "lcok": "lock", "one": "once", "stat": "status",
		"tll": "ttl", "wiat": "wait", "": "", "XYZQ": "",
		"bogus": "", "x": "", "foo": "", "tl": "ttl", "tmieot": "timeout", "paws": "",
	} {
		if got := Word(typed, words); got != want {
			t.Errorf("the nearest to %q is %q, want %q", typed, got, want)
		}
	}
	if got := Word("a", nil); got != "" {
		t.Errorf("of no words, %q is the nearest", got)
	}
}

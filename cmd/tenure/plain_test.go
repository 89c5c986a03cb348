// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"
)

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"plain näme":               "plain näme",
		"a\x1b[31mred":             `a\x1b[31mred`,
		"a\nholder       fake":     `a\nholder       fake`,
		"tab\there\x00 and bell\a": `tab\there\x00 and bell\a`,
	} {
		if got := plain(in, false); got != want {
			t.Errorf("plain(%q) is %q, want %q", in, got, want)
		}
	}
	if got := plain("a\nb", true); got != "a\nb" {
		t.Errorf("its own line ends are gone: %q", got)
	}
}

// TestAnswerLost: an answer that cannot be written is a failure.
func TestAnswerLost(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"version"}, {"version", "-o", "json"}} {
		if code := execute(t.Context(), args, stdio{os.Stdin, full, os.Stderr}); code != exitFailed {
			t.Errorf("%v exits with %d, want %d", args, code, exitFailed)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"tenure.dev/cmd/tenure/supervise"
)

// TestMain makes the test binary also the programs that the tests start:
// tenure itself, a command for it to run, and a helper that is another user.
func TestMain(m *testing.M) {
	supervise.Watchdog()
	// Else every program sleeps for a second when it ends, if built with -race.
	os.Setenv("GORACE", goRace)
	testscript.Main(m, map[string]func(){
		"tenure": main,
		"beat":   beatMain,
		"nobody": nobodyMain,
	})
}

const goRace = "atexit_sleep_ms=0"

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", goRace)
			env.Setenv("L", "file://"+env.WorkDir+"/lock")
			// The helper that is another user must come through.
			return os.Chmod(filepath.Dir(env.WorkDir), 0o711)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"waitfor": waitFor,
			"fill":    fill,
		},
	})
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
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
	testscript.Main(heedful{m}, map[string]func(){
		"tenure": main,
		"beat":   beatMain,
		"nobody": nobodyMain,
	})
}

// heedful runs the tests with HUP caught: what it starts has HUP by default then,
// also when the tests themselves were started to ignore it, as nohup(1) does.
type heedful struct{ *testing.M }

func (h heedful) Run() int {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	return h.M.Run()
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

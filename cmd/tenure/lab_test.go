// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/store/file"
)

// A lab is a lock in a folder, and copies of tenure run that contend for it.
type lab struct {
	t      *testing.T
	folder string
	path   string // of the record
	log    string // of the commands
	params string // of the lock's URL, "?ttl=3s"
	reg    *file.Register
	beats  beatLog
}

func newLab(t *testing.T, params string) *lab {
	t.Helper()
	folder := t.TempDir()
	l := &lab{t: t, folder: folder, path: filepath.Join(folder, "lock"), log: filepath.Join(folder, "log"), params: params}
	l.beats.path = l.log
	var err error
	if l.reg, err = file.Open(t.Context(), l.path); err != nil {
		t.Fatal(err)
	}
	return l
}

// create makes the lock, so that its first leader need not wait.
func (l *lab) create() {
	l.t.Helper()
	if _, err := tenure.Init(l.t.Context(), l.reg, tenure.InitOptions{Who: "test", FirstEver: true}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) url() string { return "file://" + l.path + l.params }

// A runCopy is one process of tenure run.
type runCopy struct {
	lab      *lab
	identity string
	cmd      *exec.Cmd
	done     chan struct{} // closed when it has been waited for
	errors   *syncFile
}

// syncFile collects what a process says.
type syncFile struct {
	mu sync.Mutex
	b  []byte
}

func (f *syncFile) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.b = append(f.b, p...)
	return len(p), nil
}

func (f *syncFile) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.b)
}

// start runs a copy; args are flags, "--" and the command, or none for the
// default command.
func (l *lab) start(identity string, args ...string) *runCopy {
	l.t.Helper()
	if len(args) == 0 {
		args = []string{"--", "beat", l.log}
	}
	c := &runCopy{lab: l, identity: identity, done: make(chan struct{}), errors: &syncFile{}}
	c.cmd = exec.Command("tenure", append([]string{"run", "--lock", l.url(), "--identity", identity}, args...)...)
	// A pipe that the command inherits would keep Wait waiting; the tests look
	// at what was said, and that tenure has ended is seen by its process.
	c.cmd.Stdout, c.cmd.Stderr = c.errors, c.errors
	c.cmd.WaitDelay = 2 * time.Second
	c.cmd.SysProcAttr = dieWithTest()
	if err := c.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	l.t.Cleanup(c.end)
	return c
}

// end kills the copy if it lives, which kills its command.
func (c *runCopy) end() {
	select {
	case <-c.done:
	default:
		_ = c.cmd.Process.Kill()
		<-c.done
	}
	if c.lab.t.Failed() {
		c.lab.t.Logf("%s said:\n%s", c.identity, c.errors)
	}
}

func (c *runCopy) signal(s syscall.Signal) {
	if err := c.cmd.Process.Signal(s); err != nil {
		c.lab.t.Errorf("signal %v to %s: %v", s, c.identity, err)
	}
}

// exit waits until the copy ends, and returns its exit code.
func (c *runCopy) exit(within time.Duration) int {
	c.lab.t.Helper()
	select {
	case <-c.done:
	case <-time.After(within):
		c.lab.t.Fatalf("%s has not ended within %v", c.identity, within)
	}
	return c.cmd.ProcessState.ExitCode()
}

// lives reads the log of the commands.
func (l *lab) lives() []life {
	l.t.Helper()
	all, err := l.beats.read()
	if err != nil {
		l.t.Fatal(err)
	}
	return all
}

// await waits until the log satisfies ok, and returns it.
func (l *lab) await(within time.Duration, what string, ok func([]life) bool) []life {
	l.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		all := l.lives()
		if ok(all) {
			return all
		}
		if time.Now().After(end) {
			l.t.Fatalf("%s: not within %v; the log has %+v", what, within, all)
		}
	}
}

// leader waits for the n-th command to run, the first is 1.
func (l *lab) leader(n int, within time.Duration) life {
	l.t.Helper()
	all := l.await(within, fmt.Sprintf("command %d runs", n), func(all []life) bool { return len(all) >= n })
	return all[n-1]
}

func (l *lab) check() {
	l.t.Helper()
	if err := checkLives(l.lives()); err != nil {
		l.t.Error(err)
	}
}

// look reads the lock.
func (l *lab) look() *tenure.View {
	l.t.Helper()
	v, err := tenure.Look(l.t.Context(), l.reg)
	if err != nil {
		l.t.Fatal(err)
	}
	return v
}

// damage writes what is no record of the lock's.
func (l *lab) damage(content string) {
	l.t.Helper()
	if err := os.WriteFile(l.path, []byte(content), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

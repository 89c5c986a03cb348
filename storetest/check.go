// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
)

// A Result is what became of one case.
type Result struct {
	Case            string
	Failed, Skipped bool
	Log             string
}

// Check runs the named cases, or all if none is named, outside the test
// framework, and reports instead of failing: it is how a store that must fail is
// tested. It blocks until the last case is done; the end of ctx ends the context
// of the cases. It panics if there is no case of a name.
func Check(ctx context.Context, h Harness, names ...string) []Result {
	full := h.withDefaults()
	all := allCases()
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c testCase) bool { return c.name == name }) {
			panic(fmt.Sprintf("storetest: there is no case %q", name))
		}
	}
	var results []Result
	for _, c := range all {
		if len(names) == 0 || slices.Contains(names, c.name) {
			results = append(results, record(ctx, c, full))
		}
	}
	return results
}

// record runs the case in a goroutine of its own, which Fatalf and Skipf end.
func record(ctx context.Context, c testCase, h *Harness) Result {
	ctx, cancel := context.WithCancel(ctx)
	t := &recorder{name: c.name, ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer t.cleanUp()
		defer cancel() // before the clean-up, as in package testing
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		c.check(t, h)
	}()
	<-done
	t.mu.Lock()
	defer t.mu.Unlock()
	return Result{Case: c.name, Failed: t.failed, Skipped: t.skipped, Log: t.log.String()}
}

// A recorder is a [T] that remembers.
type recorder struct {
	name string
	ctx  context.Context

	mu              sync.Mutex
	failed, skipped bool
	log             strings.Builder
	cleanups        []func()
}

func (t *recorder) Context() context.Context { return t.ctx }
func (t *recorder) Helper()                  {}
func (t *recorder) Name() string             { return t.name }

func (t *recorder) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *recorder) cleanUp() {
	t.mu.Lock()
	cleanups := t.cleanups
	t.mu.Unlock()
	for _, f := range slices.Backward(cleanups) {
		f()
	}
}

func (t *recorder) Logf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(&t.log, format+"\n", args...)
}

func (t *recorder) Errorf(format string, args ...any) {
	t.Logf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = true
}

func (t *recorder) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

func (t *recorder) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

func (t *recorder) Skipf(format string, args ...any) {
	t.Logf(format, args...)
	t.mu.Lock()
	t.skipped = true
	t.mu.Unlock()
	runtime.Goexit()
}

func (t *recorder) TempDir() string {
	dir, err := os.MkdirTemp("", "storetest-")
	if err != nil {
		t.Fatalf("make a folder for the case: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"tenure.dev"
)

// Exit codes; docs/command.md says what each means.
const (
	exitFailed  = 1
	exitUse     = 2
	exitNobody  = 3
	exitRefused = 4
	exitLost    = 5
)

// A codedError ends the program with an exit code.
type codedError struct {
	code int
	err  error // nil: there is nothing to say
}

func (e *codedError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

func fail(code int, format string, args ...any) error {
	return &codedError{code, fmt.Errorf(format, args...)}
}

func wrongUse(format string, args ...any) error { return fail(exitUse, format, args...) }

// exitCode returns the code that err ends the program with. What carries none
// comes from reading the command line.
func exitCode(err error) int {
	var coded *codedError
	if errors.As(err, &coded) {
		return coded.code
	}
	return exitUse
}

// codeOf returns the exit code for an error of the core or a driver.
func (a *app) codeOf(err error) int {
	var unsafe *tenure.UnsafeStoreError
	stopped := int(a.stopped.Load())
	switch {
	case stopped != 0 && errors.Is(err, context.Canceled):
		return 128 + stopped
	case errors.Is(err, tenure.ErrURL), errors.Is(err, tenure.ErrUnknownCandidate):
		return exitUse
	case errors.Is(err, tenure.ErrNoLeader), errors.Is(err, tenure.ErrNotExist):
		return exitNobody
	case errors.As(err, &unsafe),
		errors.Is(err, tenure.ErrUnusable), errors.Is(err, tenure.ErrOtherEpoch), errors.Is(err, tenure.ErrImplausibleEpoch),
		errors.Is(err, tenure.ErrDuplicateIdentity), errors.Is(err, tenure.ErrSettingsDiffer), errors.Is(err, tenure.ErrPaused):
		return exitRefused
	}
	return exitFailed
}

// message is an error's text without the package's name before each line.
func message(err error) string {
	text := err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		text += "; the store did not answer in time"
	}
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		l = strings.TrimPrefix(l, "tenure: ")
		lines[i] = strings.ReplaceAll(l, ": tenure: ", ": ")
	}
	return strings.Join(lines, "\n  ")
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

// logLines is how many lines wait, at most, for whoever reads them.
const logLines = 1000

// A logWriter never blocks. Whoever stops reading a leader's log, a terminal
// with Ctrl-S or a full pipe, must not stop its renewals: lines are dropped.
type logWriter struct {
	lines   chan []byte
	flushed chan chan struct{}
	dropped atomic.Int64
}

func newLogWriter(to io.Writer) *logWriter {
	w := &logWriter{lines: make(chan []byte, logLines), flushed: make(chan chan struct{})}
	go w.run(to)
	return w
}

func (w *logWriter) run(to io.Writer) {
	write := func(line []byte) {
		_, _ = to.Write(line) // there is nowhere to complain
		if n := w.dropped.Swap(0); n > 0 {
			fmt.Fprintf(to, "tenure: %d lines were dropped because nobody read them\n", n)
		}
	}
	for {
		select {
		case line := <-w.lines:
			write(line)
		case done := <-w.flushed:
			for range len(w.lines) {
				write(<-w.lines)
			}
			close(done)
		}
	}
}

// Write implements [io.Writer] for one line at a time.
func (w *logWriter) Write(line []byte) (int, error) {
	select {
	case w.lines <- append([]byte(nil), line...):
	default:
		w.dropped.Add(1)
	}
	return len(line), nil
}

// flush waits until what was written is out, or for a second.
func (w *logWriter) flush() {
	done := make(chan struct{})
	timeout := time.After(time.Second)
	select {
	case w.flushed <- done:
	case <-timeout:
		return
	}
	select {
	case <-done:
	case <-timeout:
	}
}

// logger writes to w as the output flag says.
func (a *app) logger(w io.Writer) *slog.Logger {
	opt := &slog.HandlerOptions{Level: slog.LevelInfo}
	if a.verbose {
		opt.Level = slog.LevelDebug
	}
	if a.output == "json" {
		opt.ReplaceAttr = readable
		return slog.New(slog.NewJSONHandler(w, opt))
	}
	return slog.New(slog.NewTextHandler(w, opt))
}

// readable writes durations in JSON as in text, "1.5s", not as nanoseconds.
func readable(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() == slog.KindDuration {
		attr.Value = slog.StringValue(attr.Value.Duration().String())
	}
	return attr
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// beatEvery is how often the command under test says that it lives.
const beatEvery = 4 * time.Millisecond

// beatMain is the command that the tests run: it appends a line to a log every
// few milliseconds, with a time that all processes of the machine share. At
// TERM and INT it ends, after -linger; with -stubborn only KILL ends it.
func beatMain() {
	stubborn := flag.Bool("stubborn", false, "")
	linger := flag.Duration("linger", 0, "")
	life := flag.Duration("life", time.Hour, "")
	code := flag.Int("exit", 0, "")
	flag.Parse()
	path := flag.Arg(0)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	log, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		fmt.Fprintln(os.Stderr, "beat:", err)
		os.Exit(1)
	}
	say := func(word string) {
		fmt.Fprintf(log, "%s %s %s %d %d\n", word, os.Getenv("TENURE_EPOCH"), os.Getenv("TENURE_IDENTITY"), os.Getpid(), monotonic())
	}
	say("start")
	end := time.After(*life)
	tick := time.NewTicker(beatEvery)
	for n := 0; ; n++ {
		select {
		case <-tick.C:
			say("beat")
			if _, err := os.Stat(path); n%250 == 0 && errors.Is(err, os.ErrNotExist) {
				os.Exit(1) // the test is over
			}
		case <-signals:
			say("asked")
			if !*stubborn {
				end = time.After(*linger)
			}
		case <-end:
			say("end")
			os.Exit(*code)
		}
	}
}

// A life is what the log says of one process.
type life struct {
	epoch       int64
	identity    string
	pid         int
	first, last int64 // monotonic, ns
	asked       int64 // when it got TERM, or 0
	ended       bool  // by itself
}

// A beatLog reads what the commands append to a log, each line once.
type beatLog struct {
	path   string
	offset int64
	all    []life
	newest map[int]int // by process id, an index of all
}

// read returns the processes in the order in which they began.
func (b *beatLog) read() ([]life, error) {
	f, err := os.Open(b.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(b.offset, io.SeekStart); err != nil {
		return nil, err
	}
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) { // a line without an end is not there yet
			break
		} else if err != nil {
			return nil, err
		}
		b.offset += int64(len(line))
		if err := b.take(line); err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(slices.Values(b.all), func(a, b life) int { return cmp.Compare(a.first, b.first) }), nil
}

func (b *beatLog) take(line string) error {
	var word string
	var l life
	if _, err := fmt.Sscan(line, &word, &l.epoch, &l.identity, &l.pid, &l.first); err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	if b.newest == nil {
		b.newest = map[int]int{}
	}
	if word == "start" {
		b.newest[l.pid] = len(b.all)
		b.all = append(b.all, l)
	}
	n, ok := b.newest[l.pid]
	if !ok || b.all[n].epoch != l.epoch {
		return fmt.Errorf("%q: that process has not started", line)
	}
	b.all[n].last = l.first
	switch word {
	case "asked":
		b.all[n].asked = l.first
	case "end":
		b.all[n].ended = true
	}
	return nil
}

// checkLives returns what must never be: two alive at once, or an epoch that
// does not grow.
func checkLives(all []life) error {
	var errs []error
	for i, b := range all {
		if i == 0 {
			continue
		}
		a := all[i-1]
		if b.first <= a.last {
			errs = append(errs, fmt.Errorf("two commands were alive at once for %v: %+v and %+v", time.Duration(a.last-b.first), a, b))
		}
		if b.epoch <= a.epoch {
			errs = append(errs, fmt.Errorf("the epoch does not grow: %+v and then %+v", a, b))
		}
	}
	return errors.Join(errs...)
}

// TestCheckLives: the check finds what it is there to find.
func TestCheckLives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	b := beatLog{path: path}
	add := func(lines string) []life {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(lines); err != nil {
			t.Fatal(err)
		}
		all, err := b.read()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if all := add("start 1 a 10 100\nbeat 1 a 10 200\nbeat 1"); len(all) != 1 || all[0].last != 200 || checkLives(all) != nil {
		t.Errorf("one process: %+v, %v", all, checkLives(all))
	}
	if all := add(" a 10 300\nstart 2 b 11 301\nend 2 b 11 400\n"); len(all) != 2 || !all[1].ended || checkLives(all) != nil {
		t.Errorf("one after the other: %+v, %v", all, checkLives(all))
	}
	if err := checkLives(add("start 2 c 12 500\n")); err == nil || !strings.Contains(err.Error(), "does not grow") {
		t.Errorf("an epoch that stays was not found: %v", err)
	}
	if err := checkLives(add("start 3 a 10 450\nbeat 3 a 10 501\n")); err == nil || !strings.Contains(err.Error(), "alive at once") {
		t.Errorf("two alive at once were not found: %v", err)
	}
}

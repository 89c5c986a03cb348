// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
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

// lives reads a log: the processes in the order in which they began.
func lives(path string) ([]life, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	byPid := map[int]*life{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var word string
		var l life
		if _, err := fmt.Sscan(lines.Text(), &word, &l.epoch, &l.identity, &l.pid, &l.first); err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		known := byPid[l.pid]
		if known == nil || word == "start" && known.epoch != l.epoch {
			if known != nil {
				return nil, fmt.Errorf("process id %d was used twice", l.pid)
			}
			known = &l
			byPid[l.pid] = known
		}
		known.last = l.first
		switch word {
		case "asked":
			known.asked = l.first
		case "end":
			known.ended = true
		}
	}
	var all []life
	for _, l := range byPid {
		all = append(all, *l)
	}
	slices.SortFunc(all, func(a, b life) int { return cmp.Compare(a.first, b.first) })
	return all, nil
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

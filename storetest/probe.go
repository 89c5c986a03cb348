// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tenure.dev"
)

// attempts bounds how often the suite repeats a request that was not answered.
const attempts = 20

// again waits before a request is repeated, longer each time, for stores that
// limit their rate, and reports whether to repeat it: not beyond Timeout.
func (p *probe) again(n int) bool {
	wait := min(time.Millisecond<<n, time.Second)
	return n < attempts && wait <= p.h.Timeout/4 && pause(p.t.Context(), wait) == nil
}

// A probe makes requests of one register for a case, in texts. Requests may
// fail without an answer; a probe repeats those, which is right only because it
// knows what such an error leaves open.
type probe struct {
	t T
	h *Harness
	r tenure.Register
}

// open returns a probe on a new register.
func open(t T, h *Harness) *probe { return &probe{t, h, h.New(t)} }

// answered reports whether the error is an answer of the store about the
// register's state: after any other nothing is known.
func answered(err error) bool {
	return err == nil || errors.Is(err, tenure.ErrConflict) ||
		errors.Is(err, tenure.ErrNotExist) || errors.Is(err, tenure.ErrValueTooLarge)
}

func (h *Harness) encode(text string) []byte {
	if h.Encode == nil {
		return []byte(text)
	}
	return h.Encode(text)
}

func (h *Harness) decode(value []byte) (string, error) {
	if h.Decode == nil {
		return string(value), nil
	}
	return h.Decode(value)
}

// readOnce makes one request.
func (p *probe) readOnce() (string, tenure.Version, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), p.h.Timeout)
	defer cancel()
	value, version, err := p.r.Read(ctx)
	if err != nil {
		return "", version, err
	}
	text, err := p.h.decode(value)
	return text, version, err
}

// writeOnce makes one request.
func (p *probe) writeOnce(text string, old tenure.Version) (tenure.Version, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), p.h.Timeout)
	defer cancel()
	return p.r.Write(ctx, p.h.encode(text), old)
}

// read reads until the store answers.
func (p *probe) read() (text string, version tenure.Version, err error) {
	for n := 0; ; n++ {
		text, version, err = p.readOnce()
		if answered(err) {
			return text, version, err
		}
		if !p.again(n) {
			return "", "", fmt.Errorf("no answer to %d reads: %w", n+1, err)
		}
	}
}

// write writes until the store answers. Only for cases in which nobody else
// writes: if an unanswered write may have happened, it reads to find out.
func (p *probe) write(text string, old tenure.Version) (tenure.Version, error) {
	var last error
	for n := 0; ; n++ {
		version, err := p.writeOnce(text, old)
		if err == nil || last == nil && answered(err) {
			return version, err
		}
		last = err
		got, version, err := p.read()
		switch {
		case !answered(err):
			return "", err
		case err == nil && version != old && got == text:
			return version, nil
		case version != old:
			return "", fmt.Errorf("after an error (%w) the register holds %q, version %q", last, got, version)
		}
		if !p.again(n) {
			return "", fmt.Errorf("no answer to %d writes: %w", n+1, last)
		}
	}
}

func (p *probe) mustRead() (string, tenure.Version) {
	p.t.Helper()
	text, version, err := p.read()
	if err != nil {
		p.t.Fatalf("read: %v", err)
	}
	return text, version
}

func (p *probe) mustWrite(text string, old tenure.Version) tenure.Version {
	p.t.Helper()
	version, err := p.write(text, old)
	if err != nil {
		p.t.Fatalf("write %.40q at version %q: %v", text, old, err)
	}
	if version == "" {
		p.t.Fatalf("write %.40q at version %q returned the zero version, which means that the register is empty", text, old)
	}
	return version
}

// refusal returns the store's answer to a write with a version that the register
// does not have. Such a write does nothing, so it may be repeated.
func (p *probe) refusal(text string, old tenure.Version) (err error) {
	for n := 0; ; n++ {
		if _, err = p.writeOnce(text, old); answered(err) || !p.again(n) {
			return err
		}
	}
}

// mustConflict writes with a version that the register does not have.
func (p *probe) mustConflict(text string, old tenure.Version) {
	p.t.Helper()
	err := p.refusal(text, old)
	switch {
	case err == nil:
		p.t.Fatalf("write %.40q at version %q, which the register does not have, succeeded; want ErrConflict", text, old)
	case !errors.Is(err, tenure.ErrConflict):
		p.t.Fatalf("write %.40q at version %q, which the register does not have: %v; want an error that wraps ErrConflict", text, old, err)
	}
}

// mustHold reads and compares.
func (p *probe) mustHold(text string, version tenure.Version) {
	p.t.Helper()
	got, v := p.mustRead()
	if got != text || v != version {
		p.t.Fatalf("the register holds %.80q, version %q; want %.80q, version %q", got, v, text, version)
	}
}

func (p *probe) mustBeAbsent() {
	p.t.Helper()
	text, version, err := p.read()
	if !errors.Is(err, tenure.ErrNotExist) {
		p.t.Fatalf("read of an empty register: %.40q, version %q, error %v; want an error that wraps ErrNotExist", text, version, err)
	}
	if text != "" || version != "" {
		p.t.Fatalf("read of an empty register returned %.40q, version %q with its error; want nothing and the zero version", text, version)
	}
}

// together runs n goroutines and returns when all have ended; the first error
// ends the case.
func together(t T, n int, f func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v", err)
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	whyContext  = "a leader stops its work when a renewal has not been answered in time. A call that stays after its context has ended holds up the loop that would notice, and the term runs out while the work goes on."
	lookContext = "that ctx reaches the request itself, every retry and every wait for a lock or a connection, and that errors wrap ctx.Err(): some clients return a status of their own instead."
)

// contextCases are about calls that must end.
var contextCases = []testCase{
	{
		name: "context-cancelled", why: whyContext, look: lookContext,
		run: func(t T, h *Harness) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			testEnded(t, h, ctx, context.Canceled)
		},
	},
	{
		name: "context-expired", why: whyContext, look: lookContext,
		run: func(t T, h *Harness) {
			ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Hour))
			defer cancel()
			testEnded(t, h, ctx, context.DeadlineExceeded)
		},
	},
	{
		name: "context-ends-meanwhile", why: whyContext, look: lookContext,
		run: testEndsMeanwhile,
	},
}

// testEnded calls with a context that has ended already. Such a write should not
// happen, but the interface allows it: only that it returns is tested.
func testEnded(t T, h *Harness, ctx context.Context, want error) {
	p := open(t, h)
	version := p.mustWrite("1", "")
	err := prompt(t, h, "Read", func() error { _, _, err := p.r.Read(ctx); return err })
	if !errors.Is(err, want) {
		t.Errorf("Read with an ended context: %v; want an error that wraps %q", err, want)
	}
	err = prompt(t, h, "Write", func() error { _, err := p.r.Write(ctx, h.encode("2"), version); return err })
	if !errors.Is(err, want) {
		t.Errorf("Write with an ended context: %v; want an error that wraps %q", err, want)
	}
	p.mustRead() // the register still works
}

// testEndsMeanwhile lets the context end while clients make requests without a
// pause: each one must return, the last with the context's error.
func testEndsMeanwhile(t T, h *Harness) {
	const clients = 4
	p := open(t, h)
	p.mustWrite("1", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, clients)
	for i := range clients {
		go func() {
			for {
				_, version, err := p.r.Read(ctx)
				if err == nil && i%2 == 0 {
					_, err = p.r.Write(ctx, h.encode(fmt.Sprint("client ", i)), version)
				}
				if ctx.Err() != nil {
					// What came before the end proves nothing.
					if answered(err) || errors.Is(err, ErrInjected) {
						_, _, err = p.r.Read(ctx)
					}
					ended <- err
					return
				}
			}
		}()
	}
	for range 50 {
		p.mustRead()
	}
	cancel()
	late := time.NewTimer(h.Prompt)
	defer late.Stop()
	for n := range clients {
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a request whose context ended: %v; want an error that wraps context.Canceled", err)
			}
		case <-late.C:
			t.Fatalf("%d of %d clients are still in a request %v after its context ended", clients-n, clients, h.Prompt)
		}
	}
}

// prompt calls f, which must return soon.
func prompt(t T, h *Harness, what string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	late := time.NewTimer(h.Prompt)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		t.Fatalf("%s has not returned %v after its context ended", what, h.Prompt)
		return nil
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// contend runs an elector in the bubble and returns its events.
func contend(t *testing.T, ctx context.Context, o tenure.Options, work tenure.Work) (*tenure.Elector, <-chan error) {
	t.Helper()
	e, err := tenure.New(o)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, work) }()
	return e, done
}

func TestFirstLeaderAndHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := mem.New()
		start := time.Now()
		began := make(chan string, 10)
		work := func(name string) tenure.Work {
			return func(ctx context.Context, term *tenure.Term) error {
				began <- name
				<-ctx.Done()
				if !term.Valid() {
					t.Errorf("%s: the term is over before the work has drained", name)
				}
				return ctx.Err()
			}
		}
		ctxA, stopA := context.WithCancel(t.Context())
		ctxB, stopB := context.WithCancel(t.Context())
		defer stopB()
		_, doneA := contend(t, ctxA, tenure.Options{Register: reg, Identity: "a"}, work("a"))
		if got := <-began; got != "a" {
			t.Fatalf("%s leads, want a", got)
		}
		if d := time.Since(start); d < 15*time.Second || d > 16*time.Second {
			t.Errorf("the first leader of a new lock came after %v, want 15 to 16 s", d)
		}
		_, doneB := contend(t, ctxB, tenure.Options{Register: reg, Identity: "b"}, work("b"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(began) != 0 {
			t.Fatalf("%s leads beside a", <-began)
		}
		stopA()
		at := time.Now()
		if err := <-doneA; err != nil {
			t.Errorf("Run returned %v after its context ended", err)
		}
		if got := <-began; got != "b" {
			t.Fatalf("%s leads, want b", got)
		}
		if d := time.Since(at); d > 2*time.Second {
			t.Errorf("handing over took %v, want at most P = 2 s", d)
		}
		stopB()
		if err := <-doneB; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

const free = `{"holderIdentity":"","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":"n"}`

// runAll runs n electors, each on a lock of its own, or all standing by on one
// that somebody else holds.
func runAll(b *testing.B, n int, reg func(i int) tenure.Register) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, n)
	for i := range n {
		e, err := tenure.New(tenure.Options{Register: reg(i), Identity: fmt.Sprint("bench-", i), Host: "h"})
		if err != nil {
			b.Fatal(err)
		}
		go func() {
			e.Run(ctx, func(ctx context.Context, _ *tenure.Term) error { <-ctx.Done(); return nil }) //nolint:errcheck // it ends with ctx
			done <- struct{}{}
		}()
	}
	return func() {
		cancel()
		for range n {
			<-done
		}
	}
}

func BenchmarkTermValid(b *testing.B) {
	reg := mem.New()
	reg.Put([]byte(free))
	e, err := tenure.New(tenure.Options{Register: reg})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	err = e.Run(b.Context(), func(_ context.Context, t *tenure.Term) error {
		b.ResetTimer()
		for range b.N {
			if !t.Valid() {
				return tenure.ErrTermOver
			}
		}
		b.StopTimer()
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// polled is a register with everything that a file has: it lists candidates,
// and cannot be watched.
type polled struct {
	tenure.Register
	tenure.Siblinger
	tenure.Lister
}

// BenchmarkIdleElector reports the memory of an elector that stands by, with
// its goroutines' stacks: one that polls, and one that watches as well.
func BenchmarkIdleElector(b *testing.B) {
	const n = 1000
	for name, wrap := range map[string]func(*mem.Register) tenure.Register{
		"polled":  func(r *mem.Register) tenure.Register { return polled{r, r, r} },
		"watched": func(r *mem.Register) tenure.Register { return r },
	} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				regs := make([]tenure.Register, n)
				for i := range regs {
					reg := mem.New()
					reg.Put([]byte(`{"holderIdentity":"other","leaseDurationSeconds":60,"leaseTransitions":1,"epoch":5,"nonce":"n"}`))
					regs[i] = wrap(reg)
				}
				before := memory()
				stop := runAll(b, n, func(i int) tenure.Register { return regs[i] })
				time.Sleep(5 * time.Second) // two polls
				after := memory()
				b.ReportMetric(float64(after-before)/n, "B/elector")
				stop()
			}
		})
	}
}

func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// BenchmarkThousandElectors reports the share of one core that 1,000 leading
// electors use at the default period of 2 s.
func BenchmarkThousandElectors(b *testing.B) {
	const n, window = 1000, 10 * time.Second
	for range b.N {
		stop := runAll(b, n, func(int) tenure.Register {
			reg := mem.New()
			reg.Put([]byte(free))
			return plain{reg}
		})
		time.Sleep(3 * time.Second)
		from := cpu(b)
		time.Sleep(window)
		b.ReportMetric(100*(cpu(b)-from).Seconds()/window.Seconds(), "%core")
		stop()
	}
}

// BenchmarkRenewal reports how long a renewal takes with a store that answers
// at once, and what it allocates.
func BenchmarkRenewal(b *testing.B) {
	reg := mem.New()
	reg.Put([]byte(free))
	renewed := make(chan struct{})
	ctx, cancel := context.WithCancel(b.Context())
	e, err := tenure.New(tenure.Options{Register: plain{reg}, Period: 20 * time.Millisecond, Observe: func(ev tenure.Event) {
		if ev.Kind == tenure.EventRenewed {
			select {
			case renewed <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- e.Run(ctx, func(ctx context.Context, _ *tenure.Term) error { <-ctx.Done(); return nil })
	}()
	b.ReportAllocs()
	for range b.N {
		<-renewed
	}
	cancel()
	<-done
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

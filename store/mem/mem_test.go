// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tenure.dev"
)

// fresh returns a register under the test's own name, empty at the end again.
func fresh(t *testing.T) *Register {
	r := Named(t.Name())
	t.Cleanup(r.Delete)
	return r
}

func mustWrite(t *testing.T, r tenure.Register, value string, old tenure.Version) tenure.Version {
	t.Helper()
	v, err := r.Write(t.Context(), []byte(value), old)
	if err != nil {
		t.Fatalf("write %q: %v", value, err)
	}
	return v
}

func TestCompareAndSwap(t *testing.T) {
	r, ctx := fresh(t), t.Context()
	if _, _, err := r.Read(ctx); !errors.Is(err, tenure.ErrNotExist) {
		t.Fatalf("read of an empty register: %v, want ErrNotExist", err)
	}
	if _, err := r.Write(ctx, []byte("x"), "7"); !errors.Is(err, tenure.ErrConflict) {
		t.Fatalf("conditional write to an empty register: %v, want ErrConflict", err)
	}
	v1 := mustWrite(t, r, "a", "")
	if _, err := r.Write(ctx, []byte("b"), ""); !errors.Is(err, tenure.ErrConflict) {
		t.Fatalf("second create: %v, want ErrConflict", err)
	}
	got, v, err := Named(t.Name()).Read(ctx)
	if err != nil || string(got) != "a" || v != v1 {
		t.Fatalf("read by name: %q, %q, %v; want a, %q", got, v, err, v1)
	}
	got[0] = 'X'
	if again, _, _ := r.Read(ctx); string(again) != "a" {
		t.Fatalf("the caller's change of its copy reached the register: %q", again)
	}
	v2 := mustWrite(t, r, "", v1)
	if got, v, err := r.Read(ctx); err != nil || got == nil || len(got) != 0 || v != v2 {
		t.Fatalf("read of an empty value: %v, %q, %v; want [], %q", got, v, err, v2)
	}
	if _, err := r.Write(ctx, []byte("c"), v1); !errors.Is(err, tenure.ErrConflict) {
		t.Fatalf("stale write: %v, want ErrConflict", err)
	}
}

func TestVersionsNeverRepeat(t *testing.T) {
	r := fresh(t)
	seen := map[tenure.Version]bool{}
	for i := range 100 {
		v := mustWrite(t, r, "same", "")
		w := mustWrite(t, r, "same", v)
		if v == "" || w == "" || seen[v] || seen[w] || v == w {
			t.Fatalf("round %d: versions %q, %q are empty or were seen before", i, v, w)
		}
		seen[v], seen[w] = true, true
		r.Delete()
	}
}

func TestTooLarge(t *testing.T) {
	r, ctx := fresh(t), t.Context()
	v := mustWrite(t, r, string(make([]byte, tenure.MaxRecordSize)), "")
	if got, _, err := r.Read(ctx); err != nil || len(got) != tenure.MaxRecordSize {
		t.Fatalf("read of the largest value: %d bytes, %v", len(got), err)
	}
	v = mustWrite(t, r, string(make([]byte, tenure.MaxRecordSize+1)), v)
	got, rv, err := r.Read(ctx)
	if !errors.Is(err, tenure.ErrValueTooLarge) || got != nil || rv != v {
		t.Fatalf("read: %d bytes, %q, %v; want ErrValueTooLarge and %q", len(got), rv, err, v)
	}
	mustWrite(t, r, "small", rv)
}

func TestContextEnded(t *testing.T) {
	r := fresh(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, rerr := r.Read(ctx)
	_, werr := r.Write(ctx, nil, "")
	_, lerr := r.List(ctx, "")
	for op, err := range map[string]error{"read": rerr, "write": werr, "list": lerr, "watch": r.Watch(ctx, "")} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want the context's error", op, err)
		}
	}
	if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("the refused write happened: %v", err)
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		if err := r.Watch(t.Context(), "other"); err != nil {
			t.Fatalf("watch of another version: %v, want nil at once", err)
		}
		changes := []func(){
			func() { mustWrite(t, r, "a", "") },
			func() { r.Put([]byte("b")) },
			func() { r.Delete() },
		}
		for i, change := range changes {
			_, v, _ := r.Read(t.Context())
			done := make(chan error, 1)
			go func() { done <- r.Watch(t.Context(), v) }()
			synctest.Wait()
			select {
			case err := <-done:
				t.Fatalf("change %d: watch returned %v before it", i, err)
			default:
			}
			change()
			if err := <-done; err != nil {
				t.Fatalf("change %d: watch: %v", i, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Watch(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("watch: %v, want DeadlineExceeded", err)
		}
		if n := len(r.cell.watchers); n != 0 {
			t.Fatalf("%d watchers left behind", n)
		}
	})
}

// TestNamedAcrossBubbles: a process-wide register must not keep a channel of a
// bubble that is over.
func TestNamedAcrossBubbles(t *testing.T) {
	name := t.Name()
	t.Cleanup(Named(name).Delete)
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			r := Named(name)
			_, v, _ := r.Read(t.Context())
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := r.Watch(ctx, v); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("watch: %v", err)
			}
			mustWrite(t, r, "x", v)
		})
	}
}

func TestSiblings(t *testing.T) {
	for _, r := range []*Register{fresh(t), New()} {
		if got, err := r.List(t.Context(), ""); err != nil || len(got) != 0 {
			t.Fatalf("%v: list: %q, %v; want none", r, got, err)
		}
		mustWrite(t, r, "main", "")
		for _, s := range []string{".candidates/b", ".candidates/a", ".probe/x"} {
			mustWrite(t, r.Sibling(s), s, "")
			t.Cleanup(r.Sibling(s).(*Register).Delete)
		}
		if _, _, err := r.Sibling(".candidates/none").Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
			t.Fatalf("%v: empty sibling: %v", r, err)
		}
		got, err := r.List(t.Context(), ".candidates/")
		if want := []string{".candidates/a", ".candidates/b"}; err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v: list: %q, %v; want %q", r, got, err, want)
		}
		if got, _, _ := r.Sibling(".probe/x").Read(t.Context()); !bytes.Equal(got, []byte(".probe/x")) {
			t.Fatalf("%v: sibling holds %q", r, got)
		}
	}
	if _, _, err := New().Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Fatalf("New shares a register: %v", err)
	}
}

func TestConcurrentCounter(t *testing.T) {
	const writers, each = 8, 200
	r := fresh(t)
	mustWrite(t, r, "0", "")
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				b, v, err := Named(t.Name()).Read(t.Context())
				n, _ := strconv.Atoi(string(b))
				if err == nil {
					_, err = r.Write(t.Context(), []byte(strconv.Itoa(n+1)), v)
				}
				switch {
				case err == nil:
					done++
				case !errors.Is(err, tenure.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if b, _, _ := r.Read(t.Context()); string(b) != strconv.Itoa(writers*each) {
		t.Fatalf("counter is %s, want %d", b, writers*each)
	}
}

func TestURL(t *testing.T) {
	for _, tt := range []struct{ raw, name string }{
		{"mem://TestURL", "TestURL"},
		{"mem://TestURL/a/b?ttl=5s", "TestURL/a/b"},
		{"mem:///TestURL", "/TestURL"},
	} {
		l, err := tenure.Open(t.Context(), tt.raw, tenure.Vars{})
		if err != nil {
			t.Fatalf("%s: %v", tt.raw, err)
		}
		v := mustWrite(t, l.Register, tt.raw, "")
		t.Cleanup(Named(tt.name).Delete)
		if got, gv, err := Named(tt.name).Read(t.Context()); err != nil || gv != v || string(got) != tt.raw {
			t.Errorf("%s is not the register named %q: %q, %q, %v", tt.raw, tt.name, got, gv, err)
		}
	}
	for _, raw := range []string{"mem://", "mem://?ttl=5s", "mem://x?size=3"} {
		if _, err := tenure.Open(t.Context(), raw, tenure.Vars{}); !errors.Is(err, tenure.ErrURL) {
			t.Errorf("%s: %v, want ErrURL", raw, err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	r := New()
	r.Put(make([]byte, 600))
	for b.Loop() {
		if _, _, err := r.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

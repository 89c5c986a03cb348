// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// funcRegister is a register made of two functions.
type funcRegister struct {
	read  func(context.Context) ([]byte, tenure.Version, error)
	write func(context.Context, []byte, tenure.Version) (tenure.Version, error)
}

func (f funcRegister) Read(ctx context.Context) ([]byte, tenure.Version, error) { return f.read(ctx) }
func (f funcRegister) Write(ctx context.Context, b []byte, v tenure.Version) (tenure.Version, error) {
	return f.write(ctx, b, v)
}

// broken returns a sound register whose write, or read, is replaced.
func broken(change func(*mem.Register, *funcRegister)) tenure.Register {
	r := mem.New()
	f := funcRegister{r.Read, r.Write}
	change(r, &f)
	return f
}

func TestProbeSound(t *testing.T) {
	reg := mem.New()
	for i, before := range []func(){
		func() {},
		func() {}, // the value of the earlier probe
		func() { reg.Put([]byte("something else")) },
		func() { reg.Put(make([]byte, tenure.MaxRecordSize+1)) },
		func() { reg.Put(nil) },
		func() { reg.Delete() },
	} {
		before()
		if err := tenure.Probe(t.Context(), reg, 0); err != nil {
			t.Fatalf("probe %d: %v", i, err)
		}
		var v struct{ Probe string }
		if b, _, err := reg.Read(t.Context()); err != nil || json.Unmarshal(b, &v) != nil || v.Probe == "" {
			t.Fatalf("probe %d left %q, %v", i, b, err)
		}
	}
}

func TestProbeUnsafe(t *testing.T) {
	ctx := t.Context()
	for _, tt := range []struct {
		name, check string
		change      func(*mem.Register, *funcRegister)
	}{
		{"ignores all conditions", "create", func(r *mem.Register, f *funcRegister) {
			f.write = func(_ context.Context, b []byte, _ tenure.Version) (tenure.Version, error) {
				r.Put(b)
				_, v, _ := r.Read(ctx)
				return v, nil
			}
		}},
		{"ignores must-not-exist", "create", func(r *mem.Register, f *funcRegister) {
			f.write = func(_ context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
				if old == "" {
					_, old, _ = r.Read(ctx)
				}
				return r.Write(ctx, b, old)
			}
		}},
		{"ignores the version", "stale", func(r *mem.Register, f *funcRegister) {
			f.write = func(_ context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
				if old != "" {
					_, old, _ = r.Read(ctx)
				}
				return r.Write(ctx, b, old)
			}
		}},
		{"versions are hashes of the content", "never repeats", func(r *mem.Register, f *funcRegister) {
			hash := func(b []byte) tenure.Version { return tenure.Version(fmt.Sprintf("%x", sha256.Sum256(b))) }
			f.read = func(context.Context) ([]byte, tenure.Version, error) {
				b, _, err := r.Read(ctx)
				return b, hash(b), err
			}
			f.write = func(_ context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
				now, v, err := r.Read(ctx)
				if (err != nil) != (old == "") || err == nil && hash(now) != old {
					return "", tenure.ErrConflict
				}
				_, err = r.Write(ctx, b, v)
				return hash(b), err
			}
		}},
		{"returns another version than it makes", "version that it makes", func(r *mem.Register, f *funcRegister) {
			f.write = func(_ context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
				v, err := r.Write(ctx, b, old)
				return v + "x", err
			}
		}},
		{"returns no version", "returns its version", func(r *mem.Register, f *funcRegister) {
			f.write = func(_ context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
				_, err := r.Write(ctx, b, old)
				return "", err
			}
		}},
		{"reads no version", "has a version", func(r *mem.Register, f *funcRegister) {
			f.read = func(context.Context) ([]byte, tenure.Version, error) {
				b, _, err := r.Read(ctx)
				return b, "", err
			}
			r.Put([]byte("before"))
		}},
		{"drops writes", "sees finished writes", func(r *mem.Register, f *funcRegister) {
			n := 0
			f.write = func(_ context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
				if n++; old == "" && n > 1 {
					return "", tenure.ErrConflict
				}
				return tenure.Version(fmt.Sprint("lost", n)), nil
			}
		}},
		{"reads what was before", "sees finished writes", func(r *mem.Register, f *funcRegister) {
			var b []byte
			var v tenure.Version
			f.write = func(_ context.Context, next []byte, old tenure.Version) (tenure.Version, error) {
				b, v, _ = r.Read(ctx)
				return r.Write(ctx, next, old)
			}
			f.read = func(context.Context) ([]byte, tenure.Version, error) {
				if v == "" {
					return r.Read(ctx)
				}
				return b, v, nil
			}
			r.Put([]byte("before"))
		}},
		{"returns other bytes", "returns what was written", func(r *mem.Register, f *funcRegister) {
			f.read = func(context.Context) ([]byte, tenure.Version, error) {
				b, v, err := r.Read(ctx)
				return append(b, 'x'), v, err
			}
		}},
		{"writes, and answers with a conflict", "does not happen", func(r *mem.Register, f *funcRegister) {
			f.write = func(_ context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
				v, err := r.Write(ctx, b, old)
				if errors.Is(err, tenure.ErrConflict) {
					r.Put(b)
				}
				return v, err
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := tenure.Probe(t.Context(), broken(tt.change), 0)
				var unsafe *tenure.UnsafeStoreError
				if !errors.As(err, &unsafe) || errors.Is(err, tenure.ErrCannotProbe) {
					t.Fatalf("probe: %v, want an UnsafeStoreError", err)
				}
				if !strings.Contains(unsafe.Check, tt.check) || !strings.Contains(err.Error(), "must not be used") || !strings.Contains(err.Error(), unsafe.Check) {
					t.Errorf("the check %q failed, want the one with %q: %v", unsafe.Check, tt.check, err)
				}
			})
		})
	}
}

// creating is a register whose writes at a version create what is missing, as
// some object stores do.
type creating struct{ *mem.Register }

func (c creating) Write(ctx context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
	if _, _, err := c.Read(ctx); errors.Is(err, tenure.ErrNotExist) {
		old = ""
	}
	return c.Register.Write(ctx, b, old)
}

func (c creating) Sibling(suffix string) tenure.Register {
	return creating{c.Register.Sibling(suffix).(*mem.Register)}
}

func TestProbeCreating(t *testing.T) {
	reg := creating{mem.New()}
	for range 2 { // what the first one left does not hide it
		err := tenure.Probe(t.Context(), reg, 0)
		unsafe, ok := errors.AsType[*tenure.UnsafeStoreError](err)
		if !ok || !strings.Contains(unsafe.Check, "creates no key") {
			t.Errorf("probe: %v, want an UnsafeStoreError", err)
		}
	}
}

// TestProbeCannot: an error at any request, applied or not, is no fault of the
// store's promises.
func TestProbeCannot(t *testing.T) {
	cause := errors.New("the network is down")
	for _, applied := range []bool{false, true} {
		failed := 0
		for at := range 20 {
			n := 0
			reg := broken(func(r *mem.Register, f *funcRegister) {
				f.read = func(ctx context.Context) ([]byte, tenure.Version, error) {
					if n++; n == at+1 {
						return nil, "", cause
					}
					return r.Read(ctx)
				}
				f.write = func(ctx context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
					n++
					if n == at+1 && applied {
						r.Write(ctx, b, old)
					}
					if n == at+1 {
						return "", cause
					}
					return r.Write(ctx, b, old)
				}
			})
			err := tenure.Probe(t.Context(), reg, 0)
			if n <= at {
				if err != nil {
					t.Errorf("without a failure: %v", err)
				}
				continue
			}
			failed++
			var unsafe *tenure.UnsafeStoreError
			if !errors.Is(err, tenure.ErrCannotProbe) || !errors.Is(err, cause) || errors.As(err, &unsafe) {
				t.Errorf("failure of request %d, applied %v: %v, want ErrCannotProbe and the cause", at, applied, err)
			}
			if err := tenure.Probe(t.Context(), reg, 0); err != nil {
				t.Errorf("probe after the failure of request %d: %v", at, err)
			}
		}
		if failed < 8 {
			t.Errorf("only %d requests were made to fail", failed)
		}
	}

	synctest.Test(t, func(t *testing.T) {
		refuses := broken(func(r *mem.Register, f *funcRegister) {
			f.write = func(context.Context, []byte, tenure.Version) (tenure.Version, error) { return "", tenure.ErrConflict }
		})
		if err := tenure.Probe(t.Context(), refuses, 0); !errors.Is(err, tenure.ErrCannotProbe) {
			t.Errorf("a store that refuses every write: %v, want ErrCannotProbe", err)
		}
	})
}

func TestProbePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last time.Time
		writes := 0
		reg := broken(func(r *mem.Register, f *funcRegister) {
			f.write = func(ctx context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
				if writes++; writes > 1 && time.Since(last) < 1100*time.Millisecond {
					t.Errorf("write %d came %v after the one before", writes, time.Since(last))
				}
				last = time.Now()
				return r.Write(ctx, b, old)
			}
		})
		if err := tenure.Probe(t.Context(), reg, 1100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start, before := time.Now(), writes
		writes = 0
		err := tenure.Probe(ctx, reg, 1100*time.Millisecond)
		if !errors.Is(err, tenure.ErrCannotProbe) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("after %v: %v, want DeadlineExceeded after 2s (%d writes before)", time.Since(start), err, before)
		}
	})
}

// TestProbeConcurrent: probes that meet on one key of a sound store never call
// it unsafe, and get done.
func TestProbeConcurrent(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		probes := 2 + rng.IntN(7)
		synctest.Test(t, func(t *testing.T) {
			reg := mem.New()
			var wg sync.WaitGroup
			for range probes {
				local := rand.New(rand.NewPCG(rng.Uint64(), 0))
				delay := func() { time.Sleep(time.Duration(local.Int64N(int64(20 * time.Millisecond)))) }
				slow := funcRegister{
					func(ctx context.Context) ([]byte, tenure.Version, error) {
						delay()
						defer delay()
						return reg.Read(ctx)
					},
					func(ctx context.Context, b []byte, old tenure.Version) (tenure.Version, error) {
						delay()
						defer delay()
						return reg.Write(ctx, b, old)
					},
				}
				wg.Go(func() {
					if err := tenure.Probe(t.Context(), slow, 0); err != nil {
						t.Errorf("one of %d probes: %v", probes, err)
					}
				})
			}
			wg.Wait()
		})
	}
}

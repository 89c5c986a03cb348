// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package broken holds lock stores that break one promise of [tenure.Register]
// each, in the way real stores and drivers do, and two that only look as if they
// did. They test package storetest: the suite must fail each broken one in the
// cases named here, and pass the sound ones.
package broken

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
	"tenure.dev/storetest"
)

// A Store is one way to be broken, or sound.
type Store struct {
	Name string
	// Trap says what is wrong with it, and where one meets it.
	Trap string
	// Fails names the cases that must fail; none for a sound store.
	Fails []string
	// Open returns two instances of a new register.
	Open func() (a, b Register)
}

// A Register can be damaged behind its own back.
type Register interface {
	tenure.Register
	// Delete empties the register.
	Delete()
	// Put replaces the value.
	Put(value []byte)
}

// window is how long a store that acts in two steps takes between them: about
// one request.
const window = 200 * time.Microsecond

// one makes an Open of a store whose instances are the same register.
func one(f func(*mem.Register) Register) func() (a, b Register) {
	return func() (a, b Register) {
		r := f(mem.New())
		return r, r
	}
}

// Stores returns all of them.
func Stores() []Store {
	all := sound()
	all = append(all, conditions()...)
	all = append(all, versions()...)
	all = append(all, values()...)
	all = append(all, answers()...)
	return append(all, optional()...)
}

func sound() []Store {
	return []Store{
		{
			Name: "sound",
			Trap: "Nothing is wrong with it.",
			Open: one(func(r *mem.Register) Register { return clocked{r} }),
		},
		{
			Name: "applies then errors",
			Trap: "Every fourth write is applied and answered with an error that is not ErrConflict, as over a connection that breaks. That is allowed: after such an error nothing is known.",
			Open: one(func(r *mem.Register) Register { return &appliesThenErrors{Register: r} }),
		},
	}
}

// clocked adds a clock.
type clocked struct{ *mem.Register }

func (clocked) Now(ctx context.Context) (time.Time, error) { return time.Now(), ctx.Err() }

// errLost is what a client says about a connection that broke.
var errLost = fmt.Errorf("the connection was closed before the answer: %w", storetest.ErrInjected)

type appliesThenErrors struct {
	*mem.Register
	writes atomic.Int64
}

func (r *appliesThenErrors) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	version, err := r.Register.Write(ctx, value, old)
	if err == nil && r.writes.Add(1)%4 == 0 {
		return "", errLost
	}
	return version, err
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"context"
	"slices"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// optional are stores with an optional ability that is broken.
func optional() []Store {
	return []Store{
		{
			Name:  "sibling that is the lock",
			Trap:  "The suffix is forgotten: a probe writes over the leader's record.",
			Fails: []string{"siblings-independent", "siblings-nested"},
			Open:  one(func(r *mem.Register) Register { return siblingIsLock{r} }),
		},
		{
			Name:  "sibling with a separator",
			Trap:  "Sibling joins paths instead of appending.",
			Fails: []string{"siblings-nested", "siblings-listed"},
			Open:  one(func(r *mem.Register) Register { return separates{r} }),
		},
		{
			Name:  "list of the first page",
			Trap:  "The store lists in pages, and the driver reads one.",
			Fails: []string{"siblings-listed"},
			Open:  one(func(r *mem.Register) Register { return firstPage{r} }),
		},
		{
			Name:  "list out of order",
			Trap:  "Names come in the order of the store.",
			Fails: []string{"siblings-listed"},
			Open:  one(func(r *mem.Register) Register { return unsorted{r} }),
		},
		{
			Name:  "watch from now",
			Trap:  "The watch begins with the next change, and misses the one since the read.",
			Fails: []string{"watch-change"},
			Open:  one(func(r *mem.Register) Register { return watchesFromNow{r} }),
		},
		{
			Name:  "watch that does not wait",
			Trap:  "Watch returns at once, always.",
			Fails: []string{"watch-context"},
			Open:  one(func(r *mem.Register) Register { return neverWaits{r} }),
		},
		{
			Name:  "watch without end",
			Trap:  "The long poll does not carry ctx.",
			Fails: []string{"watch-context"},
			Open:  one(func(r *mem.Register) Register { return watchesOn{r} }),
		},
		{
			Name:  "clock in another unit",
			Trap:  "Milliseconds are taken for seconds.",
			Fails: []string{"clock"},
			Open:  one(func(r *mem.Register) Register { return wrongUnit{r} }),
		},
	}
}

type siblingIsLock struct{ *mem.Register }

func (r siblingIsLock) Sibling(string) tenure.Register { return r }

type separates struct{ *mem.Register }

func (r separates) Sibling(suffix string) tenure.Register {
	return separates{r.Register.Sibling("/" + suffix).(*mem.Register)}
}

type firstPage struct{ *mem.Register }

func (r firstPage) List(ctx context.Context, prefix string) ([]string, error) {
	suffixes, err := r.Register.List(ctx, prefix)
	return suffixes[:min(len(suffixes), 2)], err
}

type unsorted struct{ *mem.Register }

func (r unsorted) List(ctx context.Context, prefix string) ([]string, error) {
	suffixes, err := r.Register.List(ctx, prefix)
	slices.Reverse(suffixes)
	return suffixes, err
}

type watchesFromNow struct{ *mem.Register }

func (r watchesFromNow) Watch(ctx context.Context, _ tenure.Version) error {
	_, now, _ := r.Read(ctx)
	return r.Register.Watch(ctx, now)
}

type neverWaits struct{ *mem.Register }

func (neverWaits) Watch(context.Context, tenure.Version) error { return nil }

type watchesOn struct{ *mem.Register }

func (r watchesOn) Watch(ctx context.Context, old tenure.Version) error {
	// Not for ever: the test that it fails would leave it behind.
	on, cancel := context.WithTimeout(context.WithoutCancel(ctx), Late)
	defer cancel()
	if err := r.Register.Watch(on, old); err != nil {
		return context.Canceled
	}
	return nil
}

type wrongUnit struct{ *mem.Register }

func (wrongUnit) Now(ctx context.Context) (time.Time, error) {
	return time.Unix(time.Now().UnixMilli(), 0), ctx.Err()
}

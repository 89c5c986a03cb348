// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// answers are stores that answer too late or in the wrong words.
func answers() []Store {
	inContext := []string{"context-cancelled", "context-expired", "context-ends-meanwhile"}
	return []Store{
		{
			Name:  "ignores the context",
			Trap:  "ctx does not reach the request.",
			Fails: inContext,
			Open:  one(func(r *mem.Register) Register { return ignoresContext{r} }),
		},
		{
			Name:  "notices the context late",
			Trap:  "A wait inside the driver (for a file lock, a connection, between retries) does not end with ctx.",
			Fails: inContext,
			Open:  one(func(r *mem.Register) Register { return noticesLate{r} }),
		},
		{
			Name:  "another error than the context's",
			Trap:  "The client has an error of its own for an ended context, and the driver passes it on as it is.",
			Fails: inContext,
			Open:  one(func(r *mem.Register) Register { return hidesContext{r} }),
		},
		{
			Name:  "errors without sentinels",
			Trap:  "The store's errors are passed on as they are.",
			Fails: []string{"read-absent", "create-exists", "write-stale", "sentinels"},
			Open:  one(func(r *mem.Register) Register { return noSentinels{r} }),
		},
		{
			Name:  "not found on write",
			Trap:  "A write at a version answers ErrNotExist if the record is gone, since the store says 404.",
			Fails: []string{"write-absent", "write-deleted"},
			Open:  one(func(r *mem.Register) Register { return notFoundOnWrite{r} }),
		},
		{
			Name:  "two sentinels at once",
			Trap:  "An error wraps every sentinel that might apply.",
			Fails: []string{"sentinels"},
			Open:  one(func(r *mem.Register) Register { return twoSentinels{r} }),
		},
	}
}

type ignoresContext struct{ *mem.Register }

func (r ignoresContext) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	return r.Register.Read(context.WithoutCancel(ctx))
}

func (r ignoresContext) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	return r.Register.Write(context.WithoutCancel(ctx), value, old)
}

// Late is how long the store that notices the end of a context late takes.
const Late = 400 * time.Millisecond

type noticesLate struct{ *mem.Register }

func (r noticesLate) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	if ctx.Err() != nil {
		time.Sleep(Late)
	}
	return r.Register.Read(ctx)
}

func (r noticesLate) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	if ctx.Err() != nil {
		time.Sleep(Late)
	}
	return r.Register.Write(ctx, value, old)
}

type hidesContext struct{ *mem.Register }

func hide(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("status 1: " + err.Error()) // no longer wrapped
	}
	return err
}

func (r hidesContext) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	value, version, err := r.Register.Read(ctx)
	return value, version, hide(ctx, err)
}

func (r hidesContext) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	version, err := r.Register.Write(ctx, value, old)
	return version, hide(ctx, err)
}

type noSentinels struct{ *mem.Register }

func flatten(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return errors.New(err.Error())
}

func (r noSentinels) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	value, version, err := r.Register.Read(ctx)
	return value, version, flatten(err)
}

func (r noSentinels) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	version, err := r.Register.Write(ctx, value, old)
	return version, flatten(err)
}

type notFoundOnWrite struct{ *mem.Register }

func (r notFoundOnWrite) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	version, err := r.Register.Write(ctx, value, old)
	if _, _, absent := r.Read(ctx); errors.Is(err, tenure.ErrConflict) && errors.Is(absent, tenure.ErrNotExist) {
		return "", fmt.Errorf("404: %w", tenure.ErrNotExist)
	}
	return version, err
}

type twoSentinels struct{ *mem.Register }

func (r twoSentinels) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	version, err := r.Register.Write(ctx, value, old)
	if errors.Is(err, tenure.ErrConflict) {
		err = errors.Join(err, tenure.ErrNotExist)
	}
	return version, err
}

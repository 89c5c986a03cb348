// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// versions are stores whose versions say something wrong.
func versions() []Store {
	return []Store{
		{
			Name:  "version of the content",
			Trap:  "The version is a hash of the value, as an object store's ETag is: A, B, A ends where it began.",
			Fails: []string{"version-changes", "version-aba", "version-recreated"},
			Open:  one(func(r *mem.Register) Register { return &contentVersions{Register: r} }),
		},
		{
			Name:  "version that starts anew",
			Trap:  "The version is a number in the record, and gone with it.",
			Fails: []string{"version-recreated"},
			Open:  one(func(*mem.Register) Register { return &countedVersions{} }),
		},
		{
			Name:  "version from a second read",
			Trap:  "The driver reads after its write to learn the version, and may read a rival's.",
			Fails: []string{"version-own", "history"},
			Open:  one(func(r *mem.Register) Register { return versionFromRead{r} }),
		},
		{
			Name:  "two spellings of a version",
			Trap:  "Writes return an ETag in quotes, reads without.",
			Fails: []string{"create", "version-of-write", "history"},
			Open:  one(func(r *mem.Register) Register { return quotesVersions{r} }),
		},
		{
			Name:  "torn reads",
			Trap:  "Value and version come from two requests.",
			Fails: []string{"value-with-its-version", "history"},
			Open:  one(func(r *mem.Register) Register { return tornReads{r} }),
		},
	}
}

// contentVersions maps the versions of its callers to those of the register.
type contentVersions struct {
	*mem.Register
	mu sync.Mutex
}

func contentVersion(value []byte) tenure.Version {
	h := fnv.New64a()
	h.Write(value)
	return tenure.Version(fmt.Sprintf("%x", h.Sum64()))
}

func (r *contentVersions) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	value, version, err := r.Register.Read(ctx)
	if err != nil {
		return nil, version, err
	}
	return value, contentVersion(value), nil
}

func (r *contentVersions) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	current, version, err := r.Register.Read(ctx)
	if err == nil && contentVersion(current) != old {
		return "", tenure.ErrConflict
	}
	if err != nil && (!errors.Is(err, tenure.ErrNotExist) || old != "") {
		return "", tenure.ErrConflict
	}
	if _, err := r.Register.Write(ctx, value, version); err != nil {
		return "", err
	}
	return contentVersion(value), nil
}

// countedVersions is a register of its own.
type countedVersions struct {
	mu    sync.Mutex
	value []byte
	count int // zero: empty
}

func (r *countedVersions) version() tenure.Version { return tenure.Version(fmt.Sprint("v", r.count)) }

func (r *countedVersions) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, "", ctx.Err()
	case r.count == 0:
		return nil, "", tenure.ErrNotExist
	case len(r.value) > tenure.MaxRecordSize:
		return nil, r.version(), tenure.ErrValueTooLarge
	}
	return append([]byte{}, r.value...), r.version(), nil
}

func (r *countedVersions) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case r.count == 0 && old != "", r.count > 0 && old != r.version():
		return "", tenure.ErrConflict
	}
	r.value, r.count = append([]byte{}, value...), r.count+1
	return r.version(), nil
}

func (r *countedVersions) Put(value []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.value, r.count = append([]byte{}, value...), r.count+1
}

func (r *countedVersions) Delete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.value, r.count = nil, 0
}

type versionFromRead struct{ *mem.Register }

func (r versionFromRead) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	if version, err := r.Register.Write(ctx, value, old); err != nil {
		return version, err
	}
	time.Sleep(window)
	_, version, err := r.Read(ctx)
	if errors.Is(err, tenure.ErrValueTooLarge) {
		err = nil
	}
	return version, err
}

type quotesVersions struct{ *mem.Register }

func (r quotesVersions) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	if len(old) > 2 && old[0] == '"' {
		old = old[1 : len(old)-1]
	}
	version, err := r.Register.Write(ctx, value, old)
	if err != nil {
		return "", err
	}
	return `"` + version + `"`, nil
}

type tornReads struct{ *mem.Register }

func (r tornReads) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	value, version, err := r.Register.Read(ctx)
	if err != nil {
		return nil, version, err
	}
	time.Sleep(window)
	_, version, err = r.Register.Read(ctx)
	if errors.Is(err, tenure.ErrValueTooLarge) {
		err = nil
	}
	return value, version, err
}

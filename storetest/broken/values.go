// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// values are stores that return other bytes than they hold.
func values() []Store {
	return []Store{
		{
			Name:  "stale reads",
			Trap:  "Every third read comes from a replica that is one write behind.",
			Fails: []string{"read-fresh", "history"},
			Open:  one(func(r *mem.Register) Register { return &staleReads{Register: r} }),
		},
		{
			Name:  "cached reads",
			Trap:  "The driver goes on answering from memory what it has read or written last; its own writes it sees.",
			Fails: []string{"two-instances", "history-two-instances"},
			Open: func() (a, b Register) {
				r := mem.New()
				return &cachedReads{Register: r}, &cachedReads{Register: r}
			},
		},
		{
			Name:  "truncates",
			Trap:  "Values are cut at 32 kB: one read of a stream, or a column of that width.",
			Fails: []string{"bytes-at-limit"},
			Open:  one(func(r *mem.Register) Register { return truncates{r} }),
		},
		{
			Name:  "cuts what is too large",
			Trap:  "The driver reads MaxRecordSize bytes and no more, and takes them for all.",
			Fails: []string{"too-large"},
			Open:  one(func(r *mem.Register) Register { return &cutsTooLarge{} }),
		},
		{
			Name:  "too large, no version",
			Trap:  "ErrValueTooLarge comes without the version, so that nobody can replace the value.",
			Fails: []string{"too-large"},
			Open:  one(func(r *mem.Register) Register { return tooLargeForEver{r} }),
		},
		{
			Name:  "trims",
			Trap:  "Space at the end is cut off, as a line-minded tool does.",
			Fails: []string{"bytes-exact"},
			Open:  one(func(r *mem.Register) Register { return trims{r} }),
		},
		{
			Name:  "empty is absent",
			Trap:  "A value of no bytes, which a crash between create and write leaves behind, is taken for none.",
			Fails: []string{"bytes-exact"},
			Open:  one(func(r *mem.Register) Register { return emptyIsAbsent{r} }),
		},
		{
			Name:  "shares buffers",
			Trap:  "The caller's slice is kept, and handed to readers.",
			Fails: []string{"buffers-not-shared"},
			Open:  one(func(r *mem.Register) Register { return &sharesBuffers{Register: r} }),
		},
	}
}

type staleReads struct {
	*mem.Register
	mu      sync.Mutex
	reads   int
	value   []byte // before the last write
	version tenure.Version
}

func (r *staleReads) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reads++; r.reads%3 == 0 && r.version != "" {
		return bytes.Clone(r.value), r.version, ctx.Err()
	}
	return r.Register.Read(ctx)
}

func (r *staleReads) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, version, _ := r.Register.Read(ctx)
	newest, err := r.Register.Write(ctx, value, old)
	if err == nil {
		r.value, r.version = before, version
	}
	return newest, err
}

type cachedReads struct {
	*mem.Register
	mu      sync.Mutex
	value   []byte
	version tenure.Version
}

func (r *cachedReads) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version != "" {
		return bytes.Clone(r.value), r.version, ctx.Err()
	}
	value, version, err := r.Register.Read(ctx)
	if err == nil {
		r.value, r.version = bytes.Clone(value), version
	}
	return value, version, err
}

// Write forgets what is cached: a conflict says that it is old.
func (r *cachedReads) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	version, err := r.Register.Write(ctx, value, old)
	r.value, r.version = nil, ""
	if err == nil {
		r.value, r.version = bytes.Clone(value), version
	}
	return version, err
}

type truncates struct{ *mem.Register }

func (r truncates) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	value, version, err := r.Register.Read(ctx)
	return value[:min(len(value), 32<<10)], version, err
}

// cutsTooLarge holds what it is given and never says that it is too much.
type cutsTooLarge struct{ countedVersions }

func (r *cutsTooLarge) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	value, version, err := r.countedVersions.Read(ctx)
	if errors.Is(err, tenure.ErrValueTooLarge) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return bytes.Clone(r.value[:tenure.MaxRecordSize]), version, nil
	}
	return value, version, err
}

type tooLargeForEver struct{ *mem.Register }

func (r tooLargeForEver) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	value, version, err := r.Register.Read(ctx)
	if err != nil {
		return nil, "", err
	}
	return value, version, nil
}

type trims struct{ *mem.Register }

func (r trims) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	return r.Register.Write(ctx, bytes.TrimRight(value, "\r\n\t "), old)
}

type emptyIsAbsent struct{ *mem.Register }

func (r emptyIsAbsent) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	value, version, err := r.Register.Read(ctx)
	if err == nil && len(value) == 0 {
		return nil, "", tenure.ErrNotExist
	}
	return value, version, err
}

type sharesBuffers struct {
	*mem.Register
	mu   sync.Mutex
	kept map[tenure.Version][]byte
}

func (r *sharesBuffers) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value, version, err := r.Register.Read(ctx)
	if kept, ok := r.kept[version]; ok && err == nil {
		return kept, version, nil
	}
	return value, version, err
}

func (r *sharesBuffers) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	version, err := r.Register.Write(ctx, value, old)
	if err == nil {
		r.kept = map[tenure.Version][]byte{version: value}
	}
	return version, err
}

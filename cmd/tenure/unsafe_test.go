// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strconv"
	"sync"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// The test binary has a store that ignores conditions, as some servers do, and
// one that does not answer.
func init() {
	tenure.RegisterScheme("unsafe", tenure.Driver{Open: func(context.Context, *tenure.URL) (tenure.Register, error) {
		return &ignoresConditions{}, nil
	}})
	tenure.RegisterScheme("hanging", tenure.Driver{Open: func(context.Context, *tenure.URL) (tenure.Register, error) {
		return hangs{mem.New()}, nil
	}})
}

type ignoresConditions struct {
	mu      sync.Mutex
	value   []byte
	version int
}

func (r *ignoresConditions) Sibling(string) tenure.Register { return r }

func (r *ignoresConditions) Read(context.Context) ([]byte, tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version == 0 {
		return nil, "", tenure.ErrNotExist
	}
	return r.value, tenure.Version(strconv.Itoa(r.version)), nil
}

func (r *ignoresConditions) Write(_ context.Context, value []byte, _ tenure.Version) (tenure.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.value = value
	r.version++
	return tenure.Version(strconv.Itoa(r.version)), nil
}

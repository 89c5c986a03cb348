// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Token is what requests are made with.
type Token struct {
	Value string
	// Early is when a new one is fetched, Expires when it ends.
	Early, Expires time.Time
}

// TokenOptions configure [Tokens]. All fields are required.
type TokenOptions struct {
	// Fetch gets a token. It bounds itself: it goes on when the request that
	// wanted the token has ended.
	Fetch func() (Token, error)
	// Explain makes the error that a request without a token is given.
	Explain func(error) error
	// Reserve is how long before its end a token is not used any more.
	Reserve time.Duration
	// Again is how soon a failed fetch is tried again while there is still a token
	// that serves.
	Again time.Duration
	// Now is the clock by which tokens end.
	Now func() time.Time
}

// Tokens keeps the token that requests are made with. Fetching one can take longer
// than a request may (a command line is started, keys are exchanged, other clouds
// asked), so it goes on when the request that wanted it has ended, and serves the
// next one. Its methods are safe for concurrent use.
type Tokens struct {
	opt TokenOptions

	mu     sync.Mutex
	token  Token
	fetch  *fetch
	failed time.Time
}

// A fetch is one that is under way; done is closed when it has ended.
type fetch struct {
	done  chan struct{}
	token Token
	err   error
}

// NewTokens returns a keeper of tokens. It fetches none yet.
func NewTokens(o TokenOptions) *Tokens { return &Tokens{opt: o} }

// Get returns a token that serves. It waits for one only if there is none, at most
// until ctx ends.
func (t *Tokens) Get(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	t.mu.Lock()
	now := t.opt.Now()
	serves := t.token.Value != "" && now.Before(t.token.Expires.Add(-t.opt.Reserve))
	if t.fetch == nil && (!serves || now.After(t.token.Early) && now.Sub(t.failed) > t.opt.Again) {
		t.fetch = &fetch{done: make(chan struct{})}
		go t.run(t.fetch)
	}
	value, f := t.token.Value, t.fetch
	t.mu.Unlock()
	if serves {
		return value, nil
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return "", fmt.Errorf("%w while this identity's token was being fetched: that goes on, and the next request may find it", ctx.Err())
	}
	if f.err != nil {
		return "", t.opt.Explain(f.err)
	}
	return f.token.Value, nil
}

func (t *Tokens) run(f *fetch) {
	f.token, f.err = t.opt.Fetch()
	if f.err == nil && f.token.Value == "" {
		f.err = errors.New("the token is empty")
	}
	t.mu.Lock()
	if f.err == nil {
		t.token = f.token
	} else {
		t.failed = t.opt.Now()
	}
	t.fetch = nil
	t.mu.Unlock()
	close(f.done)
}

// Refused drops a token that the store did not accept, if it is still in use: the
// identity may have got another, or other rights.
func (t *Tokens) Refused(value string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token.Value == value {
		t.token = Token{}
	}
}

// Settle waits for the fetch that is under way, if there is one.
func (t *Tokens) Settle() {
	t.mu.Lock()
	f := t.fetch
	t.mu.Unlock()
	if f != nil {
		<-f.done
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"tenure.dev"
	"tenure.dev/internal/rest"
	"tenure.dev/internal/suffix"
)

var (
	_ tenure.Register  = (*Register)(nil)
	_ tenure.Siblinger = (*Register)(nil)
	_ tenure.Lister    = (*Register)(nil)
	_ tenure.Clock     = (*Register)(nil)
	_ tenure.Dater     = (*Register)(nil)
	_ tenure.Inspector = (*Register)(nil)
)

func init() {
	tenure.RegisterScheme("azblob", tenure.Driver{
		Open:   openURL,
		Params: []string{"account", "endpoint"},
		Price: tenure.Price{
			ReadsPer10k: 0.004, WritesPer10k: 0.05,
			Source: "Azure's list prices for block blobs, hot tier, LRS, East US, as known in June 2025",
		},
	})
}

func openURL(_ context.Context, u *tenure.URL) (tenure.Register, error) {
	p, err := parsePlace(u)
	if err != nil {
		// The URL is printed with the error: not so a shared access signature
		// that somebody has left on the endpoint.
		if before, _, cut := strings.Cut(u.Params["endpoint"], "?"); cut {
			u.Params["endpoint"] = before
		}
		return nil, fmt.Errorf("%w: %w", tenure.ErrURL, err)
	}
	sign, err := findSigner(p)
	if err != nil {
		return nil, err
	}
	return &Register{store: newStore(p, sign), blob: p.blob}, nil
}

// A Register is a register in a block blob. Its methods are safe for concurrent
// use by any number of goroutines and processes.
type Register struct {
	store *store
	blob  string
	// refused, if set, is what every call returns.
	refused error

	mu   sync.Mutex
	last *state
}

// A state is what one answer said. It is kept only to stand for what an answer
// "not modified" leaves out.
type state struct {
	value    []byte
	version  tenure.Version
	tooLarge bool
	// written is the service's Last-Modified, zero if it gave none.
	written time.Time
}

// String returns the register's URL.
func (r *Register) String() string {
	return fmt.Sprintf("azblob://%s/%s?account=%s", r.store.container, r.blob, r.store.account)
}

func (r *Register) remember(s *state) {
	r.mu.Lock()
	r.last = s
	r.mu.Unlock()
}

// fail says what was being done to what. Errors of a call whose context has
// ended wrap the context's.
func (r *Register) fail(ctx context.Context, op string, err error) error {
	if e := ctx.Err(); e != nil {
		err = fmt.Errorf("%w (%w)", e, err)
	}
	return fmt.Errorf("azblob: %s %v: %w", op, r, err)
}

// Read implements [tenure.Register]. It blocks for one request, Get Blob, at
// most until ctx ends. The request is conditional on the version that was read
// or written last.
func (r *Register) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	d, err := r.ReadDated(ctx)
	return d.Value, d.Version, err
}

// ReadDated implements [tenure.Dater] by the Last-Modified and Date of the
// answer. It blocks as Read does, for the same request.
func (r *Register) ReadDated(ctx context.Context) (tenure.DatedValue, error) {
	s, now, err := r.read(ctx)
	switch {
	case err != nil:
		return tenure.DatedValue{}, r.fail(ctx, "read", err)
	case s.tooLarge:
		return tenure.DatedValue{Version: s.version}, r.fail(ctx, "read", tenure.ErrValueTooLarge)
	}
	return tenure.DatedValue{Value: bytes.Clone(s.value), Version: s.version, Written: s.written, Now: now}, nil
}

func (r *Register) read(ctx context.Context) (*state, time.Time, error) {
	var never time.Time
	if r.refused != nil {
		return nil, never, r.refused
	}
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	header := http.Header{}
	if last != nil {
		header.Set("If-None-Match", string(last.version))
	}
	a, err := r.store.do(ctx, request{method: http.MethodGet, blob: r.blob, header: header, limit: tenure.MaxRecordSize})
	if err != nil {
		return nil, never, err
	}
	switch {
	case a.status == http.StatusOK:
		s, err := a.state()
		if err != nil {
			return nil, never, err
		}
		r.remember(s)
		return s, a.date, nil
	case a.status == http.StatusNotModified && last != nil:
		if tag := a.header.Get("ETag"); tag != "" && tag != string(last.version) {
			return nil, never, fmt.Errorf("%w: it says that version %s was not modified and calls it %s", errNotTheStore, last.version, tag)
		}
		return last, a.date, nil
	case a.status == http.StatusNotFound && a.code == "BlobNotFound":
		return nil, never, fmt.Errorf("%w: %w", tenure.ErrNotExist, r.store.explain(a))
	}
	return nil, never, r.store.explain(a)
}

// state is what an answer with a whole blob says.
func (a *answer) state() (*state, error) {
	if err := a.checkBlob(); err != nil {
		return nil, err
	}
	v, err := a.version()
	return &state{value: a.body, version: v, tooLarge: a.tooLarge, written: rest.Time(a.header, "Last-Modified")}, err
}

// Write implements [tenure.Register]. It blocks for one request, a conditional
// Put Blob, at most until ctx ends, and never repeats it.
func (r *Register) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	v, err := r.write(ctx, value, old)
	if err != nil {
		return "", r.fail(ctx, "write", err)
	}
	return v, nil
}

func (r *Register) write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	if r.refused != nil {
		return "", r.refused
	}
	header := http.Header{}
	header.Set("x-ms-blob-type", blockBlob)
	header.Set("Content-Type", "application/json")
	header.Set("x-ms-blob-cache-control", "no-store") // for whatever stands in front of the account
	if old == "" {
		header.Set("If-None-Match", "*")
	} else {
		header.Set("If-Match", string(old))
	}
	a, err := r.store.do(ctx, request{method: http.MethodPut, blob: r.blob, header: header, body: value, limit: maxMessage})
	if err != nil {
		return "", err
	}
	switch {
	case a.status == http.StatusCreated:
		v, err := a.version()
		if err == nil {
			r.remember(&state{value: bytes.Clone(value), version: v, tooLarge: len(value) > tenure.MaxRecordSize, written: rest.Time(a.header, "Last-Modified")})
		}
		return v, err
	case a.isConflict(old):
		return "", fmt.Errorf("%w: %w", tenure.ErrConflict, r.store.explain(a))
	}
	return "", r.store.explain(a)
}

// isConflict reports whether the store has said that the condition does not
// hold. The same statuses have other reasons too, which are no conflict: an
// Azure lease on the blob, a missing container, a policy.
func (a *answer) isConflict(old tenure.Version) bool {
	switch a.status {
	case http.StatusPreconditionFailed:
		return a.code == "ConditionNotMet"
	case http.StatusConflict:
		return a.code == "BlobAlreadyExists" && old == ""
	case http.StatusNotFound:
		return a.code == "BlobNotFound" && old != ""
	}
	return false
}

// Now implements [tenure.Clock]: the Date of an answer, to the second. It
// blocks for one request, Get Blob Properties, at most until ctx ends. The blob
// need not exist.
func (r *Register) Now(ctx context.Context) (time.Time, error) {
	const op = "ask the time of"
	if r.refused != nil {
		return time.Time{}, r.fail(ctx, op, r.refused)
	}
	a, err := r.store.do(ctx, request{method: http.MethodHead, blob: r.blob})
	if err == nil && a.status != http.StatusOK && a.code != "BlobNotFound" {
		err = r.store.explain(a)
	}
	if err != nil {
		return time.Time{}, r.fail(ctx, op, err)
	}
	if a.date.IsZero() {
		return time.Time{}, r.fail(ctx, op, fmt.Errorf("%w: it has no Date", errNotTheStore))
	}
	return a.date, nil
}

// Sibling implements [tenure.Siblinger]. It does not block, and the sibling
// shares this register's connections. If the suffix is not allowed, every call on the
// sibling says so.
func (r *Register) Sibling(beside string) tenure.Register {
	s := &Register{store: r.store, blob: r.blob + beside, refused: r.refused}
	if s.refused != nil {
		return s
	}
	if !suffix.Valid(beside) {
		s.refused = suffix.Refuse(beside)
	} else if err := checkBlobName(s.blob); err != nil {
		s.refused = fmt.Errorf("the suffix %q makes no blob's name: %w", beside, err)
	}
	return s
}

// List implements [tenure.Lister]. It blocks for one request, List Blobs, per
// 5000 siblings, at most until ctx ends.
func (r *Register) List(ctx context.Context, prefix string) ([]string, error) {
	if r.refused != nil {
		return nil, r.fail(ctx, "list siblings of", r.refused)
	}
	names, err := r.store.list(ctx, r.blob+prefix)
	if err != nil {
		return nil, r.fail(ctx, "list siblings of", err)
	}
	return suffix.Of(names, r.blob, prefix), nil
}

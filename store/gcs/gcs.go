// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"tenure.dev"
	"tenure.dev/internal/rest"
	"tenure.dev/internal/suffix"
)

var (
	_ tenure.Register     = (*Register)(nil)
	_ tenure.Siblinger    = (*Register)(nil)
	_ tenure.Lister       = (*Register)(nil)
	_ tenure.Clock        = (*Register)(nil)
	_ tenure.Dater        = (*Register)(nil)
	_ tenure.WriteLimiter = (*Register)(nil)
	_ tenure.Inspector    = (*Register)(nil)
)

func init() {
	tenure.RegisterScheme("gs", tenure.Driver{
		Open:   openURL,
		Params: []string{"anonymous", "endpoint"},
		Price: tenure.Price{
			ReadsPer10k: 0.004, WritesPer10k: 0.05,
			Source: "Google's list prices for Cloud Storage, class B and class A operations, Standard storage in one region, as known in June 2025",
		},
	})
}

func openURL(_ context.Context, u *tenure.URL) (tenure.Register, error) {
	p, err := parsePlace(u)
	if err == nil {
		err = checkPeriod(u.Settings)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", tenure.ErrURL, err)
	}
	var t *rest.Tokens
	if !p.anonymous {
		if err := checkCredentialsFile(); err != nil {
			return nil, fmt.Errorf("gcs: %w", err)
		}
		t = newTokens(p, time.Now)
	}
	return &Register{store: newStore(p, t), object: p.object}, nil
}

// A Register is a register in an object. Its methods are safe for concurrent
// use by any number of goroutines and processes.
type Register struct {
	store  *store
	object string
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
	written  time.Time
	// etag names the state for the next read; empty if it cannot.
	etag string
}

// String returns the register's URL.
func (r *Register) String() string { return "gs://" + r.store.bucket + "/" + r.object }

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
	return fmt.Errorf("gcs: %s %v: %w", op, r, err)
}

// Read implements [tenure.Register]. It blocks for one request for the object's
// content, at most until ctx ends. The request is conditional on what was read
// last.
func (r *Register) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	d, err := r.ReadDated(ctx)
	return d.Value, d.Version, err
}

// ReadDated implements [tenure.Dater], by the object's Last-Modified and the
// answer's Date. It blocks as Read does. A person who changes the object's
// metadata makes it look younger than it is.
func (r *Register) ReadDated(ctx context.Context) (tenure.DatedValue, error) {
	s, now, err := r.read(ctx)
	switch {
	case err != nil:
		return tenure.DatedValue{}, r.fail(ctx, "read", err)
	case s.tooLarge:
		return tenure.DatedValue{Version: s.version, Written: s.written, Now: now}, r.fail(ctx, "read", tenure.ErrValueTooLarge)
	}
	return tenure.DatedValue{Value: bytes.Clone(s.value), Version: s.version, Written: s.written, Now: now}, nil
}

func (r *Register) read(ctx context.Context) (s *state, now time.Time, err error) {
	if r.refused != nil {
		return nil, now, r.refused
	}
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	header := http.Header{}
	if last != nil && last.etag != "" {
		header.Set("If-None-Match", last.etag)
	}
	a, err := r.store.do(ctx, request{
		method: http.MethodGet, path: r.store.objectPath(r.object), query: url.Values{"alt": {"media"}},
		header: header, limit: tenure.MaxRecordSize,
	})
	if err != nil {
		return nil, now, err
	}
	switch {
	case a.status == http.StatusOK:
		if s, err = a.state(); err != nil {
			return nil, now, err
		}
		r.remember(s)
		return s, a.date, nil
	case a.status == http.StatusNotModified && header.Get("If-None-Match") != "":
		if g := a.header.Get("X-Goog-Generation"); g != "" && g != string(last.version) {
			return nil, now, fmt.Errorf("%w: it says that generation %s was not modified and calls it %s", errNotTheStore, last.version, g)
		}
		return last, a.date, nil
	case a.status == http.StatusNotFound && !a.bucketMissing():
		r.remember(nil)
		return nil, now, fmt.Errorf("%w: %w", tenure.ErrNotExist, r.store.explain(a))
	}
	return nil, now, r.store.explain(a)
}

// state takes value and generation from the same answer.
func (a *answer) state() (*state, error) {
	s := &state{value: a.body, tooLarge: a.tooLarge}
	var err error
	if s.version, err = a.version(a.header.Get("X-Goog-Generation")); err != nil {
		return nil, err
	}
	s.written = rest.Time(a.header, "Last-Modified")
	// The service's ETag here changes with the generation. One that is a hash of
	// the content, as emulators have, would hide A → B → A.
	sum := md5.Sum(a.body)
	tag := strings.Trim(a.header.Get("ETag"), `"`)
	if !a.tooLarge && tag != hex.EncodeToString(sum[:]) && tag != base64.StdEncoding.EncodeToString(sum[:]) {
		s.etag = a.header.Get("ETag")
	}
	return s, nil
}

// Write implements [tenure.Register]. It blocks for one request, a conditional
// upload, at most until ctx ends, and never repeats it.
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
	generation := string(old)
	if old == "" {
		generation = "0" // there must be no live object
	}
	q, err := r.store.upload(r.object, value, generation)
	if err != nil {
		return "", err
	}
	a, err := r.store.do(ctx, q)
	if err != nil {
		return "", err
	}
	switch {
	case a.status == http.StatusOK:
		var m struct{ Generation string }
		if json.Unmarshal(a.body, &m) != nil {
			m.Generation = "" // which version says
		}
		return a.version(m.Generation)
	case a.isConflict():
		return "", fmt.Errorf("%w: %w", tenure.ErrConflict, r.store.explain(a))
	}
	return "", r.store.explain(a)
}

// isConflict reports whether the service has said that the generation is
// another. The same status has other reasons too, such as a policy of the
// organization, which are no conflict.
func (a *answer) isConflict() bool {
	return a.status == http.StatusPreconditionFailed &&
		(a.reason == "conditionNotMet" || a.reason == "" && a.header.Get(originHeader) != "")
}

// MinWriteInterval implements [tenure.WriteLimiter]. It does not block.
func (*Register) MinWriteInterval() time.Duration { return minWriteInterval }

// Now implements [tenure.Clock]: the Date of an answer, to the second. It
// blocks for one request, for the object's metadata, at most until ctx ends. The
// object need not exist.
func (r *Register) Now(ctx context.Context) (time.Time, error) {
	const op = "ask the time of"
	if r.refused != nil {
		return time.Time{}, r.fail(ctx, op, r.refused)
	}
	a, err := r.store.do(ctx, request{method: http.MethodGet, path: r.store.objectPath(r.object), query: url.Values{"fields": {"generation"}}, limit: maxMessage})
	if err == nil && a.status != http.StatusOK && (a.status != http.StatusNotFound || a.bucketMissing()) {
		err = r.store.explain(a)
	}
	if err == nil && a.date.IsZero() {
		err = fmt.Errorf("%w: it has no Date", errNotTheStore)
	}
	if err != nil {
		return time.Time{}, r.fail(ctx, op, err)
	}
	return a.date, nil
}

// Sibling implements [tenure.Siblinger]. It does not block, and the sibling
// shares this register's connections. If the suffix is not allowed, every call on the
// sibling says so.
func (r *Register) Sibling(beside string) tenure.Register {
	s := &Register{store: r.store, object: r.object + beside, refused: r.refused}
	if s.refused != nil {
		return s
	}
	if !suffix.Valid(beside) {
		s.refused = suffix.Refuse(beside)
	} else if err := checkObjectName(s.object); err != nil {
		s.refused = fmt.Errorf("the suffix %q makes no object's name: %w", beside, err)
	}
	return s
}

// List implements [tenure.Lister]. It blocks for one request per 1000 siblings,
// at most until ctx ends.
func (r *Register) List(ctx context.Context, prefix string) ([]string, error) {
	const op = "list siblings of"
	if r.refused != nil {
		return nil, r.fail(ctx, op, r.refused)
	}
	names, err := r.store.list(ctx, r.object+prefix)
	if err != nil {
		return nil, r.fail(ctx, op, err)
	}
	return suffix.Of(names, r.object, prefix), nil
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	"tenure.dev"
	"tenure.dev/internal/rest"
)

const (
	// maxMessage bounds an answer that says how a request went, maxPage one
	// page of a listing, in bytes.
	maxMessage = 16 << 10
	maxPage    = 8 << 20
)

// A store is a bucket that is reached with one credential. Siblings share it.
type store struct {
	place
	// tokens is nil for requests without credentials.
	tokens *rest.Tokens
	http   *http.Client
	now    func() time.Time
	// page, when set, is how many objects one page of a listing has.
	page int
}

func newStore(p place, t *rest.Tokens) *store {
	return &store{place: p, tokens: t, now: time.Now, http: rest.NewClient()}
}

// escape leaves nothing to guess for whoever reads the path on the way.
func escape(name string) string {
	return strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
}

func (s *store) bucketPath() string              { return "/storage/v1/b/" + escape(s.bucket) }
func (s *store) objectPath(object string) string { return s.bucketPath() + "/o/" + escape(object) }
func (s *store) uploadPath() string              { return "/upload" + s.bucketPath() + "/o" }

// A request is one of the JSON API.
type request struct {
	method string
	// path is escaped.
	path   string
	query  url.Values
	header http.Header
	body   []byte
	// limit is how long the answer may be, in bytes.
	limit int64
}

// An answer is one that came from the service.
type answer struct {
	status int
	header http.Header
	// body is empty if the answer was longer than its limit.
	body     []byte
	tooLarge bool
	// reason and message are the service's, for an error.
	reason, message string
	date, got       time.Time
	// method is the request's.
	method string
}

// do makes one request. Any answer of the service is returned as such; the
// error is about answers that did not come, or came from something else.
func (s *store) do(ctx context.Context, q request) (*answer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := s.newRequest(ctx, q)
	if err != nil {
		return nil, err
	}
	token := ""
	if s.tokens != nil {
		if token, err = s.tokens.Get(ctx); err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.http.Do(r)
	if err != nil {
		s.http.CloseIdleConnections() // they may be as dead
		return nil, s.explainTransport(err)
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, header: resp.Header, got: s.now(), method: q.method}
	a.date = rest.Time(a.header, "Date")
	if err := a.readBody(resp, q.limit); err != nil {
		s.http.CloseIdleConnections()
		return nil, s.explainTransport(err)
	}
	if err := s.checkOrigin(a); err != nil {
		return nil, err
	}
	if a.status == http.StatusUnauthorized && s.tokens != nil {
		s.tokens.Refused(token)
	}
	return a, nil
}

func (s *store) newRequest(ctx context.Context, q request) (*http.Request, error) {
	var body io.Reader
	if q.body != nil {
		body = bytes.NewReader(q.body)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, s.endpoint.String()+q.path+"?"+q.query.Encode(), body)
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", rest.WithoutURL(err))
	}
	maps.Copy(r.Header, q.header)
	r.Header.Set("Cache-Control", "no-store")
	r.Header.Set("User-Agent", "tenure")
	return r, nil
}

// readBody reads the body, if it is no longer than limit.
func (a *answer) readBody(resp *http.Response, limit int64) (err error) {
	if a.status >= 300 || limit == 0 {
		limit = maxMessage
	}
	a.body, a.tooLarge, err = rest.Body(resp, limit)
	if err == nil && a.status >= 300 {
		a.readMessage()
	}
	return err
}

// readMessage finds the service's reason for an error. For requests about an
// object's content the body is the message alone.
func (a *answer) readMessage() {
	var m struct {
		Error struct {
			Message string
			Errors  []struct{ Reason string }
		}
	}
	if err := json.Unmarshal(a.body, &m); err != nil {
		a.message = oneLine(string(a.body))
		return
	}
	a.message = oneLine(m.Error.Message)
	if len(m.Error.Errors) > 0 {
		a.reason = m.Error.Errors[0].Reason
	}
}

// version takes an object's generation for what it is: a name.
func (a *answer) version(generation string) (tenure.Version, error) {
	if n, err := strconv.ParseInt(generation, 10, 64); err != nil || n <= 0 {
		return "", fmt.Errorf("%w: it has no generation (%d %s, %q): look at what stands between, such as a proxy",
			errNotTheStore, a.status, http.StatusText(a.status), a.header.Get("Content-Type"))
	}
	return tenure.Version(generation), nil
}

// upload makes the request that writes value if the object has this generation.
// Content and metadata go together, so that no answer of a cache is ever kept.
func (s *store) upload(object string, value []byte, generation string) (request, error) {
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	// Not in any value: nobody can guess it.
	if err := w.SetBoundary(crand.Text()); err != nil {
		return request{}, err
	}
	for _, part := range [][]byte{[]byte(`{"cacheControl":"no-store","contentType":"application/json"}`), value} {
		p, err := w.CreatePart(textproto.MIMEHeader{"Content-Type": {"application/json"}})
		if err != nil {
			return request{}, err
		}
		if _, err := p.Write(part); err != nil {
			return request{}, err
		}
	}
	if err := w.Close(); err != nil {
		return request{}, err
	}
	return request{
		method: http.MethodPost, path: s.uploadPath(), limit: maxMessage, body: body.Bytes(),
		query:  url.Values{"uploadType": {"multipart"}, "name": {object}, "ifGenerationMatch": {generation}, "fields": {"generation"}},
		header: http.Header{"Content-Type": {"multipart/related; boundary=" + w.Boundary()}},
	}, nil
}

// list returns the names of the objects whose names begin with prefix.
func (s *store) list(ctx context.Context, prefix string) ([]string, error) {
	query := url.Values{"prefix": {prefix}, "fields": {"items(name),nextPageToken"}}
	if s.page > 0 {
		query.Set("maxResults", strconv.Itoa(s.page))
	}
	var names []string
	for {
		a, err := s.do(ctx, request{method: http.MethodGet, path: s.bucketPath() + "/o", query: query, limit: maxPage})
		if err != nil {
			return nil, err
		}
		if a.status != http.StatusOK {
			return nil, s.explain(a)
		}
		var page struct {
			Items         []struct{ Name string }
			NextPageToken string
		}
		if err := json.Unmarshal(a.body, &page); err != nil {
			return nil, fmt.Errorf("%w: its listing cannot be read: %w", errNotTheStore, err)
		}
		for _, o := range page.Items {
			names = append(names, o.Name)
		}
		if page.NextPageToken == "" {
			return names, nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

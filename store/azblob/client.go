// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"tenure.dev"
	"tenure.dev/internal/rest"
)

const (
	// apiVersion of the service's interface. It is old enough for emulators and
	// new enough for what Inspect looks at.
	apiVersion = "2021-12-02"
	blockBlob  = "BlockBlob"
	// maxMessage bounds an answer that says how a request went, maxPage one
	// page of a listing, in bytes.
	maxMessage = 16 << 10
	maxPage    = 32 << 20
)

// A store is a container that is reached with one credential. Siblings share it.
type store struct {
	place
	signer
	http *http.Client
	now  func() time.Time
	// page, when set, is how many blobs one page of a listing has.
	page int
}

func newStore(p place, sign signer) *store {
	return &store{place: p, signer: sign, now: time.Now, http: rest.NewClient()}
}

// A request is one to the blob, to the container if blob is empty, or to the
// account if account is set.
type request struct {
	method  string
	blob    string
	account bool
	query   url.Values
	header  http.Header
	body    []byte
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
	// code and detail are the service's, for an error.
	code, detail string
	date         time.Time
	got          time.Time
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
	if err := s.sign(ctx, r); err != nil {
		return nil, err
	}
	resp, err := s.http.Do(r)
	if err != nil {
		s.http.CloseIdleConnections() // they may be as dead
		return nil, s.explainTransport(err)
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, header: resp.Header, got: s.now(), method: q.method}
	a.date = rest.Time(a.header, "Date")
	if err := a.readBody(resp, q); err != nil {
		s.http.CloseIdleConnections()
		return nil, s.explainTransport(err)
	}
	if err := a.checkOrigin(); err != nil {
		return nil, err
	}
	if a.status == http.StatusUnauthorized || a.code == "AuthenticationFailed" {
		s.refused(r)
	}
	return a, nil
}

func (s *store) newRequest(ctx context.Context, q request) (*http.Request, error) {
	u := *s.endpoint
	switch {
	case q.blob != "":
		u.Path += "/" + s.container + "/" + q.blob
	case !q.account:
		u.Path += "/" + s.container
	default:
		u.Path += "/"
	}
	u.RawQuery = q.query.Encode()
	var body io.Reader
	if q.method == http.MethodPut {
		body = bytes.NewReader(q.body)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", rest.WithoutURL(err))
	}
	maps.Copy(r.Header, q.header)
	r.Header.Set("x-ms-version", apiVersion)
	r.Header.Set("x-ms-date", s.now().UTC().Format(http.TimeFormat))
	r.Header.Set("Cache-Control", "no-store")
	r.Header.Set("User-Agent", "tenure")
	return r, nil
}

// readBody reads the body, if it is no longer than the request's limit.
func (a *answer) readBody(resp *http.Response, q request) (err error) {
	limit := q.limit
	if a.status >= 300 || limit == 0 {
		limit = maxMessage
	}
	a.body, a.tooLarge, err = rest.Body(resp, limit)
	if err == nil && a.status >= 300 {
		a.readMessage()
	}
	return err
}

// readMessage finds the service's code for an error, which is in a header and,
// with an explanation, in the body.
func (a *answer) readMessage() {
	var m struct {
		Code   string
		Detail string `xml:"AuthenticationErrorDetail"`
	}
	if err := xml.Unmarshal(a.body, &m); err != nil {
		m.Code, m.Detail = "", ""
	}
	a.detail = m.Detail
	if a.code = a.header.Get("x-ms-error-code"); a.code == "" {
		a.code = m.Code
	}
}

// version is the ETag, as it came.
func (a *answer) version() (tenure.Version, error) {
	tag := a.header.Get("ETag")
	switch {
	case tag == "":
		return "", fmt.Errorf("%w: it has no ETag", errNotTheStore)
	case strings.HasPrefix(tag, "W/"):
		return "", fmt.Errorf("%w: its ETag %s is weak; a proxy that compresses makes such: have it pass requests on as they are", errNotTheStore, tag)
	}
	return tenure.Version(tag), nil
}

// checkBlob refuses what is no block blob and so can never be a record.
func (a *answer) checkBlob() error {
	kind := a.header.Get("x-ms-blob-type")
	switch {
	case strings.EqualFold(a.header.Get("x-ms-meta-hdi_isfolder"), "true") || a.header.Get("x-ms-resource-type") == "directory":
		return errors.New("it is a directory: name a blob in it")
	case kind != "" && kind != blockBlob:
		return fmt.Errorf("it is a %s, and a lock is a %s: choose another path, or delete it", kind, blockBlob)
	}
	return nil
}

// list returns the names of the blobs whose names begin with prefix.
func (s *store) list(ctx context.Context, prefix string) ([]string, error) {
	query := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {prefix}}
	if s.page > 0 {
		query.Set("maxresults", strconv.Itoa(s.page))
	}
	var names []string
	for {
		a, err := s.do(ctx, request{method: http.MethodGet, query: query, limit: maxPage})
		if err != nil {
			return nil, err
		}
		if a.status != http.StatusOK {
			return nil, s.explain(a)
		}
		var page struct {
			XMLName xml.Name `xml:"EnumerationResults"`
			Blobs   []struct {
				Name       string
				Properties struct{ ResourceType string }
			} `xml:"Blobs>Blob"`
			NextMarker string
		}
		if err := xml.Unmarshal(a.body, &page); err != nil {
			return nil, fmt.Errorf("%w: its listing cannot be read: %w", errNotTheStore, err)
		}
		for _, b := range page.Blobs {
			if b.Properties.ResourceType != "directory" {
				names = append(names, b.Name)
			}
		}
		if page.NextMarker == "" {
			return names, nil
		}
		query.Set("marker", page.NextMarker)
	}
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

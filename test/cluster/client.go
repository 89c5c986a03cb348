// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Media types of a patch.
const (
	MergePatch = "application/merge-patch+json"
	JSONPatch  = "application/json-patch+json"
	// ApplyPatch takes JSON too, and ?fieldManager= in the path.
	ApplyPatch = "application/apply-patch+yaml"
)

// What an API server refused, for errors.Is with what a [Client] returns.
var (
	// ErrUnauthorized: it does not know who asks (401).
	ErrUnauthorized = errors.New("unauthorized")
	// ErrForbidden: RBAC or an admission policy refuses (403).
	ErrForbidden = errors.New("forbidden")
	// ErrNotFound: no such object or resource (404).
	ErrNotFound = errors.New("not found")
	// ErrConflict: another resourceVersion, or it exists already (409).
	ErrConflict = errors.New("conflict")
	// ErrInvalid: the object breaks its schema, or a policy says so (422).
	ErrInvalid = errors.New("invalid")
)

var byCode = map[int]error{
	http.StatusUnauthorized:        ErrUnauthorized,
	http.StatusForbidden:           ErrForbidden,
	http.StatusNotFound:            ErrNotFound,
	http.StatusConflict:            ErrConflict,
	http.StatusUnprocessableEntity: ErrInvalid,
}

// A StatusError is an answer of an API server other than success.
type StatusError struct {
	Method, Path string
	Code         int    // HTTP's
	Reason       string // of the Status object, as "AlreadyExists"
	Message      string // of the Status object, else the body
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: %d %s: %s", e.Method, e.Path, e.Code, e.Reason, e.Message)
}

// Is says whether target is the sentinel of the error's code.
func (e *StatusError) Is(target error) bool { return byCode[e.Code] == target }

// A Client speaks JSON with one API server as one user. It is safe for
// concurrent use. Its methods block until the answer is there or ctx is done,
// and wait for no server longer than that.
type Client struct {
	// Server is the address, as https://127.0.0.1:6443.
	Server string

	http  *http.Client
	token string
}

// dialFunc is what http.Transport dials with.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// newClient makes a client that trusts ca. Each request has a connection to
// itself, HTTP/1: one that hangs in a paused server or a cut network takes no
// other with it.
func newClient(server string, ca []byte, cert *tls.Certificate) *Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	conf := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if cert != nil {
		conf.Certificates = []tls.Certificate{*cert}
	}
	return &Client{Server: server, http: &http.Client{Transport: &http.Transport{
		TLSClientConfig: conf,
		TLSNextProto:    map[string]func(string, *tls.Conn) http.RoundTripper{},
		IdleConnTimeout: 10 * time.Second,
	}}}
}

// Get reads the object at path into out, which may be nil.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.do(ctx, http.MethodGet, path, "", nil, out)
}

// Post creates in below path and reads the answer into out; both may be nil.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	return c.do(ctx, http.MethodPost, path, "application/json", in, out)
}

// Put replaces the object at path by in and reads the answer into out, which
// may be nil.
func (c *Client) Put(ctx context.Context, path string, in, out any) error {
	return c.do(ctx, http.MethodPut, path, "application/json", in, out)
}

// Patch patches the object at path by in, whose media type is kind, and reads
// the answer into out, which may be nil.
func (c *Client) Patch(ctx context.Context, path, kind string, in, out any) error {
	return c.do(ctx, http.MethodPatch, path, kind, in, out)
}

// Delete deletes what is at path, an object or a collection. The options in may
// be nil.
func (c *Client) Delete(ctx context.Context, path string, in any) error {
	return c.do(ctx, http.MethodDelete, path, "application/json", in, nil)
}

// do sends in, raw JSON or something to encode, and reads the answer into out:
// a *[]byte takes it as it is.
func (c *Client) do(ctx context.Context, method, path, kind string, in, out any) error {
	res, err := c.send(ctx, method, path, kind, in)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = body
		return nil
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%s %s: decode the answer: %w", method, path, err)
	}
	return nil
}

// send returns an answer of success, whose body is the caller's to close.
func (c *Client) send(ctx context.Context, method, path, kind string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := encode(in)
		if err != nil {
			return nil, fmt.Errorf("%s %s: encode: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Server+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", kind)
	}
	req.Header.Set("Accept", "application/json, */*;q=0.1")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err // names method and URL
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, statusError(method, path, res)
	}
	return res, nil
}

func encode(in any) ([]byte, error) {
	switch in := in.(type) {
	case []byte:
		return in, nil
	case string:
		return []byte(in), nil
	default:
		return json.Marshal(in)
	}
}

func statusError(method, path string, res *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %s: read the answer: %w", method, path, res.Status, err)
	}
	e := &StatusError{Method: method, Path: path, Code: res.StatusCode}
	var status struct{ Reason, Message string }
	if json.Unmarshal(b, &status) == nil && status.Message != "" {
		e.Reason, e.Message = status.Reason, status.Message
	} else {
		e.Message = strings.TrimSpace(string(b))
	}
	return e
}

// An Event is what a watch reports.
type Event struct {
	Type   string // ADDED, MODIFIED, DELETED, BOOKMARK
	Object json.RawMessage
}

// Watch watches the collection at path, from ?resourceVersion= of the path or
// from what there is, and hands each event to see until that returns false:
// then Watch returns nil. It returns an error when ctx is done or the server
// ends the watch.
func (c *Client) Watch(ctx context.Context, path string, see func(Event) bool) error {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	path += sep + "watch=true"
	res, err := c.send(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	for d := json.NewDecoder(res.Body); ; {
		var e Event
		switch err := d.Decode(&e); {
		case err != nil:
			return fmt.Errorf("GET %s: the watch ended: %w", path, err)
		case e.Type == "ERROR":
			var s struct {
				Code            int
				Reason, Message string
			}
			if err := json.Unmarshal(e.Object, &s); err != nil {
				return fmt.Errorf("GET %s: the watch failed: %s", path, e.Object)
			}
			return &StatusError{Method: http.MethodGet, Path: path, Code: s.Code, Reason: s.Reason, Message: s.Message}
		case !see(e):
			return nil
		}
	}
}

// Close closes the connections that are idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// AdminClient returns a client of API server i that may do everything. It is an
// observer: no proxy, and no cut of the cluster's network, stands before it. It is
// the same one at each call, and ends with the cluster.
func (c *Cluster) AdminClient(i int) *Client { return c.admins[i] }

// Client returns a client of API server i, on this machine, for a user with a
// certificate of his own; it goes past any proxy.
func (c *Cluster) Client(i int, user string, groups ...string) (*Client, error) {
	cert, key, err := c.pki.client(user, groups)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: certificate for %s: %w", c.name, user, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: certificate for %s: %w", c.name, user, err)
	}
	return newClient("https://"+c.APIServer(i), slices.Clone(c.pki.caPEM), &pair), nil
}

// TokenClient returns a client of API server i whom a bearer token names, that
// of a service account. The empty token is the anonymous user.
func (c *Cluster) TokenClient(i int, token string) *Client {
	t := newClient("https://"+c.APIServer(i), c.pki.caPEM, nil)
	t.token = token
	return t
}

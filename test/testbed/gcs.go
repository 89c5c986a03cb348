// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A GCS is a fake-gcs-server, an emulator of Google Cloud Storage that keeps
// objects in memory, with a proxy before it. The emulator checks the generation
// that an upload names, and no other condition; the proxy adds, for the JSON API,
// what the service documents:
//
//   - ifGenerationMatch, ifGenerationNotMatch, ifMetagenerationMatch and
//     ifMetagenerationNotMatch on reads, deletes and changes of metadata, the last
//     three on uploads; If-Match and If-None-Match with the ETag on reads. The status
//     is 412, or 304 for what must not match. Without a live object ifGenerationMatch
//     holds for 0 only, and ifGenerationNotMatch fails.
//   - ETags that change with each generation, instead of hashes of the content.
//   - The words of a 404, and the header by which the service can be told from
//     others.
//   - If LimitWrites asks for it, 429 for a second write of an object within a
//     second.
//
// Resumable uploads, and uploads that name the object in their body only, pass
// unchecked. All clients must use the proxy. Its methods are safe for concurrent
// use.
type GCS struct {
	*Process
	// Endpoint is the proxy's address, "http://127.0.0.1:port".
	Endpoint string

	direct  string // the emulator's own address
	client  *http.Client
	server  *http.Server
	limited atomic.Bool

	mu      sync.Mutex
	objects map[string]*gcsObject
}

// StartGCS starts an emulator and its proxy on free loopback ports and waits
// until they answer, with the emulator's log in dir. There is no bucket yet.
func StartGCS(dir string) (*GCS, error) {
	bin, err := Bin("fake-gcs-server")
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	g := &GCS{
		direct:  fmt.Sprintf("http://127.0.0.1:%d", port),
		client:  &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}, Timeout: time.Minute},
		objects: map[string]*gcsObject{},
	}
	args := []string{"-scheme", "http", "-host", "127.0.0.1", "-port", fmt.Sprint(port), "-backend", "memory", "-log-level", "warn"}
	g.Process, err = Start(Cmd{Path: bin, Args: args, Dir: dir, Log: filepath.Join(dir, "fake-gcs-server.log")})
	if err != nil {
		return nil, err
	}
	if err := g.Ready(startWithin, g.healthy); err != nil {
		g.Kill()
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.Kill()
		return nil, fmt.Errorf("testbed: no free port before fake-gcs-server: %w", err)
	}
	g.Endpoint = "http://" + l.Addr().String()
	g.server = &http.Server{Handler: g}
	go g.server.Serve(l) //nolint:errcheck // it ends with Close
	return g, nil
}

func (g *GCS) healthy() error {
	resp, err := g.client.Get(g.direct + "/_internal/healthcheck")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// Close ends the proxy and kills the emulator. It may be called again.
func (g *GCS) Close() {
	g.server.Close()
	g.Kill()
	g.client.CloseIdleConnections()
}

// LimitWrites makes the proxy refuse a write of an object less than a second
// after the one before, as the service does when that goes on.
func (g *GCS) LimitWrites(on bool) { g.limited.Store(on) }

// LockURL returns the lock URL of an object.
func (g *GCS) LockURL(bucket, object string) string {
	return "gs://" + bucket + "/" + object + "?anonymous=true&endpoint=" + g.Endpoint
}

// CreateBucket makes a bucket.
func (g *GCS) CreateBucket(name string) error {
	return g.change(http.MethodPost, "/storage/v1/b?project=test", fmt.Sprintf(`{"name":%q}`, name))
}

// Put replaces an object without a condition, as a person could.
func (g *GCS) Put(bucket, object string, value []byte) error {
	return g.change(http.MethodPost, "/upload/storage/v1/b/"+bucket+"/o?uploadType=media&name="+url.QueryEscape(object), string(value))
}

// Delete removes an object without a condition.
func (g *GCS) Delete(bucket, object string) error {
	return g.change(http.MethodDelete, gcsObjectPath(bucket, object), "")
}

func gcsObjectPath(bucket, object string) string {
	return "/storage/v1/b/" + url.PathEscape(bucket) + "/o/" + url.PathEscape(object)
}

// change makes a request to the proxy whose answer only matters if it is no
// success.
func (g *GCS) change(method, path, body string) error {
	r, err := http.NewRequest(method, g.Endpoint+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := g.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("testbed: %s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	return nil
}

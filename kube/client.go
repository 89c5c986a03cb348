// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

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
	"net/url"
	"reflect"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// maxBody bounds an answer. etcd keeps no object above 1.5 MiB, and a page of
	// a listing has metadata only.
	maxBody = 8 << 20
	// dialTimeout bounds a connection's setup, which goes on when the request
	// that wanted it has ended.
	dialTimeout = 5 * time.Second
	userAgent   = "tenure"
)

// An access is one API server as one user, shared by a lock and its siblings.
// Whatever looks like stale credentials or a dead connection has it start anew
// with the next request: the configuration is read again, and dialled again.
type access struct {
	source source
	period time.Duration

	mu     sync.Mutex
	client *client
	stale  bool
	plugin *plugin
}

// A client is a configuration as it was read once, and its connections.
type client struct {
	base      *url.URL
	http      *http.Client
	transport *http.Transport
	plugin    *plugin
	insecure  bool // the server's certificate is not checked
	plain     bool // there is no TLS
	tls       *tls.Config
}

// open returns the client to use now.
func (c *access) open() (*client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client != nil && !c.stale {
		return c.client, nil
	}
	next, err := c.load()
	if err != nil {
		if c.client != nil && !c.source.vanished(err) {
			return c.client, nil // half written, perhaps; it is read again next time
		}
		return nil, err
	}
	if c.client != nil {
		c.client.transport.CloseIdleConnections()
	}
	c.client, c.stale = next, false
	return next, nil
}

func (c *access) load() (*client, error) {
	config, err := c.source.load()
	if err != nil {
		return nil, err
	}
	// The plugin survives: one that hangs must not be started again and again.
	if e := config.ExecProvider; e != nil && (c.plugin == nil || !reflect.DeepEqual(c.plugin.config, e)) {
		if c.plugin, err = newPlugin(config); err != nil {
			return nil, fmt.Errorf("k8s: %v: %w", c.source, err)
		}
	} else if e == nil {
		c.plugin = nil
	}
	cl, err := newClient(config, c.plugin, c.period)
	if err != nil {
		return nil, fmt.Errorf("k8s: %v: %w", c.source, err)
	}
	return cl, nil
}

// refresh has the next request start anew, unless that happened since cl was
// opened.
func (c *access) refresh(cl *client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == cl {
		c.stale = true
	}
}

func newClient(config *rest.Config, plug *plugin, period time.Duration) (*client, error) {
	config = rest.CopyConfig(config)
	config.ExecProvider = nil // we run it ourselves
	config.UserAgent = userAgent
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	base.User = nil
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if plug != nil && tlsConfig.GetClientCertificate == nil {
		tlsConfig.GetClientCertificate = plug.certificate
	}
	proxy := http.ProxyFromEnvironment
	if config.Proxy != nil {
		proxy = config.Proxy
	}
	// A connection that has died without a word is found out by unanswered
	// pings, within half a period, and not by the next renewal's timeout.
	ping := min(max(period/4, 100*time.Millisecond), 5*time.Second)
	transport := &http.Transport{
		Proxy:               proxy,
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     90 * time.Second,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: ping, PingTimeout: ping, WriteByteTimeout: 2 * ping},
	}
	var rt http.RoundTripper = transport
	if plug != nil {
		rt = plug.wrap(rt)
	}
	if rt, err = rest.HTTPWrappersForConfig(config, rt); err != nil {
		return nil, err
	}
	return &client{
		base: base, transport: transport, plugin: plug, insecure: config.Insecure, plain: base.Scheme == "http", tls: tlsConfig,
		http: &http.Client{
			Transport: rt,
			// An API server redirects nobody; what does is a login page.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// certificateEnd returns when the client certificate that is in use ends, zero
// if there is none. It runs no plugin.
func (c *client) certificateEnd() time.Time {
	var cert *tls.Certificate
	switch {
	case c.plugin != nil:
		cert = c.plugin.lastCertificate()
	case c.tls.GetClientCertificate != nil:
		cert, _ = c.tls.GetClientCertificate(new(tls.CertificateRequestInfo)) // from memory or a file
	}
	if cert == nil || len(cert.Certificate) == 0 {
		return time.Time{}
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return time.Time{}
	}
	return leaf.NotAfter
}

// A request is one request; path is below the server's own.
type request struct {
	method, path string
	verb         string // RBAC's
	query        url.Values
	body         any
	accept       string
}

// send makes one request, and returns the answer whatever its status, with the
// body unread. The client is returned for what is found out about the answer.
func (c *access) send(ctx context.Context, r request) (*http.Response, *client, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	cl, err := c.open()
	if err != nil {
		return nil, nil, err
	}
	u := *cl.base
	u.Path = strings.TrimSuffix(u.Path, "/") + r.path
	u.RawQuery = r.query.Encode()
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, cl, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
	if err != nil {
		return nil, cl, err
	}
	if body != nil {
		// The transport repeats a write only if nothing of it was sent, or the
		// server has said that it did not look at it.
		req.Header.Set("Content-Type", "application/json")
	}
	if r.accept == "" {
		r.accept = "application/json"
	}
	req.Header.Set("Accept", r.accept)
	resp, err := cl.http.Do(req)
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			c.refresh(cl)
		}
		return nil, cl, explainTransport(ctx, cl, err)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		c.refresh(cl)
		if cl.plugin != nil {
			cl.plugin.forget()
		}
	}
	return resp, cl, nil
}

// do makes one request and reads the answer into out. An answer that is not
// success is an error.
func (c *access) do(ctx context.Context, r request, out any) (http.Header, error) {
	resp, cl, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			c.refresh(cl)
		}
		return nil, explainTransport(ctx, cl, fmt.Errorf("the answer broke off: %w", err))
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("the answer has more than %d bytes", maxBody)
	}
	if err := explainStatus(cl, resp, body); err != nil {
		return resp.Header, err
	}
	if err := json.Unmarshal(body, out); err != nil {
		return nil, fmt.Errorf("the answer cannot be read: %w", err)
	}
	return resp.Header, nil
}

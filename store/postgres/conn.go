// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"tenure.dev"
)

const (
	// maxConns bounds the connections of a register and its siblings, maxIdle
	// those that are kept: an elector seldom makes two requests at once.
	maxConns = 8
	maxIdle  = 2
	// connectAtMost bounds the time for one host whatever ctx allows.
	connectAtMost = 10 * time.Second
	// maxMessage is ample for a record and for what a server says about errors.
	maxMessage = 4 * tenure.MaxRecordSize
)

// A client is what a register and its siblings share. Its methods are safe for
// concurrent use.
type client struct {
	place
	slots chan struct{} // holds one for each connection in use

	mu   sync.Mutex
	idle []*conn
	last string // the host of the newest connection
}

// A conn is one connection. It is used by one call at a time.
type conn struct {
	*pgconn.PgConn
	raw net.Conn // below TLS
	// unreplicated: the server told, since the call began, that it gave up
	// waiting for its synchronous standby.
	unreplicated bool
}

func newClient(p *place) *client {
	return &client{place: *p, slots: make(chan struct{}, maxConns)}
}

// do calls f with a connection. When ctx ends the connection is closed under
// f, and do returns ctx's error.
func (c *client) do(ctx context.Context, f func(*conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	cn := c.takeIdle()
	if cn == nil {
		var err error
		if cn, err = c.connect(ctx); err != nil {
			return err
		}
	}
	cn.unreplicated = false
	stop := context.AfterFunc(ctx, func() { cn.raw.Close() })
	err := f(cn)
	alive := stop()
	var refused *pgconn.PgError
	if alive && !cn.IsClosed() && (err == nil || errors.As(err, &refused)) && !errors.Is(err, errStandby) {
		c.keep(cn)
		return err
	}
	cn.end()
	if !alive && err != nil && !isOwn(err) {
		return errors.Join(ctx.Err(), err)
	}
	return err
}

// end closes the connection without a word to the server, and waits for what
// the client library does about that.
func (cn *conn) end() {
	cn.raw.Close()
	if cn.IsClosed() {
		<-cn.CleanupDone()
		return
	}
	_ = cn.Close(context.Background()) // writes to what is closed already
}

// takeIdle returns a kept connection on which nothing has come since: neither
// its end, nor the server's last words before that.
func (c *client) takeIdle() *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.idle) > 0 {
		cn := c.idle[len(c.idle)-1]
		c.idle = c.idle[:len(c.idle)-1]
		if silent(cn.raw) {
			return cn
		}
		cn.end()
	}
	return nil
}

func (c *client) keep(cn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) < maxIdle {
		c.idle = append(c.idle, cn)
		return
	}
	cn.end()
}

// close ends the connections that are idle.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cn := range c.idle {
		cn.end()
	}
	c.idle = nil
}

// connecting marks the contexts of connects. The client library also opens
// connections to cancel statements, unasked, when one ends early. Cancelling
// would end a write's wait for a synchronous standby, and make it seen before it
// is safe: those connections are refused.
type connecting struct{}

var errNoCancel = errors.New("postgres: statements are not cancelled")

// connect opens a connection to the first host that is the primary, or, if
// there is only one host, to that.
func (c *client) connect(ctx context.Context) (*conn, error) {
	var failures []error
	hosts := c.ordered()
	for i, host := range hosts {
		// A host that does not answer must leave some time for the others.
		within := connectAtMost
		if deadline, ok := ctx.Deadline(); ok {
			within = min(within, time.Until(deadline)/time.Duration(len(hosts)-i))
		}
		cn, err := c.connectTo(ctx, host, within)
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.last = host
			return cn, nil
		}
		failures = append(failures, err)
		if ctx.Err() != nil {
			failures = append(failures, ctx.Err())
			break
		}
	}
	return nil, errors.Join(failures...)
}

// ordered returns the hosts, first the one that was the primary when last
// asked. Whether it still is, it is asked again.
func (c *client) ordered() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := max(slices.Index(c.hosts, c.last), 0)
	return slices.Concat(c.hosts[i:], c.hosts[:i])
}

// connectTo opens a connection with the credentials as they are now.
func (c *client) connectTo(ctx context.Context, host string, within time.Duration) (*conn, error) {
	cfg, err := pgconn.ParseConfig(c.settings(host))
	if err != nil {
		return nil, &setupError{err}
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, connecting{}, true), within)
	defer cancel()
	cn := &conn{}
	// What PGOPTIONS, PGTZ or a service file would add, a pooler refuses; and
	// search_path and such must not differ between candidates.
	cfg.RuntimeParams = map[string]string{"application_name": "tenure", "client_encoding": "UTF8"}
	cfg.MaxProtocolMessageBodyLen = maxMessage
	lookup := cfg.LookupFunc
	cfg.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		addrs, err := lookup(ctx, host)
		// The library tries them one by one, each for this long.
		cfg.ConnectTimeout = max(within/time.Duration(max(len(addrs), 1)), time.Millisecond)
		return addrs, err
	}
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if ctx.Value(connecting{}) == nil {
			return nil, errNoCancel
		}
		raw, err := dialer.DialContext(ctx, network, address)
		cn.raw = raw
		return raw, err
	}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		// Where in the server this warning comes from is the only name of it that
		// no language changes.
		if n.Routine == "SyncRepWaitForLSN" {
			cn.unreplicated = true
		}
	}
	if cn.PgConn, err = pgconn.ConnectConfig(ctx, cfg); err != nil {
		var outer *pgconn.ConnectError // it carries the password along
		if errors.As(err, &outer) {
			err = outer.Unwrap()
		}
		return nil, err
	}
	return cn, nil
}

// dialer notices a peer that is gone while a call without a deadline waits.
var dialer = &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}

// A setupError is about what was there before anything was sent: files and
// settings.
type setupError struct{ err error }

func (e *setupError) Error() string { return e.err.Error() }
func (e *setupError) Unwrap() error { return e.err }

// query runs one statement in a transaction of its own, in one round trip:
// the server sees an unnamed statement that is gone at the end. It returns the
// rows, all columns as text but those whose format is 1. It returns without
// error only after the server has said that the transaction is committed.
func (cn *conn) query(sql string, formats []int16, params ...[]byte) ([][][]byte, error) {
	paramFormats := make([]int16, len(params))
	for i := range params {
		paramFormats[i] = 1 // of text, the same as format 0
	}
	res := cn.ExecParams(context.Background(), sql, params, nil, paramFormats, formats).Read()
	return res.Rows, res.Err
}

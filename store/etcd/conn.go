// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
)

// maxAnswer is the largest answer that is read; etcd itself takes no value of
// that size unless told to.
const maxAnswer = 2 << 20

type txnResponse = etcdserverpb.TxnResponse

// A member is one endpoint of the URL and the connection to it, if there is
// one.
type member struct {
	addr  string
	store *store

	mu   sync.Mutex
	conn *conn
}

// A conn is exactly one TCP connection. It is not mended when it breaks: a new
// one may lead to another cluster, and says itself what is wrong with it.
type conn struct {
	*grpc.ClientConn
	kv     etcdserverpb.KVClient
	auth   etcdserverpb.AuthClient
	dialed atomic.Bool
	up     atomic.Bool // it was ready once
	// gone is closed when it is given up: watches end then, requests that are
	// under way may still be answered.
	gone chan struct{}

	// cluster is set once by greet.
	greeting sync.Mutex
	cluster  uint64

	mu    sync.Mutex
	cause error // why it cannot be connected

	// Guarded by the member's mu.
	users   int
	dropped bool
}

func (m *member) dial() (*conn, error) {
	c := &conn{gone: make(chan struct{})}
	creds, err := m.store.opt.credentials(m.addr, c.blame)
	if err != nil {
		return nil, err
	}
	c.ClientConn, err = grpc.NewClient("passthrough:///"+m.addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(c.dialOnce),
		grpc.WithUserAgent("tenure"),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: maxCall}),
		// gRPC pings no sooner than after 10 s, and etcd turns away clients that
		// ping without a stream. Timeout also is the TCP user timeout: bytes that
		// nobody acknowledges for so long end the connection.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
		grpc.WithIdleTimeout(5*time.Minute),
	)
	if err != nil {
		return nil, err
	}
	c.kv, c.auth = etcdserverpb.NewKVClient(c.ClientConn), etcdserverpb.NewAuthClient(c.ClientConn)
	c.Connect()
	return c, nil
}

var errDialed = errors.New("the connection was lost")

func (c *conn) dialOnce(ctx context.Context, addr string) (net.Conn, error) {
	if c.dialed.Swap(true) {
		return nil, errDialed
	}
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		c.blame(err)
	}
	return raw, err
}

// blame remembers the first reason for which the connection does not work:
// gRPC passes on no more than its text.
func (c *conn) blame(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = err
	}
}

func (c *conn) blamed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// connect returns a connection that works as far as one knows, and belongs to
// the store's cluster. The caller releases it. Nothing of a request was sent if
// it fails.
func (m *member) connect(ctx context.Context) (*conn, error) {
	c, err := m.reach(ctx)
	if err == nil {
		if err = m.store.sameCluster(ctx, m, c.cluster); err != nil {
			m.drop(c)
			m.release(c)
		}
	}
	if err != nil {
		return nil, &connectError{m.addr, err}
	}
	return c, nil
}

// ask returns the ID of the cluster that the member belongs to.
func (m *member) ask(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, share(ctx))
	defer cancel()
	c, err := m.reach(ctx)
	if err != nil {
		return 0, &connectError{m.addr, err}
	}
	defer m.release(c)
	return c.cluster, nil
}

// reach returns a connection that leads to an etcd.
func (m *member) reach(ctx context.Context) (*conn, error) {
	m.mu.Lock()
	if m.conn != nil && !m.conn.usable() {
		m.dropLocked()
	}
	if m.conn == nil {
		c, err := m.dial()
		if err != nil {
			m.mu.Unlock()
			return nil, err
		}
		m.conn = c
	}
	c := m.conn
	c.users++
	m.mu.Unlock()

	err := c.wait(ctx)
	if err == nil {
		err = c.greet(ctx)
	}
	if err != nil {
		m.drop(c)
		m.release(c)
		return nil, err
	}
	return c, nil
}

func (c *conn) usable() bool {
	switch c.GetState() {
	case connectivity.Ready, connectivity.Connecting:
		return true
	case connectivity.Idle:
		return !c.up.Load()
	default:
		return false
	}
}

// wait returns when the connection is ready or has failed.
func (c *conn) wait(ctx context.Context) error {
	tried := false
	for {
		s := c.GetState()
		switch {
		case s == connectivity.Ready:
			c.up.Store(true)
			return nil
		case s == connectivity.TransientFailure, s == connectivity.Shutdown, s == connectivity.Idle && (tried || c.up.Load()):
			if err := c.blamed(); err != nil {
				return err
			}
			return errNotEtcd
		case s == connectivity.Connecting:
			tried = true
		}
		if !c.WaitForStateChange(ctx, s) {
			if err := c.blamed(); err != nil {
				return fmt.Errorf("%w: %w", ctx.Err(), err)
			}
			return fmt.Errorf("%w before it was connected", ctx.Err())
		}
	}
}

// greet learns which cluster the connection leads to. The request needs no
// rights, and no leader.
func (c *conn) greet(ctx context.Context) error {
	c.greeting.Lock()
	defer c.greeting.Unlock()
	if c.cluster != 0 {
		return nil
	}
	a, err := etcdserverpb.NewClusterClient(c.ClientConn).MemberList(ctx, &etcdserverpb.MemberListRequest{})
	if err != nil {
		if cause := c.blamed(); cause != nil {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		return err
	}
	if c.cluster = a.Header.GetClusterId(); c.cluster == 0 {
		return errNotEtcd
	}
	return nil
}

func (m *member) release(c *conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.users--; c.users == 0 && c.dropped {
		c.Close()
	}
}

// drop gives up a connection, or nil for whichever there is. It is closed once
// nobody uses it.
func (m *member) drop(c *conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil && (c == nil || c == m.conn) {
		m.dropLocked()
	}
}

func (m *member) dropLocked() {
	c := m.conn
	m.conn = nil
	c.dropped = true
	close(c.gone)
	if c.users == 0 {
		c.Close()
	}
}

// judge draws from the outcome of a request what it says about the member, and
// adds where it happened.
func (m *member) judge(i int, c *conn, err error) error {
	if err == nil {
		return nil
	}
	if cause := c.blamed(); cause != nil && code(err) == codes.Unavailable {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	if elsewhere(err) {
		m.store.leave(i)
	}
	if broken(err) {
		m.drop(c)
	}
	return fmt.Errorf("%s: %w", m.addr, err)
}

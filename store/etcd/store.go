// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tenure.dev"
)

const (
	// maxCall bounds a call whose context has a later deadline, or none.
	maxCall = 10 * time.Second
	// patience is how long a member may take before another one is asked too,
	// or a connection may take to come about; less if the call has less than
	// twice as much left.
	patience = time.Second
)

// A store is an etcd cluster as its registers see it: one member after the
// other, never two for one write.
type store struct {
	opt     Options
	members []*member
	auth    *auth
	// current is the index of the member that requests go to: the last that
	// has not failed.
	current atomic.Int32

	mu sync.Mutex
	// cluster is the ID of the cluster that the members belong to, 0 until one
	// has said it.
	cluster uint64
}

func newStore(opt Options) (*store, error) {
	if err := opt.check(); err != nil {
		return nil, err
	}
	opt.Endpoints = slices.Clone(opt.Endpoints)
	s := &store{opt: opt, auth: newAuth(opt)}
	for _, addr := range opt.Endpoints {
		s.members = append(s.members, &member{addr: addr, store: s})
	}
	return s, nil
}

// leave has later requests go to another member than i, which has failed.
func (s *store) leave(i int) {
	s.current.CompareAndSwap(int32(i), int32((i+1)%len(s.members)))
}

// bound returns ctx with a deadline that is not too far away, and when.
func bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, maxCall)
}

// share returns how long one member gets of what is left of ctx.
func share(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return patience
	}
	return min(patience, time.Until(deadline)/2)
}

// read makes a request that changes nothing. It goes to one member; to the next
// when that fails, or also to the next when it is slow, each member at most
// once, but a lone one twice, over another connection. The first answer counts.
func read[T any](ctx context.Context, s *store, request func(context.Context, *conn) (T, error)) (answer T, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	bounded, cancel := bound(ctx)
	type result struct {
		answer T
		err    error
		member int
	}
	attempts := max(2, len(s.members))
	results := make(chan result, attempts)
	first, begun, running := int(s.current.Load()), 0, 0
	defer func() {
		cancel()
		for ; running > 0; running-- { // none outlives the call
			<-results
		}
	}()
	begin := func() {
		i := (first + begun) % len(s.members)
		begun++
		running++
		go func() {
			a, err := attempt(bounded, s, i, request)
			results <- result{a, err, i}
		}()
	}
	begin()
	var failures []error
	slow := time.NewTimer(share(bounded))
	defer slow.Stop()
	for {
		select {
		case r := <-results:
			running--
			if r.err == nil || !elsewhere(r.err) || ctx.Err() != nil {
				return r.answer, s.finish(ctx, r.err)
			}
			failures = append(failures, r.err)
		case <-slow.C:
			if begun == attempts {
				continue
			}
			i := (first + begun - 1) % len(s.members)
			s.members[i].drop(nil)
			s.leave(i)
			slow.Reset(share(bounded))
		}
		switch {
		case begun < attempts:
			begin()
		case running == 0:
			return answer, s.finish(ctx, summary(failures))
		}
	}
}

// attempt makes one request to one member.
func attempt[T any](ctx context.Context, s *store, i int, request func(context.Context, *conn) (T, error)) (answer T, err error) {
	m := s.members[i]
	c, err := m.connect(ctx)
	if err != nil {
		s.leave(i)
		return answer, err
	}
	defer m.release(c)
	err = s.auth.do(ctx, c, func(ctx context.Context) error {
		answer, err = request(ctx, c)
		return err
	})
	return answer, m.judge(i, c, err)
}

// write sends a request that changes something, once. If cluster is not 0 it
// is sent to no other cluster.
func (s *store) write(ctx context.Context, cluster uint64, request func(context.Context, *conn) (*txnResponse, error)) (*txnResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	bounded, cancel := bound(ctx)
	defer cancel()
	var failures []error
	first := int(s.current.Load())
	for n := range max(2, len(s.members)) {
		i := (first + n) % len(s.members)
		answer, sent, err := s.writeTo(bounded, i, cluster, request)
		if sent || err == nil {
			return answer, s.finish(ctx, doubt(err))
		}
		if !elsewhere(err) {
			return nil, s.finish(ctx, err)
		}
		failures = append(failures, err)
		if bounded.Err() != nil {
			break
		}
	}
	return nil, s.finish(ctx, fmt.Errorf("nothing was sent: %w", summary(failures)))
}

// writeTo sends the write to one member; sent reports whether the member may
// have acted on it.
func (s *store) writeTo(ctx context.Context, i int, cluster uint64, request func(context.Context, *conn) (*txnResponse, error)) (answer *txnResponse, sent bool, err error) {
	m := s.members[i]
	within, cancel := context.WithTimeout(ctx, share(ctx))
	c, err := m.connect(within)
	cancel()
	if err != nil {
		s.leave(i)
		return nil, false, err
	}
	defer m.release(c)
	if cluster != 0 && cluster != c.cluster {
		return nil, false, fmt.Errorf("%w: its version is of the cluster %x, and %s belongs to %x now", tenure.ErrConflict, cluster, m.addr, c.cluster)
	}
	err = s.auth.do(ctx, c, func(ctx context.Context) error {
		sent = true
		answer, err = request(ctx, c)
		if refusedUnseen(err) {
			sent = false
		}
		return err
	})
	return answer, sent, m.judge(i, c, err)
}

// finish gives an error what its reader needs: the context's error, if that is
// the reason, and the next step.
func (s *store) finish(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return s.explain(err)
}

// sameCluster takes the ID of the cluster that a new connection leads to. The
// members of a URL must be one cluster: were they two, a candidate that goes
// from one to the other would see another lock. After a restore the ID may be
// another, of all members.
func (s *store) sameCluster(ctx context.Context, m *member, id uint64) error {
	s.mu.Lock()
	known := s.cluster
	if known == 0 {
		s.cluster = id
	}
	s.mu.Unlock()
	if known == 0 || known == id {
		return nil
	}
	for _, other := range s.members {
		if other == m {
			continue
		}
		got, err := other.ask(ctx)
		if err != nil {
			return &clusterError{fmt.Sprintf("%s belongs to the cluster %x, not to %x as before, and %s cannot say where it belongs", m.addr, id, known, other.addr), err}
		}
		if got != id {
			return &clusterError{fmt.Sprintf("%s belongs to the cluster %x, and %s to %x", m.addr, id, other.addr, got), nil}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster = id
	return nil
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"tenure.dev"
)

var errGone = errors.New("the connection was given up")

// Watch implements [tenure.Watcher]. It blocks until the key changes after old,
// also if it did before the call; until ctx ends, however late; or until the
// connection fails or the member loses its leader.
func (r *Register) Watch(ctx context.Context, old tenure.Version) error {
	v, err := parseVersion(old)
	if err != nil {
		return nil // whatever the register has, it is another version
	}
	from := v.mod + 1
	if old == "" {
		// Absence has no revision of its own.
		var changed bool
		if changed, from, err = r.changed(ctx, old); err != nil || changed {
			return err
		}
	}
	for {
		changed, err := r.watchFrom(ctx, v, from)
		if errors.Is(err, errCompacted) {
			// The changes since are not kept any more: look for oneself.
			changed, from, err = r.changed(ctx, old)
			if err == nil && !changed {
				continue
			}
		}
		switch {
		case changed && err == nil:
			return nil
		case ctx.Err() != nil:
			return r.failed("watch", fmt.Errorf("%w", ctx.Err()))
		case err != nil:
			return r.failed("watch", r.store.finish(ctx, err))
		}
	}
}

// changed reports whether the key has another version than old, and the
// revision from which changes after this look count.
func (r *Register) changed(ctx context.Context, old tenure.Version) (bool, int64, error) {
	now, revision, err := r.get(ctx, true)
	if err != nil {
		return false, 0, r.failed("watch", err)
	}
	return now.version != old, revision + 1, nil
}

var errCompacted = errors.New("the revision to watch from has been compacted")

// watchFrom watches on one connection.
func (r *Register) watchFrom(ctx context.Context, old version, from int64) (changed bool, err error) {
	s := r.store
	i := int(s.current.Load())
	m := s.members[i]
	within, done := context.WithTimeout(ctx, patience)
	c, err := m.connect(within)
	done()
	if err != nil {
		s.leave(i)
		return false, err
	}
	defer m.release(c)
	if old.cluster != 0 && old.cluster != c.cluster {
		return true, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.gone:
			cancel(errGone)
		case <-stop:
		}
	}()
	err = s.auth.do(ctx, c, func(ctx context.Context) error {
		changed, err = r.stream(ctx, c, old, from)
		return err
	})
	if errors.Is(err, errCompacted) {
		return false, err
	}
	if err != nil && errors.Is(context.Cause(ctx), errGone) {
		err = errGone
	}
	return changed, m.judge(i, c, err)
}

// stream waits for the first event on the key at revision from or later.
func (r *Register) stream(ctx context.Context, c *conn, old version, from int64) (changed bool, err error) {
	w, err := etcdserverpb.NewWatchClient(c.ClientConn).Watch(ctx)
	if err != nil {
		return false, err
	}
	err = w.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte(r.key), StartRevision: from},
	}})
	if err != nil && ctx.Err() != nil {
		return false, ctx.Err()
	} // otherwise Recv knows more
	for {
		a, err := w.Recv()
		switch {
		case err != nil:
			return false, err
		case a.CompactRevision != 0:
			return false, errCompacted
		case a.Canceled:
			return false, cancelled(a.CancelReason)
		case a.Created && a.Header.GetRevision() < old.mod:
			// The member lags behind, or the store has been restored to a time
			// before old: then the events to come may have revisions that are
			// not waited for.
			if changed, _, err := r.changed(ctx, old.encode()); err != nil || changed {
				return changed, err
			}
		}
		for _, e := range a.Events {
			if e.Type == mvccpb.PUT || e.Type == mvccpb.DELETE {
				return true, nil
			}
		}
	}
}

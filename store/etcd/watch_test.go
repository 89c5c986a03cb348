// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/testbed"
)

// startWatch watches in the background.
func startWatch(ctx context.Context, r *Register, old tenure.Version) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- r.Watch(ctx, old) }()
	return ended
}

func awaitWatch(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("the watch has not ended")
		return nil
	}
}

// awaitWatching returns when the member serves so many watches more than before.
func awaitWatching(t *testing.T, m *testbed.EtcdMember, before int64, more int64) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); requests(t, m)["Watch"] < before+more; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the watch has not reached the member")
		}
	}
}

// A watch from a revision that is compacted looks for itself, and goes on
// waiting if nothing has changed.
func TestWatchCompacted(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 1, testbed.EtcdOptions{})
	r := mustOpen(t, "/lock", plain(e.Endpoints()...))
	old := mustWrite(t, r, "1", "")
	v := mustWrite(t, r, "2", old)
	compact := func() {
		t.Helper()
		if err := e.Put("/other", []byte("x")); err != nil {
			t.Fatal(err)
		}
		revision, err := e.Revision()
		if err == nil {
			err = e.Call("/v3/kv/compaction", map[string]any{"revision": revision}, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	compact()
	if err := r.Watch(short(t), old); err != nil {
		t.Errorf("a watch from a version that is gone: %v; want that it has changed", err)
	}
	compact()
	before := requests(t, e.Member(0))["Watch"]
	same := startWatch(t.Context(), r, v)
	awaitWatching(t, e.Member(0), before, 2) // refused, then from now
	mustWrite(t, r, "3", v)
	if err := awaitWatch(t, same); err != nil {
		t.Errorf("a watch from before a compaction: %v; want the change after it", err)
	}
}

// A watch does not stay on a connection that is dead, or at a member that has
// lost the leader.
func TestWatchDead(t *testing.T) {
	t.Parallel()
	p := newProxy(t, shared.Endpoints()[0])
	r := mustOpen(t, newKey(t.Name()), plain(p.Addr()))
	v := mustWrite(t, r, "1", "")
	before := requests(t, shared.Member(0))["Watch"]
	ended := startWatch(t.Context(), r, v)
	awaitWatching(t, shared.Member(0), before, 1)
	p.Forget()
	mustHold(t, r, "1", v) // a poll notices
	if err := awaitWatch(t, ended); !errors.Is(err, errGone) {
		t.Errorf("a watch on a dead connection: %v; want that the connection was given up", err)
	}

	e := newEtcd(t, 2, testbed.EtcdOptions{})
	r = mustOpen(t, "/lock", plain(e.Endpoints()[0]))
	v = mustWrite(t, r, "1", "")
	ended = startWatch(t.Context(), r, v)
	awaitWatching(t, e.Member(0), 0, 1)
	e.Member(1).Kill()
	mustTell(t, "a watch without a leader", awaitWatch(t, ended), "no leader", "most of the members are down")
}

// A store that is older than the version comes to be restored: a watch from
// then must not wait for a revision that is far away.
func TestWatchFromTheFuture(t *testing.T) {
	t.Parallel()
	r := mustOpen(t, newKey(t.Name()), plain(shared.Endpoints()...))
	v, err := parseVersion(mustWrite(t, r, "1", ""))
	if err != nil {
		t.Fatal(err)
	}
	v.mod += 1_000_000
	if err := r.Watch(short(t), v.encode()); err != nil {
		t.Errorf("watch: %v; want that it has changed", err)
	}
}

// A watch ends with its context, whatever the store does.
func TestWatchContext(t *testing.T) {
	t.Parallel()
	p := newProxy(t, shared.Endpoints()[0])
	r := mustOpen(t, newKey(t.Name()), plain(p.Addr()))
	v := mustWrite(t, r, "1", "")
	for _, fault := range []func(){p.Pass, p.DropAnswers, p.BlackHole, p.Refuse} {
		fault()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		start := time.Now()
		err := r.Watch(ctx, v)
		if err == nil || time.Since(start) > 1500*time.Millisecond {
			t.Errorf("the watch ended after %v: %v", time.Since(start), err)
		}
		cancel()
	}
}

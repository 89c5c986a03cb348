// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tenure.dev"
)

var (
	_ tenure.Register  = (*Register)(nil)
	_ tenure.Watcher   = (*Register)(nil)
	_ tenure.Siblinger = (*Register)(nil)
	_ tenure.Lister    = (*Register)(nil)
	_ tenure.Inspector = (*Register)(nil)
)

// A Register is a register in a key of etcd. It and its siblings share their
// connections. Its methods are safe for concurrent use.
type Register struct {
	store *store
	key   string
}

// Open returns the register in a key. It looks at the files that the options
// name, makes no request and changes nothing: the cluster need not be up, the
// key need not exist.
func Open(key string, options Options) (*Register, error) {
	if key == "" {
		return nil, errors.New("etcd: no key is named")
	}
	s, err := newStore(options)
	if err != nil {
		return nil, err
	}
	return &Register{s, key}, nil
}

// Close closes the connections of the register and its siblings as soon as
// their requests have ended. It does not block, and may be called again. A
// register that is used after it connects anew.
func (r *Register) Close() error {
	for _, m := range r.store.members {
		m.drop(nil)
	}
	return nil
}

// String returns the register's URL, without parameters.
func (r *Register) String() string {
	return "etcd://" + strings.Join(r.store.opt.Endpoints, ",") + "/" + strings.TrimPrefix(r.key, "/")
}

// Sibling implements [tenure.Siblinger]. It does not block.
func (r *Register) Sibling(suffix string) tenure.Register {
	return &Register{r.store, r.key + suffix}
}

func (r *Register) failed(op string, err error) error {
	return fmt.Errorf("etcd: %s the key %s: %w", op, r.key, err)
}

// Read implements [tenure.Register]. It blocks until a member has answered or
// ctx ends, at most for 10 s. The read is linearizable: the member asks the
// leader how far it must be before it answers. A member that does not answer in
// time is left and another one asked.
func (r *Register) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	kv, _, err := r.get(ctx, false)
	if status.Code(err) == codes.ResourceExhausted && clientSide(err) {
		// The answer exceeds what gRPC may receive: ask for all but the value.
		if kv, _, err = r.get(ctx, true); err == nil && kv.version != "" {
			return nil, kv.version, r.failed("read", fmt.Errorf("more than %d bytes: %w", maxAnswer, tenure.ErrValueTooLarge))
		}
	}
	switch {
	case err != nil:
		return nil, "", r.failed("read", err)
	case kv.version == "":
		return nil, "", r.failed("read", tenure.ErrNotExist)
	case len(kv.value) > tenure.MaxRecordSize:
		return nil, kv.version, r.failed("read", fmt.Errorf("%d bytes: %w", len(kv.value), tenure.ErrValueTooLarge))
	}
	return kv.value, kv.version, nil
}

// A state is what one answer said about the key; the version is zero if there
// is none.
type state struct {
	value   []byte
	version tenure.Version
}

// get reads the key; it also returns the store's revision at that moment.
func (r *Register) get(ctx context.Context, withoutValue bool) (state, int64, error) {
	a, err := read(ctx, r.store, func(ctx context.Context, c *conn) (*etcdserverpb.RangeResponse, error) {
		return c.kv.Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(r.key), KeysOnly: withoutValue})
	})
	if err != nil {
		return state{}, 0, err
	}
	return stateOf(a), a.Header.GetRevision(), nil
}

func stateOf(a *etcdserverpb.RangeResponse) state {
	if len(a.Kvs) == 0 {
		return state{}
	}
	kv := a.Kvs[0]
	v := version{a.Header.GetClusterId(), kv.CreateRevision, kv.ModRevision}
	value := kv.Value
	if value == nil {
		value = []byte{}
	}
	return state{value, v.encode()}
}

// Write implements [tenure.Register]. It blocks until a member has answered or
// ctx ends, at most for 10 s. It sends one transaction, once: to another member
// only if it is certain that the one before did not get it, or refused it
// unseen.
func (r *Register) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	v, err := parseVersion(old)
	if err != nil {
		return "", r.failed("write", err)
	}
	// An absent key has revision 0 in both.
	txn := &etcdserverpb.TxnRequest{
		Compare: []*etcdserverpb.Compare{
			{Key: []byte(r.key), Target: etcdserverpb.Compare_MOD, TargetUnion: &etcdserverpb.Compare_ModRevision{ModRevision: v.mod}},
			{Key: []byte(r.key), Target: etcdserverpb.Compare_CREATE, TargetUnion: &etcdserverpb.Compare_CreateRevision{CreateRevision: v.create}},
		},
		Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestPut{
			RequestPut: &etcdserverpb.PutRequest{Key: []byte(r.key), Value: value},
		}}},
	}
	a, err := r.store.write(ctx, v.cluster, func(ctx context.Context, c *conn) (*etcdserverpb.TxnResponse, error) {
		return c.kv.Txn(ctx, txn)
	})
	switch {
	case err != nil:
		return "", r.failed("write", err)
	case !a.Succeeded:
		return "", r.failed("write", tenure.ErrConflict)
	}
	now := version{a.Header.GetClusterId(), v.create, a.Header.GetRevision()}
	if old == "" {
		now.create = now.mod
	}
	return now.encode(), nil
}

// List implements [tenure.Lister]. It blocks for one request per thousand
// siblings, at most until ctx ends.
func (r *Register) List(ctx context.Context, prefix string) ([]string, error) {
	const page = 1000
	from, end := []byte(r.key+prefix), prefixEnd(r.key+prefix)
	var suffixes []string
	for {
		a, err := read(ctx, r.store, func(ctx context.Context, c *conn) (*etcdserverpb.RangeResponse, error) {
			return c.kv.Range(ctx, &etcdserverpb.RangeRequest{Key: from, RangeEnd: end, KeysOnly: true, Limit: page})
		})
		if err != nil {
			return nil, r.failed("list the siblings of", err)
		}
		for _, kv := range a.Kvs {
			if suffix := strings.TrimPrefix(string(kv.Key), r.key); suffix != "" {
				suffixes = append(suffixes, suffix)
			}
		}
		if !a.More || len(a.Kvs) == 0 {
			return suffixes, nil
		}
		from = append(a.Kvs[len(a.Kvs)-1].Key, 0)
	}
}

// prefixEnd returns the first key after all that begin with prefix.
func prefixEnd(prefix string) []byte {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return []byte{0} // etcd's word for "to the last key"
}

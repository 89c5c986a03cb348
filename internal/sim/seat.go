// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"

	"tenure.dev"
	"tenure.dev/internal/replica"
)

// cluster is whose seat the process of a slot competes for; "" if for none.
func (s *slot) cluster() string {
	if s.opts.Cluster == "" || !s.twin {
		return s.opts.Cluster
	}
	return s.opts.Cluster + " copied"
}

// join makes a process one of the replicas of its cluster. A copy of a cluster
// begins with what its seat says at that moment. It is called under world.mu.
func (w *world) join(p *process, o *tenure.Options) (leave func()) {
	if p.slot.opts.Cluster == "" {
		return func() {}
	}
	st := &seatStore{w: w, p: p, key: "seat/" + p.slot.cluster()}
	if p.slot.twin {
		w.put(st.key, w.cell("seat/"+p.slot.opts.Cluster).value)
	}
	seat := replica.New(replica.Options{
		Store: st, Self: p.self, Identity: p.slot.identity, ClusterUID: p.uid, Period: p.slot.opts.P, Timeout: p.slot.opts.P,
	})
	seat.Join("lock", o)
	o.Candidate = p.self
	ctx, cancel := context.WithCancel(p.life)
	gone := make(chan struct{})
	w.running.Add(1)
	go func() {
		defer w.running.Done()
		defer close(gone)
		seat.Run(ctx)
	}()
	return func() {
		cancel()
		<-gone
	}
}

// seatStore keeps the seat in a cell beside the lock. The cluster's own network
// has the same faults as any, but is not cut when the store is.
type seatStore struct {
	w   *world
	p   *process
	key string
}

// Get implements [replica.Store].
func (s *seatStore) Get(ctx context.Context) (replica.State, string, error) {
	var value []byte
	var version tenure.Version
	err := s.w.do(ctx, s.p, laneSeat, false, func() {
		c := s.w.cell(s.key)
		value, version = c.value, c.version
	})
	if err != nil || version == "" {
		return replica.State{}, "", err
	}
	var st replica.State
	if err := json.Unmarshal(value, &st); err != nil {
		panic("sim: " + err.Error())
	}
	return st, string(version), nil
}

// Put implements [replica.Store].
func (s *seatStore) Put(ctx context.Context, st replica.State, version string) (string, error) {
	value, err := json.Marshal(st)
	if err != nil {
		panic("sim: " + err.Error())
	}
	var now tenure.Version
	err = s.w.do(ctx, s.p, laneSeat, true, func() {
		if s.w.cell(s.key).version == tenure.Version(version) {
			now = s.w.put(s.key, value).version
		}
	})
	switch {
	case err != nil:
		return "", err
	case now == "":
		return "", tenure.ErrConflict
	}
	return string(now), nil
}

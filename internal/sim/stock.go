// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"tenure.dev"
)

// stockConfig is how a stock elector is set up: 15/10/2, as most are.
type stockConfig struct {
	lease, renew, retry time.Duration
	// keeps: it keeps the fields that it does not know, as a Lease keeps its
	// annotations.
	keeps bool
}

// stock is an elector that knows nothing of Tenure. It takes over when it has
// seen a record unchanged for the record's duration by its own clock, and
// counts its leadership from answers: it may lead until retry + renew after
// one, which may itself come as late as renew after its request. With 15/10/2
// that is 22 s, just within the 1.5 D that a stranger is waited out. One whose
// deadlines exceed that is outside of what Tenure claims, and so is one that
// is frozen, that steals a lock which is absent or damaged, or whose clock is
// further off than 1 %.
type stock struct {
	p      *process
	cfg    *stockConfig
	leads  bool // changes under world.mu
	record []byte
	seenAt time.Duration // own clock
	holder bool          // the record that was last seen names it
}

func newStock(p *process) *stock { return &stock{p: p, cfg: p.slot.stock} }

func (k *stock) clock() time.Duration { return k.p.slot.machine.now().Mono }

// limited is a context that ends after d of its own clock.
func (k *stock) limited(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, k.p.slot.machine.trueFor(d))
}

func (k *stock) sleep(ctx context.Context, d time.Duration) bool {
	ok := sleep(ctx, k.p.slot.machine.trueFor(d))
	k.p.gate(rankLoop)
	return ok
}

func (k *stock) run(ctx context.Context) {
	r := newRNG(k.p.w.sc.Seed, 8, uint64(k.p.slot.n), uint64(k.p.n))
	for ctx.Err() == nil {
		limited, cancel := k.limited(ctx, k.cfg.renew)
		won := k.try(limited)
		cancel()
		if won {
			k.set(true)
			k.renewing(ctx)
			k.set(false)
		}
		k.sleep(ctx, k.cfg.retry+r.dur(0, k.cfg.retry))
	}
}

func (k *stock) set(leads bool) {
	w := k.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if k.p.crashed {
		return
	}
	k.leads = leads
	if leads {
		w.note("%s leads, by its own rules", k.p.name())
		w.stats.Terms++
		w.alone(k.p, "(a stock elector) begins")
	} else {
		w.note("%s leads no more", k.p.name())
	}
}

// renewing returns when no renewal was answered for the renew deadline.
func (k *stock) renewing(ctx context.Context) {
	for {
		limited, cancel := k.limited(ctx, k.cfg.renew)
		for !k.try(limited) {
			if !k.sleep(limited, k.cfg.retry) {
				cancel()
				return
			}
		}
		cancel()
		if !k.sleep(ctx, k.cfg.retry) {
			return
		}
	}
}

// try reads, and takes or renews the lock where it may.
func (k *stock) try(ctx context.Context) bool {
	w, p := k.p.w, k.p
	var value []byte
	var version tenure.Version
	if w.do(ctx, p, laneLock, false, func() { c := w.cell(lockKey); value, version = c.value, c.version }) != nil {
		return false
	}
	fields := object(value)
	if fields == nil {
		return false
	}
	lease := k.leaseOnly(fields)
	if string(lease) != string(k.record) {
		k.record, k.seenAt = lease, k.clock()
	}
	holder, seconds := text(fields, "holderIdentity"), number(fields, "leaseDurationSeconds")
	k.holder = holder == p.slot.identity
	if holder != "" && !k.holder && k.clock() < k.seenAt+time.Duration(seconds)*time.Second {
		return false
	}
	if !k.cfg.keeps {
		for name := range fields {
			if !slices.Contains(leaseNames, name) {
				delete(fields, name)
			}
		}
	}
	stamp := time.Unix(0, p.slot.machine.now().Wall).UTC().Format(time.RFC3339Nano)
	if !k.holder {
		set(fields, "acquireTime", stamp)
		set(fields, "leaseTransitions", number(fields, "leaseTransitions")+1)
	}
	set(fields, "holderIdentity", p.slot.identity)
	set(fields, "leaseDurationSeconds", int64(k.cfg.lease/time.Second))
	set(fields, "renewTime", stamp)
	next := marshal(fields)
	applied := false
	err := w.do(ctx, p, laneLock, true, func() {
		if w.cell(lockKey).version == version {
			applied = true
			w.putLock(next, nil, false)
			w.note("store: %s has written %s", p.name(), short(next))
		}
	})
	if err != nil || !applied {
		return false
	}
	k.record, k.seenAt = k.leaseOnly(fields), k.clock()
	return true
}

// leaseNames are the fields that a stock elector knows.
var leaseNames = []string{"holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions"}

func (k *stock) leaseOnly(fields map[string]json.RawMessage) []byte {
	only := make(map[string]json.RawMessage)
	for _, name := range leaseNames {
		if raw, ok := fields[name]; ok {
			only[name] = raw
		}
	}
	return marshal(only)
}

// witness is the field in which a store that stock electors write keeps what a
// record of ours was written with, as the annotations on a Lease do.
const witness = "sim.witness"

func witnessOf(fields map[string]json.RawMessage) string {
	return text(fields, "holderIdentity") + "|" + text(fields, "renewTime") + "|" + strconv.FormatInt(number(fields, "leaseTransitions"), 10)
}

// stored is what the store keeps for a record of ours.
func (w *world) stored(value []byte) []byte {
	if !w.sc.Flavour.stock() {
		return value
	}
	fields := object(value)
	if fields == nil {
		return value
	}
	set(fields, witness, witnessOf(fields))
	return marshal(fields)
}

// presented is what the driver of such a store makes of it: where the witness
// does not fit, a stock elector has written, and the record is a stranger's,
// its epoch the one that was annotated and the difference in transitions.
func (w *world) presented(value []byte) []byte {
	if !w.sc.Flavour.stock() || value == nil {
		return value
	}
	fields := object(value)
	if fields == nil {
		return value
	}
	known := text(fields, witness)
	delete(fields, witness)
	if known != "" && known == witnessOf(fields) {
		return marshal(fields)
	}
	lease := make(map[string]json.RawMessage)
	for _, name := range append([]string{"lineage", "paused"}, leaseNames...) {
		if raw, ok := fields[name]; ok {
			lease[name] = raw
		}
	}
	if epoch := number(fields, "epoch"); epoch > 0 {
		before, err := strconv.ParseInt(known[strings.LastIndexByte(known, '|')+1:], 10, 64)
		if err != nil {
			before = number(fields, "leaseTransitions")
		}
		set(lease, "epoch", epoch+max(1, number(fields, "leaseTransitions")-before))
	}
	return marshal(lease)
}

// object reads the fields of a JSON object, or returns nil.
func object(value []byte) map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(value, &fields) != nil {
		return nil
	}
	return fields
}

func marshal(fields map[string]json.RawMessage) []byte {
	out, err := json.Marshal(fields)
	if err != nil {
		panic("sim: " + err.Error()) // raw messages came from a JSON object
	}
	return out
}

func set(fields map[string]json.RawMessage, name string, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		panic("sim: " + err.Error())
	}
	fields[name] = raw
}

func text(fields map[string]json.RawMessage, name string) string {
	var s string
	if json.Unmarshal(fields[name], &s) != nil {
		return ""
	}
	return s
}

func number(fields map[string]json.RawMessage, name string) int64 {
	var n int64
	if json.Unmarshal(fields[name], &n) != nil {
		return 0
	}
	return n
}

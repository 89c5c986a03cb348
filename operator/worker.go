// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/gate"
	"tenure.dev/operator/policy"
	"tenure.dev/operator/probe"
)

// Finalizer keeps an object until its gate is closed and this cluster's hold on the
// lock given up. The policies stay.
const Finalizer = "tenure.dev/gate"

const (
	policiesEvery = time.Minute      // how often policies are compared
	probeEvery    = time.Minute      // how often refusal is seen again
	probeRetry    = 2 * time.Second  // after a probe that failed
	leasesEvery   = 5 * time.Second  // how often a leading cluster looks at its Leases
	holdEvery     = 10 * time.Second // and a standby one
)

// worker serves one object. Its goroutine owns the fields that are not under mu.
type worker struct {
	op   *Operator
	key  types.NamespacedName
	log  *slog.Logger
	poke chan struct{}

	mu      sync.Mutex
	seen    *v1alpha1.MultiClusterLease // newest from the watch, not taken over yet
	deleted bool                        // from the API server
	spec    *v1alpha1.MultiClusterLeaseSpec
	epoch   int64
	lineage string
	able    bool     // enforced, members ready: may open
	gated   []string // names that have been gated for stopAfter
	joined  bool     // has a lock
	compare bool     // somebody has touched the policies

	runner  *runner
	lockErr error
	lockAt  time.Time // when opening the lock is tried again

	obj     *v1alpha1.MultiClusterLease // as last read or written
	sets    []policy.Set                // the gate's policies, for the spec in obj
	proof   probe.Gate                  // what a refusal by them says, but for Lease and status
	baseAt  time.Time                   // when obj's chain of writes was last begun by a read
	stamp   gate.Stamp                  // of our last write that moved it
	until   time.Time                   // of the last grant that may have been written, by the API server
	open    int64                       // epoch at which the gate may be open
	opened  []v1alpha1.GrantedLease     // what the grants of this term cover
	mayAt   int64                       // epoch for which opening has begun
	granted time.Time                   // the renewal that the last grant stands on
	leftAt  time.Time                   // when a grant of an earlier process was found
	closing *closing
	// closedAt is the epoch that this process has closed, while it had the seat.
	closedAt int64

	policiesAt  time.Time
	policiesErr error
	probing     bool
	probed      chan probeResult
	probeAt     time.Time
	enforced    probeState
	gatedSince  time.Time
	leasesAt    time.Time
	leases      map[string]*leaseSight
	conditions  []condition
}

// probeState is what the API servers were last seen to refuse at.
type probeState struct {
	at    time.Time
	state probe.Gate // zero if they are not known to refuse
	err   error
	// failing is since when an API server is known not to refuse, with the
	// policies in place.
	failing time.Time
}

type probeResult struct {
	state probe.Gate
	err   error
}

func newWorker(op *Operator, key types.NamespacedName) *worker {
	return &worker{
		op: op, key: key, log: op.log.With("object", key.String()),
		poke: make(chan struct{}, 1), probed: make(chan probeResult, 1), leases: make(map[string]*leaseSight),
	}
}

func (w *worker) wake() { poke(w.poke) }

// poke wakes whoever waits for c, a channel that holds one.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// see takes an object from the watch.
func (w *worker) see(mcl *v1alpha1.MultiClusterLease) {
	w.mu.Lock()
	w.seen, w.deleted = mcl, false
	w.mu.Unlock()
	w.wake()
}

// gone: the API server has no such object. A missing parameter refuses everybody.
func (w *worker) gone() {
	w.mu.Lock()
	w.deleted = true
	w.mu.Unlock()
	w.wake()
}

// accepted returns the spec that the lock's settings are worked out from.
func (w *worker) accepted() *v1alpha1.MultiClusterLeaseSpec {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spec
}

func (w *worker) known() (epoch int64, lineage string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.epoch, w.lineage
}

func (w *worker) mayOpen() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.able
}

func (w *worker) gatedNames() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gated
}

// run serves until ctx ends or the object is gone for good.
func (w *worker) run(ctx context.Context) {
	for {
		w.take()
		next, over := w.act(ctx)
		if over {
			w.op.mu.Lock()
			w.mu.Lock()
			over = w.deleted // it may have been made again meanwhile
			w.mu.Unlock()
			if over {
				delete(w.op.workers, w.key)
				w.op.mu.Unlock()
				return
			}
			w.op.mu.Unlock()
		}
		t := time.NewTimer(next)
		select {
		case <-w.poke:
		case r := <-w.probed:
			w.tookProbe(r)
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// take takes over what the watch has brought, unless we know something newer.
func (w *worker) take() {
	w.mu.Lock()
	mcl := w.seen
	w.seen = nil
	w.mu.Unlock()
	switch {
	case mcl == nil:
	case w.obj != nil && w.obj.UID == mcl.UID && !newer(mcl.ResourceVersion, w.obj.ResourceVersion):
	default:
		w.adopt(mcl)
	}
}

// adopt makes an object that was read the base of further writes.
func (w *worker) adopt(mcl *v1alpha1.MultiClusterLease) {
	again := w.obj != nil && w.obj.UID != mcl.UID
	w.obj, w.baseAt = mcl.DeepCopy(), time.Now()
	if again { // the gate that was open went with the object it had for a parameter
		w.stamp = gate.Stamp{}
	}
	w.mu.Lock()
	if s := mcl.Status; s != nil {
		w.epoch, w.lineage = max(w.epoch, s.Epoch), s.Lineage
	}
	changed := w.spec == nil || !equalSpec(w.spec, &mcl.Spec)
	w.spec = mcl.Spec.DeepCopy()
	w.mu.Unlock()
	if changed {
		w.policiesAt = time.Time{}
		w.describe()
	}
	if changed && w.runner != nil {
		w.runner.reckon()
	}
}

// act does what is due, and returns when to look again. A replica that does not
// have the seat does nothing.
func (w *worker) act(ctx context.Context) (next time.Duration, over bool) {
	if w.obj == nil {
		return time.Minute, w.isDeleted()
	}
	if err := w.join(ctx); err != nil {
		w.lockErr = err
	}
	if !w.op.seat.Acting(ctx) {
		w.forget()
		return time.Second, w.isDeleted()
	}
	if w.isDeleted() {
		return w.vanish(ctx)
	}
	w.keepPolicies(ctx)
	next, err := w.serve(ctx)
	switch {
	case errors.Is(err, errStale):
		return 0, false // the object was read again
	case err != nil && ctx.Err() == nil:
		w.log.Warn("not done", "error", err)
		next = min(next, time.Second)
	}
	w.judge()
	if err := w.report(ctx); err != nil && !errors.Is(err, errStale) && ctx.Err() == nil {
		w.log.Debug("the status could not be written", "error", err)
	}
	return max(next, 20*time.Millisecond), false
}

func (w *worker) isDeleted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deleted
}

// forget drops what only the replica that acts may rely on.
func (w *worker) forget() {
	w.open, w.closing, w.enforced, w.stamp = 0, nil, probeState{}, gate.Stamp{}
	w.until, w.mayAt, w.leftAt, w.closedAt = time.Time{}, 0, time.Time{}, 0
	w.setAble(false)
	if w.obj != nil {
		w.baseAt = time.Now()
	}
}

func (w *worker) setAble(able bool) {
	w.mu.Lock()
	changed := w.able != able
	w.able = able
	w.mu.Unlock()
	if changed && w.runner != nil {
		poke(w.runner.poke)
	}
}

// join finds the lock's runner.
func (w *worker) join(ctx context.Context) error {
	if w.runner != nil || time.Now().Before(w.lockAt) {
		return w.lockErr
	}
	w.lockAt = time.Now().Add(10 * time.Second)
	if err := w.op.gatedElsewhere(w); err != nil {
		return err
	}
	r, err := w.op.runnerFor(ctx, w, w.obj)
	if err != nil {
		return err
	}
	w.runner, w.lockErr = r, nil
	w.mu.Lock()
	w.joined = true
	w.mu.Unlock()
	r.reckon()
	r.wake()
	return nil
}

// errGatedTwice: two objects name the same Lease.
var errGatedTwice = errors.New("another object gates the same Lease")

// gatedElsewhere refuses an object that names a Lease which an older one names.
func (op *Operator) gatedElsewhere(w *worker) error {
	op.mu.Lock()
	defer op.mu.Unlock()
	for key, other := range op.workers {
		if other == w || key.Namespace != w.key.Namespace {
			continue
		}
		other.mu.Lock()
		spec, joined := other.spec, other.joined
		other.mu.Unlock()
		if spec == nil || !joined {
			continue
		}
		for _, a := range w.obj.Spec.Leases {
			for _, b := range spec.Leases {
				if a.Name == b.Name {
					return fmt.Errorf("%w: %s is gated by %s already", errGatedTwice, a.Name, key)
				}
			}
		}
	}
	return nil
}

// describe works out the gate's policies, and how a refusal by them reads.
func (w *worker) describe() {
	g := policy.Of(w.obj, w.op.account)
	w.sets = g.Sets()
	w.proof = probe.Gate{Namespace: w.key.Namespace, Name: w.key.Name, Policy: g.PolicyName(), Revision: w.sets[0].Revision()}
}

// stateNow is the gate's state as the API servers should go by it.
func (w *worker) stateNow() probe.Gate {
	g := w.proof
	if s := w.obj.Status; s != nil {
		g.Epoch, g.ClosedEpoch, g.Leading = s.Epoch, s.ClosedEpoch, s.Leading
	}
	return g
}

// keepPolicies sees that the gate's policies are as they should be.
func (w *worker) keepPolicies(ctx context.Context) {
	w.mu.Lock()
	touched := w.compare
	w.compare = false
	w.mu.Unlock()
	if !touched && (time.Since(w.policiesAt) < policiesEvery && w.policiesErr == nil || w.policiesErr != nil && time.Since(w.policiesAt) < 5*time.Second) {
		return
	}
	w.policiesAt = time.Now()
	wrote := false
	var errs []error
	for _, s := range w.sets {
		a, err := Apply(ctx, w.op.install, s)
		wrote = wrote || a
		errs = append(errs, err)
	}
	w.policiesErr = errors.Join(errs...)
	if wrote {
		// Whoever could write meanwhile may go on for as long as an elector does.
		w.log.Info("the gate's policies were written")
		w.enforced, w.gatedSince = probeState{}, time.Time{}
	}
}

// probe asks the API servers, beside everything else.
func (w *worker) probe(ctx context.Context) {
	if w.probing || time.Now().Before(w.probeAt) {
		return
	}
	w.probing = true
	state := w.stateNow()
	var gates []probe.Gate
	for _, l := range w.obj.Spec.Leases {
		g := state
		g.Lease = l.Name
		gates = append(gates, g)
	}
	p := *w.op.prober
	if s := w.obj.Spec.SkewSeconds; s > 0 {
		p.Skew = time.Duration(s) * time.Second
	}
	go func() {
		r := probeResult{state: state}
		for _, g := range gates {
			if _, r.err = p.Refused(ctx, g); r.err != nil {
				break
			}
		}
		w.probed <- r
	}()
}

func (w *worker) tookProbe(r probeResult) {
	w.probing = false
	w.probeAt = time.Now().Add(probeRetry)
	if r.err == nil {
		w.enforced = probeState{at: time.Now(), state: r.state}
		return
	}
	w.enforced.err = r.err
	if w.closing != nil {
		w.probeAt = time.Now().Add(50 * time.Millisecond)
	}
	if errors.Is(r.err, probe.ErrNotRefused) && r.state == w.stateNow() || errors.Is(r.err, probe.ErrClockSkew) {
		w.enforced.state = probe.Gate{} // positively not refused, or not yet
		w.policiesAt = time.Time{}
		w.probeAt = time.Now().Add(probeRetry / 4)
		if w.enforced.failing.IsZero() {
			w.enforced.failing = time.Now()
		}
	}
	w.log.Debug("the gate is not known to be enforced", "error", r.err)
}

// isEnforced reports whether every API server was seen to refuse at this state,
// recently.
func (w *worker) isEnforced() bool {
	if w.obj.Spec.Enforcement == v1alpha1.Advisory {
		return w.policiesErr == nil
	}
	return w.enforced.state == w.stateNow() && time.Since(w.enforced.at) < 2*probeEvery
}

// serve does what the lock's state asks for.
func (w *worker) serve(ctx context.Context) (time.Duration, error) {
	if w.obj.Status == nil {
		if err := w.firstStatus(ctx); err != nil {
			return time.Second, err
		}
	}
	if w.runner == nil {
		return w.standBy(ctx)
	}
	term, ending := w.runner.current()
	switch {
	case term == nil && w.closing == nil && w.open == 0:
		return w.standBy(ctx)
	case term == nil, ending != nil, w.obj.DeletionTimestamp != nil, w.open != 0 && w.open != term.Epoch():
		return w.close(ctx, term, ending)
	default:
		w.leftAt = time.Time{}
		return w.lead(ctx, term)
	}
}

// leader is who leads, for a hold.
func (w *worker) leader() string {
	if w.runner == nil {
		return "nobody"
	}
	st := w.runner.view().status
	if !clusterForm.MatchString(st.Holder) {
		return "nobody"
	}
	return st.Holder
}

// standBy keeps the gate closed and the Leases held, and proves it.
func (w *worker) standBy(ctx context.Context) (time.Duration, error) {
	st := w.obj.Status
	if st.Leading {
		return w.leftover(ctx)
	}
	if w.obj.DeletionTimestamp != nil {
		return time.Minute, w.finish(ctx)
	}
	next := holdEvery
	if w.policiesErr != nil {
		return min(next, 5*time.Second), nil
	}
	if time.Since(w.leasesAt) >= holdEvery {
		w.leasesAt = time.Now()
		if err := w.holdAll(ctx, w.leader()); err != nil {
			return time.Second, err
		}
	}
	w.prove(ctx, &next)
	return next, nil
}

// prove has the API servers asked, and notes since when they refuse.
func (w *worker) prove(ctx context.Context, next *time.Duration) {
	if !w.isEnforced() || time.Since(w.enforced.at) >= probeEvery {
		w.probe(ctx)
		*next = min(*next, probeRetry)
	}
	if w.isEnforced() && w.gatedSince.IsZero() {
		w.gatedSince = time.Now()
	}
	w.considerReady(next)
}

// considerReady notes the names that have been gated for as long as an elector may
// go on.
func (w *worker) considerReady(next *time.Duration) {
	if w.runner == nil || w.gatedSince.IsZero() {
		return
	}
	s := w.runner.view().settings
	if left := s.StopAfter - time.Since(w.gatedSince); left > 0 || s.StopAfter == 0 {
		*next = min(*next, max(left, 100*time.Millisecond))
		return
	}
	names := w.names()
	w.mu.Lock()
	changed := len(names) != len(w.gated)
	w.gated = names
	w.mu.Unlock()
	if changed {
		w.runner.wake()
	}
}

// names are those of the gated Leases as members say them.
func (w *worker) names() (out []string) {
	for _, l := range w.obj.Spec.Leases {
		out = append(out, w.key.Namespace+"/"+l.Name)
	}
	return out
}

func (w *worker) view() lockView {
	if w.runner == nil {
		s, err := gate.SettingsOf([]v1alpha1.MultiClusterLeaseSpec{w.obj.Spec})
		return lockView{settings: s, settingsErr: err}
	}
	return w.runner.view()
}

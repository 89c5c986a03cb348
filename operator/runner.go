// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"tenure.dev"
	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/gate"
)

// Why a term ends that this cluster could have kept.
var (
	errYield       = errors.New("no pod of this cluster holds a gated Lease: another cluster may lead")
	errNotEnforced = errors.New("the gate is not enforced any more")
	errSettings    = errors.New("the settings changed: the gate opens again in a new term")
	errDeleted     = errors.New("the object is being deleted")
)

// Cool-downs after a yield: they double.
const (
	firstCoolDown   = 30 * time.Second
	longestCoolDown = 10 * time.Minute
)

// runner holds one lock for the cluster, on behalf of all objects that name it.
type runner struct {
	op   *Operator
	name string // the lock's URL as it may be printed
	lock *tenure.Lock
	log  *slog.Logger

	mu        sync.Mutex
	workers   map[*worker]bool
	elector   *tenure.Elector
	duplicate func() error
	term      *tenure.Term
	ending    error // why the term is ending, or nil
	end       chan struct{}
	closed    map[*worker]bool
	settings  gate.Settings
	setErr    error
	members   map[string]Member
	memberErr error  // from reading the members
	entryErr  error  // from writing our own
	written   string // the member entry as last written
	coolUntil time.Time
	coolDown  time.Duration
	lastLive  time.Time // when a live holder was last seen
	poke      chan struct{}
}

// errBadLock is wrapped by errors of locks that a cluster must not use.
var errBadLock = errors.New("this lock cannot be used")

// runnerFor returns the runner of the lock that an object names, and starts it if
// there is none. The caller is a worker of that object.
func (op *Operator) runnerFor(ctx context.Context, w *worker, mcl *v1alpha1.MultiClusterLease) (*runner, error) {
	opening, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	lock, err := tenure.Open(opening, mcl.Spec.Lock, tenure.Vars{Namespace: mcl.Namespace, Name: mcl.Name})
	if err != nil {
		return nil, err
	}
	if err := op.suits(mcl.Spec.Lock, lock); err != nil {
		return nil, err
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	r := op.runners[lock.Name]
	if r == nil {
		r = &runner{op: op, name: lock.Name, lock: lock, log: op.log.With("lock", lock.Name), workers: make(map[*worker]bool), poke: make(chan struct{}, 1)}
		op.runners[lock.Name] = r
		go r.run(op.ctx)
		go r.keepMembers(op.ctx)
	}
	r.mu.Lock()
	r.workers[w] = true
	r.mu.Unlock()
	return r, nil
}

// suits refuses locks that exclude no other cluster, and settings in the URL that
// belong to the object.
func (op *Operator) suits(raw string, lock *tenure.Lock) error {
	scheme, _, _ := strings.Cut(raw, ":")
	s := lock.Settings
	switch {
	case scheme == "mem", scheme == "file" && !op.opt.Dev:
		return fmt.Errorf("%w: %s excludes nobody on another host; name a bucket, a database, an etcd or a third cluster", errBadLock, scheme)
	case scheme == "k8s" && !strings.Contains(raw, "kubeconfig="):
		return fmt.Errorf("%w: k8s without kubeconfig= is a Lease of this cluster, which the others do not see; name a third cluster", errBadLock)
	case s.LeaseDuration != 0 || s.Period != 0 || s.RenewDeadline != 0 || s.Identity != "":
		return fmt.Errorf("%w: ttl, renew, deadline and identity do not belong into the URL: they follow from the object (spec.leaseDurationSeconds, spec.periodSeconds) and --cluster", errBadLock)
	}
	return nil
}

// wake has the runner, and all its workers, look again.
func (r *runner) wake() {
	poke(r.poke)
	r.wakeWorkers()
}

// drop takes a worker off the lock.
func (r *runner) drop(w *worker) {
	r.mu.Lock()
	delete(r.workers, w)
	if len(r.workers) == 0 {
		r.endLocked(errDeleted)
	}
	r.mu.Unlock()
	r.reckon()
}

// reckon works out the settings of all objects. When they grow, the term ends: the
// gate opens again in a new one.
func (r *runner) reckon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var specs []v1alpha1.MultiClusterLeaseSpec
	for w := range r.workers {
		if spec := w.accepted(); spec != nil {
			specs = append(specs, *spec)
		}
	}
	if len(specs) == 0 {
		return
	}
	next, err := gate.SettingsOf(specs)
	r.setErr = err
	if err != nil || next == r.settings {
		return
	}
	was := r.settings
	r.settings = next
	if r.elector != nil {
		if err := r.elector.Update(next.LeaseDuration, next.RenewDeadline, next.Period); err != nil {
			r.setErr = err
		}
	}
	if r.term != nil && (next.StopAfter > was.StopAfter || next.Skew > was.Skew || next.LeaseDuration != was.LeaseDuration) {
		r.endLocked(errSettings)
	}
}

// current returns the term, and why it is ending if it is.
func (r *runner) current() (*tenure.Term, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term, r.ending
}

// lockView is what is known of a lock.
type lockView struct {
	status      tenure.Status
	settings    gate.Settings
	settingsErr error // why they cannot be used
	duplicate   error // that somebody else uses this cluster's identity
}

func (r *runner) view() lockView {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := lockView{settings: r.settings, settingsErr: r.setErr}
	if r.elector != nil {
		v.status = r.elector.Status()
	}
	if r.duplicate != nil {
		v.duplicate = r.duplicate()
	}
	return v
}

// endTerm ends the term of our own accord: the gates close, then the lock is released.
func (r *runner) endTerm(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(why)
}

func (r *runner) endLocked(why error) {
	if r.term == nil || r.ending != nil {
		return
	}
	r.ending = why
	close(r.end)
}

// run contends for the lock until ctx ends. The elector itself is not stopped then:
// it would close what another replica goes on with.
func (r *runner) run(ctx context.Context) {
	for ctx.Err() == nil {
		r.reckon()
		e, err := r.newElector()
		if err != nil {
			r.mu.Lock()
			if r.setErr == nil {
				r.setErr = err
			}
			r.mu.Unlock()
			r.wakeWorkers()
			select {
			case <-r.poke:
			case <-time.After(10 * time.Second):
			case <-ctx.Done():
			}
			continue
		}
		err = e.Run(context.WithoutCancel(ctx), r.work)
		if ctx.Err() != nil {
			return
		}
		switch {
		case errors.Is(err, errYield):
			r.cool()
		case err != nil:
			r.log.Warn("the election ended", "error", err)
			pause(ctx, 5*time.Second)
		}
	}
}

func (r *runner) wakeWorkers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.workers {
		w.wake()
	}
}

func (r *runner) newElector() (*tenure.Elector, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.setErr != nil {
		return nil, r.setErr
	}
	if r.settings.LeaseDuration == 0 {
		return nil, errors.New("no object with acceptable settings names this lock")
	}
	o := r.lock.Options()
	o.LeaseDuration, o.RenewDeadline, o.Period = r.settings.LeaseDuration, r.settings.RenewDeadline, r.settings.Period
	o.Host = r.op.opt.Cluster
	o.Drift = r.settings.Drift
	// Closing is bounded by the last grant's end and stopAfter; the rest is for
	// API servers that hesitate.
	o.Drain = r.settings.StopAfter + r.settings.LeaseDuration + 30*time.Second
	o.Logger = r.op.log
	o.Observe = r.observe
	for w := range r.workers {
		epoch, lineage := w.known()
		o.Seen.Epoch = max(o.Seen.Epoch, epoch)
		if lineage != "" {
			o.Seen.Lineage = lineage
		}
	}
	r.duplicate = r.op.seat.Join(r.name, &o)
	standing := o.Standing
	o.Standing = func(rec *tenure.Record) tenure.Standing {
		s := standing(rec)
		if s == tenure.MayContend && !r.mayContend() {
			return tenure.MustWait
		}
		return s
	}
	e, err := tenure.New(o)
	if err != nil {
		return nil, err
	}
	r.elector = e
	return e, nil
}

// mayContend: at least one object could open now, and we have not just yielded.
func (r *runner) mayContend() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.setErr != nil || time.Now().Before(r.coolUntil) {
		return false
	}
	for w := range r.workers {
		if w.mayOpen() {
			return true
		}
	}
	return false
}

func (r *runner) observe(e tenure.Event) {
	r.op.metrics.event(r.name, e)
	switch e.Kind {
	case tenure.EventRenewed, tenure.EventFollowing, tenure.EventEnded, tenure.EventStopping, tenure.EventDamaged, tenure.EventRefused:
		go r.wakeWorkers()
	default:
	}
}

// work is a term: the workers open, and it is over when all have closed.
func (r *runner) work(ctx context.Context, t *tenure.Term) error {
	r.refreshMembers(ctx)
	r.mu.Lock()
	r.term, r.ending, r.end, r.closed = t, nil, make(chan struct{}), make(map[*worker]bool)
	r.lastLive = time.Now()
	end := r.end
	r.mu.Unlock()
	r.wakeWorkers()
	select {
	case <-ctx.Done():
		r.mu.Lock()
		if r.ending == nil {
			r.ending = context.Cause(ctx)
		}
		r.mu.Unlock()
	case <-end:
	}
	r.wakeWorkers()
	for !r.allClosed() {
		holding, changed := r.op.seat.Holding()
		if !holding && ctx.Err() != nil {
			break // another replica acts: what is open is its to close
		}
		select {
		case <-changed:
		case <-time.After(100 * time.Millisecond):
		}
	}
	r.mu.Lock()
	why := r.ending
	r.term, r.ending = nil, nil
	r.mu.Unlock()
	r.wakeWorkers()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return why
}

func (r *runner) allClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.workers {
		if !r.closed[w] {
			return false
		}
	}
	return true
}

// hasClosed notes that a worker has closed its gate for the term of that epoch.
func (r *runner) hasClosed(w *worker, epoch int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term != nil && r.term.Epoch() == epoch {
		r.closed[w] = true
	}
}

// cool keeps this cluster from taking the lock for a while after it yielded.
func (r *runner) cool() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.coolDown = min(max(2*r.coolDown, firstCoolDown), longestCoolDown)
	r.coolUntil = time.Now().Add(r.coolDown)
	r.log.Info("yielded: not contending for a while", "coolDown", r.coolDown)
}

// live notes that a pod of this cluster holds a gated Lease.
func (r *runner) live() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastLive = time.Now()
	r.coolDown = 0
}

// idle returns how long no pod of this cluster has held a gated Lease in this term.
func (r *runner) idle() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term == nil {
		return 0
	}
	return time.Since(r.lastLive)
}

// keepMembers writes this cluster's entry beside the lock when it changes, and reads
// the others': soon while somebody is not ready, else once a minute.
func (r *runner) keepMembers(ctx context.Context) {
	for {
		wait := 5 * time.Second
		if holding, _ := r.op.seat.Holding(); holding {
			r.writeMember(ctx)
			r.refreshMembers(ctx)
			if r.everybodyReady() {
				wait = time.Minute
			}
		}
		select {
		case <-r.poke:
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func (r *runner) everybodyReady() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.workers {
		if !w.mayOpen() {
			return false
		}
	}
	return true
}

func (r *runner) writeMember(ctx context.Context) {
	r.mu.Lock()
	var gated []string
	for w := range r.workers {
		gated = append(gated, w.gatedNames()...)
	}
	s := r.settings
	what := fmt.Sprint(gated, s.LeaseDuration, s.Skew, s.StopAfter)
	done := r.written == what || len(gated) == 0
	r.mu.Unlock()
	if done {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := WriteMember(bounded, r.lock.Register, r.op.opt.Cluster, r.op.clusterUID, func(m *Member) {
		m.Gated = append(m.Gated, gated...) // never fewer: only ungate takes names off
		m.LeaseDurationSeconds, m.SkewSeconds = int64(s.LeaseDuration/time.Second), int64(s.Skew/time.Second)
		m.StopAfterSeconds = int64(s.StopAfter / time.Second)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entryErr = err; err == nil {
		r.written = what
	} else {
		r.log.Warn("cannot write this cluster's entry beside the lock", "error", err)
	}
}

func (r *runner) refreshMembers(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	all, err := Members(bounded, r.lock.Register)
	r.mu.Lock()
	r.memberErr = err
	if err == nil {
		r.members = all
	}
	r.mu.Unlock()
	r.wakeWorkers()
}

// membersOf returns what the members' entries mean for an object.
func (r *runner) membersOf(clusters, names []string) (memberView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := errors.Join(r.entryErr, r.memberErr)
	if r.members == nil {
		return memberView{}, err
	}
	return judgeMembers(r.members, r.op.opt.Cluster, clusters, names, r.settings), err
}

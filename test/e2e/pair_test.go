// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// The electors' durations, and what follows for the lock: D = 21 s, stopAfter = 9 s.
const (
	leaseDuration = 6 * time.Second
	renewDeadline = 4 * time.Second
	retryPeriod   = time.Second
	stopAfter     = 2*renewDeadline + retryPeriod
	lockDuration  = 21 * time.Second
	lockPeriod    = 3 * time.Second
)

// The longest that a failover and a handover may take, from the last sign of life and
// from the order to the first write of the other cluster.
const (
	failoverBound = lockDuration*101/100 + lockPeriod*11/10 + retryPeriod*22/10 + 2*time.Second
	handoverBound = lockPeriod*11/10 + stopAfter + 2*time.Second + retryPeriod*22/10
)

// bucket and object are where the lock is.
const (
	bucket = "locks"
	object = "demo"
)

// A pair is two clusters on a lock in a bucket, to which each has a way of its own.
// What is done to it is done in steps, each of which begins when one cluster leads and
// the other stands by in good order.
type pair struct {
	*Lab
	t     *testing.T
	gcs   *testbed.GCS
	later []string // clusters that are not members yet
	ways  map[string]*fault.HTTP
	judge time.Time // when the last step that was judged had ended
}

// pairOptions say how a pair is made.
type pairOptions struct {
	lab      func(*Options)
	gate     func(*v1alpha1.MultiClusterLease)
	replicas int // of Tenure in each cluster; default 1
	electors int // default 2
	site     func(*Site) error
	later    []string // clusters that begin with neither Tenure nor electors
}

func newPair(t *testing.T, po pairOptions) *pair {
	t.Helper()
	p := &pair{t: t, ways: make(map[string]*fault.HTTP), judge: time.Now()}
	o := Options{
		Dir: folder(t), Programs: programs(t), Clusters: []string{"a", "b"}, Faults: true,
		Lease: leaseDuration, Renew: renewDeadline, Retry: retryPeriod, Log: t.Logf,
	}
	var err error
	if p.gcs, err = testbed.StartGCS(o.Dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.gcs.Close)
	if err := p.gcs.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	if po.lab != nil {
		po.lab(&o)
	}
	for _, c := range o.Clusters {
		way, err := fault.NewHTTP(p.gcs.Endpoint, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(way.Close)
		p.ways[c] = way
	}
	o.LockOf = func(site string) string {
		return "gs://" + bucket + "/" + object + "?anonymous=true&endpoint=" + p.ways[site].URL()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if p.Lab, err = Start(ctx, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	replicas, electors := max(1, po.replicas), po.electors
	if electors == 0 {
		electors = 2
	}
	electors = max(0, electors) // -1 for none
	var sites sync.WaitGroup
	errs := make([]error, len(p.Sites))
	p.later = po.later
	for i, s := range p.members() {
		sites.Go(func() {
			errs[i] = s.Gate(ctx, po.gate)
			for n := range replicas {
				errs[i] = errors.Join(errs[i], s.Tenure(fmt.Sprintf("t%d", n+1)))
			}
			// Who came before the gate may hold the Lease; not in these tests.
			errs[i] = errors.Join(errs[i], s.AwaitCondition(ctx, v1alpha1.ConditionEnforced, true))
			for n := range electors {
				errs[i] = errors.Join(errs[i], s.ElectorAt(n%s.Cluster.APIServers(), o.Elector, fmt.Sprintf("e%d", n+1)))
			}
			if po.site != nil {
				errs[i] = errors.Join(errs[i], po.site(s))
			}
		})
	}
	sites.Wait()
	if err := errors.Join(errs...); err != nil {
		p.dump(t)
		t.Fatal(err)
	}
	return p
}

// members are the sites that take part.
func (p *pair) members() (out []*Site) {
	for _, s := range p.Sites {
		if !slices.Contains(p.later, s.Name) {
			out = append(out, s)
		}
	}
	return out
}

// AwaitCondition waits for a condition of the site's object.
func (s *Site) AwaitCondition(ctx context.Context, kind string, want bool) error {
	for {
		mcl, err := s.Object(ctx)
		if err == nil && mcl.Status != nil && meta.IsStatusConditionTrue(mcl.Status.Conditions, kind) == want {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("cluster %s: condition %s is not %t: %w\n%s", s.Name, kind, want, ctx.Err(), s.Describe(context.WithoutCancel(ctx)))
		}
	}
}

// A scene is what a step works with.
type scene struct {
	*testing.T
	*pair
	ctx context.Context
	// lead is the site that leads at the beginning, with the process that does
	// and its epoch, other the one that stands by.
	lead, other *Site
	holder      string
	epoch       int64
	begin       time.Time
}

// step runs f in good order, and judges what the receiver saw of it. The cluster that
// is to lead at the beginning may be named.
func (p *pair) step(name, leader string, f func(*scene)) {
	p.t.Run(name, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
		defer cancel()
		s := &scene{T: t, pair: p, ctx: ctx}
		p.Say("--- %s", name)
		defer func() {
			p.verdict(t)
			if t.Failed() {
				p.dump(t)
			}
		}()
		if err := s.settle(); err != nil {
			t.Fatalf("no good order to begin with: %v", err)
		}
		if leader != "" && s.lead.Name != leader {
			s.handover(leader)
			if err := s.settle(); err != nil {
				t.Fatalf("no good order to begin with: %v", err)
			}
		}
		s.begin = time.Now()
		p.Say("%s leads at epoch %d", s.holder, s.epoch)
		f(s)
	})
}

// verdict judges all that was written since the last one.
func (p *pair) verdict(t *testing.T) {
	t.Helper()
	beats := p.Receiver.Beats(time.Time{})
	for _, o := range Overlaps(beats) {
		if o.Late.Last.At.After(p.judge) {
			t.Errorf("OVERLAP: %v", o)
		}
	}
	recent := p.Receiver.Beats(p.judge)
	for holder, n := range Late(recent) {
		p.Say("figure: %d late writes of %s, which was frozen", n, holder)
	}
	p.Say("figure: %s: turns of clusters %v, longest time without a write %v", t.Name(), Leaders(recent), Gap(p.judge, recent).Round(10*time.Millisecond))
	p.judge = time.Now()
}

// settle waits until one cluster leads and the others stand by.
func (s *scene) settle() error {
	ctx, cancel := context.WithTimeout(s.ctx, 150*time.Second)
	defer cancel()
	var why error
	for {
		if why = s.order(ctx); why == nil {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return why
		}
	}
}

// order says why things are not in good order, or takes down who leads.
func (s *scene) order(ctx context.Context) error {
	beats := s.Receiver.Beats(time.Now().Add(-500 * time.Millisecond))
	leaders := Leaders(beats)
	if len(leaders) != 1 {
		return fmt.Errorf("clusters that write: %v", leaders)
	}
	for _, site := range s.members() {
		leads := site.Name == leaders[0]
		mcl, err := site.Object(ctx)
		if err != nil {
			return err
		}
		if mcl.Status == nil {
			return fmt.Errorf("%s has no status", site.Name)
		}
		for _, c := range []string{v1alpha1.ConditionEnforced, v1alpha1.ConditionLockReachable, v1alpha1.ConditionSettingsAccepted, v1alpha1.ConditionMembersReady} {
			if !meta.IsStatusConditionTrue(mcl.Status.Conditions, c) {
				return fmt.Errorf("%s: %s is not true: %+v", site.Name, c, meta.FindStatusCondition(mcl.Status.Conditions, c))
			}
		}
		if mcl.Status.Leading != leads || mcl.Status.Leader != leaders[0] {
			return fmt.Errorf("%s: leading %t, leader %q, and %s writes", site.Name, mcl.Status.Leading, mcl.Status.Leader, leaders[0])
		}
		if leads {
			s.lead, s.epoch = site, mcl.Status.Epoch
		} else {
			s.other = site
		}
	}
	s.holder = beats[len(beats)-1].Holder
	return nil
}

// untilWrites waits for the first write of a cluster since a time.
func (s *scene) untilWrites(site *Site, since time.Time, within time.Duration) time.Duration {
	s.Helper()
	b, ok := s.Receiver.Await(time.Until(since)+within, since, func(b Beat) bool { return b.Cluster() == site.Name && !b.Late })
	if !ok {
		s.Errorf("%s has not written within %v", site.Name, within)
		return within
	}
	return b.At.Sub(since)
}

// figure prints what was measured, and fails if it is more than allowed.
func (s *scene) figure(what string, d, bound time.Duration) {
	s.Helper()
	s.Say("figure: %s: %v (bound %v)", what, d.Round(10*time.Millisecond), bound.Round(10*time.Millisecond))
	if d > bound {
		s.Errorf("%s took %v, more than %v", what, d, bound)
	}
}

// steady sees that the same cluster leads at the same epoch, for so long.
func (s *scene) steady(within time.Duration) {
	s.Helper()
	pause(s, within)
	if all := Leaders(s.Receiver.Beats(s.begin)); len(all) != 1 || all[0] != s.lead.Name {
		s.Errorf("clusters that led: %v, want only %s", all, s.lead.Name)
	}
	if mcl, err := s.lead.Object(s.ctx); err != nil || mcl.Status == nil || mcl.Status.Epoch != s.epoch {
		s.Errorf("%s: the epoch was %d: %v\n%s", s.lead.Name, s.epoch, err, s.lead.Describe(s.ctx))
	}
}

// pause lets time pass in which something must not happen.
func pause(s *scene, d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

// handover orders a handover, and returns how long it took to the first write.
func (s *scene) handover(to string) time.Duration {
	s.Helper()
	begin := time.Now()
	out, err := s.handoverCommand(to)
	if err != nil {
		s.Fatalf("handover to %s: %v\n%s", to, err, out)
	}
	for _, site := range s.Sites {
		if site.Name == to {
			return s.untilWrites(site, begin, 60*time.Second)
		}
	}
	return 0
}

func (p *pair) handoverCommand(to string) ([]byte, error) {
	return exec.Command(p.Opt.Tenure, "handover", "--lock", p.gcs.LockURL(bucket, object), "--to", to, "--timeout", "60s").CombinedOutput()
}

// do fails the test if something that it needs did not work.
func (s *scene) do(errs ...error) {
	s.Helper()
	if err := errors.Join(errs...); err != nil {
		s.Fatal(err)
	}
}

// crash kills all of a cluster at once: API servers, etcd, Tenure and pods.
func (s *scene) crash(site *Site) {
	var all sync.WaitGroup
	all.Go(site.Cluster.KillAll)
	all.Go(site.StopElectors)
	all.Go(site.KillTenure)
	all.Wait()
}

// revive starts all of a cluster again.
func (s *scene) revive(site *Site, replicas ...string) {
	s.Helper()
	s.do(site.Cluster.StartAll(s.ctx))
	for _, r := range replicas {
		s.do(site.Tenure(r))
	}
	for n := range 2 {
		s.do(site.ElectorAt(n%site.Cluster.APIServers(), s.Opt.Elector, fmt.Sprintf("e%d", n+1)))
	}
}

// record reads the lock's record.
func (p *pair) record() (map[string]any, []byte, error) {
	res, err := http.Get(p.gcs.Endpoint + "/storage/v1/b/" + bucket + "/o/" + object + "?alt=media")
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return nil, b, errors.Join(err, fmt.Errorf("read the record: %s", res.Status))
	}
	m := make(map[string]any)
	return m, b, json.Unmarshal(b, &m)
}

// dump prints what helps to find out why a test failed.
func (p *pair) dump(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, s := range p.Sites {
		t.Logf("cluster %s: %s", s.Name, s.Describe(ctx))
		logs, _ := filepath.Glob(s.LogFile("t*")) // the pattern is right
		slices.Sort(logs)
		for _, l := range logs {
			name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(l), s.Name+"-"), ".log")
			t.Logf("cluster %s, %s:\n%s", s.Name, name, lastLines(s.Tail(name, 8000)))
		}
	}
	for _, r := range Reigns(p.Receiver.Beats(p.judge.Add(-3 * time.Minute))) {
		t.Logf("%s wrote %d times from %8.3f to %8.3f", r.Holder, r.Writes, r.First.At.Sub(p.start).Seconds(), r.Last.At.Sub(p.start).Seconds())
	}
}

func lastLines(s string) string {
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	return string(bytes.TrimSpace([]byte(s)))
}

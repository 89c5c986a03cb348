// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/test/cluster"
	"tenure.dev/test/testbed"
)

// Programs are the paths of what the laboratory runs.
type Programs struct{ Tenure, Elector string }

// Options say what a laboratory consists of.
type Options struct {
	// Dir keeps everything: clusters, logs, the lock where Lock names none.
	Dir string
	// Programs are what it runs.
	Programs
	// Clusters are their names.
	Clusters []string
	// APIServers is how many each has; default 1.
	APIServers int
	// Lock is the lock's URL; default a file in Dir. LockOf returns it for a site
	// that has another way to it.
	Lock   string
	LockOf func(site string) string
	// Namespace is where the gated Lease is; default demo.
	Namespace string
	// Faults puts what Site.Delay needs between the clusters and their clients.
	Faults bool
	// Cluster changes what the clusters consist of.
	Cluster func(site string, o *cluster.Options)
	// Lease, Renew and Retry are the electors' durations.
	Lease, Renew, Retry time.Duration
	// Log is told what happens.
	Log func(format string, args ...any)
}

// A Lab is a set of clusters, with Tenure and electors in each.
type Lab struct {
	Opt      Options
	Sites    []*Site
	Receiver *Receiver
	start    time.Time

	mu     sync.Mutex
	clones []*Site
}

// A Site is one cluster and what runs in it.
type Site struct {
	lab     *Lab
	Name    string
	Cluster *cluster.Cluster
	// Identity is Tenure's --cluster; default Name.
	Identity string

	mu       sync.Mutex
	tenure   map[string]*testbed.Process
	electors map[string]*elector
	n        int
	fault    func(*http.Request) Delay
}

type elector struct {
	proc *testbed.Process
	id   string
	stop chan struct{}
	// gently is set before stop is closed.
	gently bool
	once   sync.Once
	over   chan struct{} // closed when the supervisor has ended
}

// Start starts the clusters and gives them what Tenure needs; Tenure itself, objects
// and electors are started by the test.
func Start(ctx context.Context, o Options) (*Lab, error) {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if o.Lock == "" {
		o.Lock = "file://" + filepath.Join(o.Dir, "lock")
	}
	if o.LockOf == nil {
		o.LockOf = func(string) string { return o.Lock }
	}
	if o.Namespace == "" {
		o.Namespace = "demo"
	}
	l := &Lab{Opt: o, start: time.Now()}
	var err error
	if l.Receiver, err = NewReceiver(); err != nil {
		return nil, err
	}
	l.Sites = make([]*Site, len(o.Clusters))
	errs := make([]error, len(o.Clusters))
	var wait sync.WaitGroup
	for i, name := range o.Clusters {
		wait.Go(func() {
			l.Sites[i], errs[i] = l.site(ctx, name)
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Lab) site(ctx context.Context, name string) (*Site, error) {
	s := &Site{lab: l, Name: name, tenure: make(map[string]*testbed.Process), electors: make(map[string]*elector)}
	o := cluster.Options{Name: name, Dir: filepath.Join(l.Opt.Dir, name), APIServers: max(1, l.Opt.APIServers)}
	if l.Opt.Faults {
		o.Intercept = s.intercept
	}
	if l.Opt.Cluster != nil {
		l.Opt.Cluster(name, &o)
	}
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	s.Cluster = c
	ns := map[string]any{"metadata": map[string]any{"name": l.Opt.Namespace}}
	if err := c.AdminClient(0).Post(ctx, "/api/v1/namespaces", ns, nil); err != nil && !errors.Is(err, cluster.ErrConflict) {
		return s, err
	}
	if err := l.run("install-"+name, l.Opt.Tenure, "install", "--kubeconfig", c.Admin(0), "--namespaces", l.Opt.Namespace, "--timeout", "60s"); err != nil {
		return s, err
	}
	return s, s.grantElectors(ctx)
}

// grantElectors lets the stock controllers write Leases in their namespace.
func (s *Site) grantElectors(ctx context.Context) error {
	admin := s.Cluster.AdminClient(0)
	rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + s.lab.Opt.Namespace + "/"
	type object = map[string]any
	role := object{
		"metadata": object{"name": "ctl"},
		"rules":    []object{{"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "verbs": []string{"*"}}},
	}
	binding := object{
		"metadata": object{"name": "ctl"},
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ctl"},
		"subjects": []object{{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ctl"}},
	}
	return errors.Join(admin.Post(ctx, rbac+"roles", role, nil), admin.Post(ctx, rbac+"rolebindings", binding, nil))
}

// run runs a program to its end.
func (l *Lab) run(log, path string, args ...string) error {
	p, err := testbed.Start(testbed.Cmd{Path: path, Args: args, Log: filepath.Join(l.Opt.Dir, log+".log")})
	if err != nil {
		return err
	}
	<-p.Done()
	if err := p.Err(); err != nil && err.Error() != "it ended with success" {
		return fmt.Errorf("%s %s: %w\n%s", path, strings.Join(args, " "), err, p.Tail(2000))
	}
	return nil
}

// Say logs with the time since the start.
func (l *Lab) Say(format string, args ...any) {
	l.Opt.Log("%8.3f  "+format, append([]any{time.Since(l.start).Seconds()}, args...)...)
}

// Close ends all processes.
func (l *Lab) Close() {
	l.mu.Lock()
	clones := l.clones
	l.mu.Unlock()
	for _, s := range slices.Concat(l.Sites, clones) {
		if s != nil {
			s.Close()
		}
	}
	l.Receiver.Close()
}

// Close ends all processes of the site.
func (s *Site) Close() {
	s.StopElectors()
	s.KillTenure()
	if s.Cluster != nil {
		s.Cluster.Close()
	}
}

// Tenure starts a replica of Tenure.
func (s *Site) Tenure(replica string, more ...string) error {
	kubeconfig, err := s.Cluster.Kubeconfig(0, "system:serviceaccount:tenure-system:tenure", "system:serviceaccounts", "system:serviceaccounts:tenure-system", "system:authenticated")
	if err != nil {
		return err
	}
	args := []string{"operator", "--dev", "-v", "--cluster", s.identity(), "--kubeconfig", kubeconfig, "--namespaces", s.lab.Opt.Namespace, "--replica", replica}
	for i := 1; i < s.Cluster.APIServers(); i++ {
		args = append(args, "--api-server", "https://"+s.Cluster.APIServer(i))
	}
	p, err := testbed.Start(testbed.Cmd{
		Path: s.lab.Opt.Tenure, Args: append(args, more...), Log: s.LogFile(replica),
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenure[replica] = p
	return nil
}

func (s *Site) identity() string {
	if s.Identity != "" {
		return s.Identity
	}
	return s.Name
}

// Clone starts a copy of a site's cluster from a snapshot of it, with nothing in it
// yet but what was stored. Tenure in it believes to be in the original.
func (l *Lab) Clone(ctx context.Context, of *Site, name string) (*Site, error) {
	snapshot := filepath.Join(l.Opt.Dir, name+".snapshot")
	if err := of.Cluster.Snapshot(snapshot); err != nil {
		return nil, err
	}
	s := &Site{lab: l, Name: name, Identity: of.identity(), tenure: make(map[string]*testbed.Process), electors: make(map[string]*elector)}
	var err error
	s.Cluster, err = cluster.Start(ctx, cluster.Options{Name: name, Dir: filepath.Join(l.Opt.Dir, name), From: snapshot, APIServers: of.Cluster.APIServers()})
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clones = append(l.clones, s)
	return s, nil
}

// KillTenure kills all replicas of Tenure.
func (s *Site) KillTenure() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.tenure))
	clear(s.tenure)
	s.mu.Unlock()
	for _, p := range all {
		p.Kill()
	}
}

// LogFile is where a process of this site logs.
func (s *Site) LogFile(name string) string {
	return filepath.Join(s.lab.Opt.Dir, s.Name+"-"+name+".log")
}

// Replica returns a running replica of Tenure.
func (s *Site) Replica(name string) *testbed.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tenure[name]
}

// Objects is the path of a namespace's MultiClusterLeases.
func (s *Site) Objects() string {
	return "/apis/tenure.dev/v1alpha1/namespaces/" + s.lab.Opt.Namespace + "/multiclusterleases"
}

// Gate creates the object demo/demo, which gates the Lease ctl.
func (s *Site) Gate(ctx context.Context, change func(*v1alpha1.MultiClusterLease)) error {
	o := s.lab.Opt
	mcl := v1alpha1.MultiClusterLease{}
	mcl.APIVersion, mcl.Kind = v1alpha1.GroupVersion.String(), "MultiClusterLease"
	mcl.Name, mcl.Namespace = "demo", o.Namespace
	mcl.Spec.Lock, mcl.Spec.Clusters = o.LockOf(s.Name), slices.Clone(o.Clusters)
	mcl.Spec.Leases = []v1alpha1.GatedLease{{
		Name: "ctl", LeaseDurationSeconds: int32(o.Lease / time.Second), RenewDeadlineSeconds: int32(o.Renew / time.Second), RetryPeriodSeconds: int32(o.Retry / time.Second),
	}}
	if change != nil {
		change(&mcl)
	}
	return s.Cluster.AdminClient(0).Post(ctx, s.Objects(), mcl, nil)
}

// Object reads the object.
func (s *Site) Object(ctx context.Context) (*v1alpha1.MultiClusterLease, error) {
	var mcl v1alpha1.MultiClusterLease
	err := s.Cluster.AdminClient(0).Get(ctx, s.Objects()+"/demo", &mcl)
	return &mcl, err
}

// Describe returns the object's status, for a failure.
func (s *Site) Describe(ctx context.Context) string {
	mcl, err := s.Object(ctx)
	if err != nil {
		return err.Error()
	}
	b, err := json.MarshalIndent(mcl.Status, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Tail returns the end of a log.
func (s *Site) Tail(name string, n int) string {
	b, err := os.ReadFile(s.LogFile(name))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	// Lock is the lock's URL; default a file in Dir.
	Lock string
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
}

// A Site is one cluster and what runs in it.
type Site struct {
	lab     *Lab
	Name    string
	Cluster *cluster.Cluster

	mu       sync.Mutex
	tenure   map[string]*testbed.Process
	electors map[string]*elector
	n        int
}

type elector struct {
	proc *testbed.Process
	stop chan struct{}
	once sync.Once
	over chan struct{} // closed when the supervisor has ended
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
	c, err := cluster.Start(ctx, cluster.Options{
		Name: name, Dir: filepath.Join(l.Opt.Dir, name), APIServers: max(1, l.Opt.APIServers),
	})
	if err != nil {
		return nil, err
	}
	s := &Site{lab: l, Name: name, Cluster: c, tenure: make(map[string]*testbed.Process), electors: make(map[string]*elector)}
	ns := map[string]any{"metadata": map[string]any{"name": "demo"}}
	if err := c.AdminClient(0).Post(ctx, "/api/v1/namespaces", ns, nil); err != nil {
		return s, err
	}
	if err := l.run("install-"+name, l.Opt.Tenure, "install", "--kubeconfig", c.Admin(0), "--namespaces", "demo", "--timeout", "60s"); err != nil {
		return s, err
	}
	return s, s.grantElectors(ctx)
}

// grantElectors lets the stock controllers write Leases in their namespace.
func (s *Site) grantElectors(ctx context.Context) error {
	admin := s.Cluster.AdminClient(0)
	rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/demo/"
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
	for _, s := range l.Sites {
		if s == nil {
			continue
		}
		s.StopElectors()
		s.mu.Lock()
		for _, p := range s.tenure {
			p.Kill()
		}
		s.mu.Unlock()
		s.Cluster.Close()
	}
	l.Receiver.Close()
}

// Tenure starts a replica of Tenure.
func (s *Site) Tenure(replica string, more ...string) error {
	kubeconfig, err := s.Cluster.Kubeconfig(0, "system:serviceaccount:tenure-system:tenure", "system:serviceaccounts", "system:serviceaccounts:tenure-system", "system:authenticated")
	if err != nil {
		return err
	}
	args := []string{"operator", "--dev", "-v", "--cluster", s.Name, "--kubeconfig", kubeconfig, "--namespaces", "demo", "--replica", replica}
	for i := 1; i < s.Cluster.APIServers(); i++ {
		args = append(args, "--api-server", "https://"+s.Cluster.APIServer(i))
	}
	p, err := testbed.Start(testbed.Cmd{
		Path: s.lab.Opt.Programs.Tenure, Args: append(args, more...), Log: s.LogFile(replica),
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenure[replica] = p
	return nil
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

// Elector starts a stock controller, which is started again when it ends, as a pod
// would be.
func (s *Site) Elector(name string, more ...string) error {
	kubeconfig, err := s.Cluster.Kubeconfig(0, "ctl", "system:authenticated")
	if err != nil {
		return err
	}
	o := s.lab.Opt
	e := &elector{stop: make(chan struct{}), over: make(chan struct{})}
	begin := func() (*testbed.Process, error) {
		s.n++
		id := fmt.Sprintf("%s/%s.%d", s.Name, name, s.n)
		args := []string{
			"-kubeconfig", kubeconfig, "-id", id, "-receiver", s.lab.Receiver.Addr(),
			"-lease-duration", o.Lease.String(), "-renew-deadline", o.Renew.String(), "-retry-period", o.Retry.String(),
		}
		return testbed.Start(testbed.Cmd{Path: o.Programs.Elector, Args: append(args, more...), Log: s.LogFile(name)})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.proc, err = begin(); err != nil {
		return err
	}
	s.electors[name] = e
	go func() {
		defer close(e.over)
		for {
			s.mu.Lock()
			p := e.proc
			s.mu.Unlock()
			select {
			case <-p.Done():
			case <-e.stop:
				p.Kill()
				return
			}
			select {
			case <-time.After(time.Second):
			case <-e.stop:
				return
			}
			s.mu.Lock()
			next, err := begin()
			if err == nil {
				e.proc = next
			}
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return nil
}

// ElectorProcess returns the running process of an elector.
func (s *Site) ElectorProcess(name string) *testbed.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.electors[name].proc
}

// StopElectors kills all electors of the site.
func (s *Site) StopElectors() {
	s.mu.Lock()
	all := make([]*elector, 0, len(s.electors))
	for _, e := range s.electors {
		all = append(all, e)
	}
	clear(s.electors)
	s.mu.Unlock()
	for _, e := range all {
		e.once.Do(func() { close(e.stop) })
		<-e.over
	}
}

const objects = "/apis/tenure.dev/v1alpha1/namespaces/demo/multiclusterleases"

// Gate creates the object demo/demo, which gates the Lease ctl.
func (s *Site) Gate(ctx context.Context, change func(*v1alpha1.MultiClusterLease)) error {
	o := s.lab.Opt
	mcl := v1alpha1.MultiClusterLease{}
	mcl.APIVersion, mcl.Kind = v1alpha1.GroupVersion.String(), "MultiClusterLease"
	mcl.Name, mcl.Namespace = "demo", "demo"
	mcl.Spec.Lock, mcl.Spec.Clusters = o.Lock, slices.Clone(o.Clusters)
	mcl.Spec.Leases = []v1alpha1.GatedLease{{
		Name: "ctl", LeaseDurationSeconds: int32(o.Lease / time.Second), RenewDeadlineSeconds: int32(o.Renew / time.Second), RetryPeriodSeconds: int32(o.Retry / time.Second),
	}}
	if change != nil {
		change(&mcl)
	}
	return s.Cluster.AdminClient(0).Post(ctx, objects, mcl, nil)
}

// Object reads the object.
func (s *Site) Object(ctx context.Context) (*v1alpha1.MultiClusterLease, error) {
	var mcl v1alpha1.MultiClusterLease
	err := s.Cluster.AdminClient(0).Get(ctx, objects+"/demo", &mcl)
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

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/test/e2e"
	"tenure.dev/test/testbed"
)

// The controller's election is quicker than by default (15, 10 and 2 seconds), and so
// is everything here.
const (
	lease = 6 * time.Second
	renew = 4 * time.Second
	retry = time.Second
)

// stand is all that runs.
type stand struct {
	dir      string
	progress *os.File
	begin    time.Time
	lab      *e2e.Lab
	bucket   *testbed.Versity
	receiver *receiver
	procs    []*testbed.Process
	kept     sync.WaitGroup // processes that are started again until ctx ends
}

func (s *stand) say(format string, args ...any) {
	fmt.Fprintf(s.progress, "%5.1f s  %s\n", time.Since(s.begin).Seconds(), fmt.Sprintf(format, args...))
}

func serve(dir string) error {
	progress, err := os.OpenFile(filepath.Join(dir, progressFile), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer progress.Close()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	s := &stand{dir: dir, progress: progress, begin: time.Now()}
	defer s.close()
	defer func() {
		cancel()
		s.kept.Wait()
	}()
	leads, err := s.start(ctx)
	if err != nil {
		return err
	}
	s.guide(leads)
	fmt.Fprintln(progress, ready)
	<-ctx.Done()
	return nil
}

func (s *stand) close() {
	for _, p := range s.procs {
		p.Kill()
	}
	if s.lab != nil {
		s.lab.Close()
	}
	if s.bucket != nil {
		s.bucket.Close()
	}
}

// start starts everything, and returns the cluster that leads first.
func (s *stand) start(ctx context.Context) (leads string, err error) {
	if s.receiver, err = newReceiver(filepath.Join(s.dir, "receiver.log")); err != nil {
		return "", err
	}
	s.say("a receiver outside of both clusters: %s", s.receiver.url)
	if err := os.Mkdir(filepath.Join(s.dir, "bucket"), 0o700); err != nil {
		return "", err
	}
	if s.bucket, err = testbed.StartVersity(filepath.Join(s.dir, "bucket")); err != nil {
		return "", err
	}
	if err := s.bucket.MakeBucket(ctx, "tenure"); err != nil {
		return "", err
	}
	for _, e := range s.bucket.Env { // Tenure gets them from here
		name, value, _ := strings.Cut(e, "=")
		if err := os.Setenv(name, value); err != nil {
			return "", err
		}
	}
	lock := s.bucket.Lock(s.bucket.URL, "tenure", "demo")
	s.say("a bucket for the lock: %s", lock)
	bin, err := os.Executable()
	if err != nil {
		return "", err
	}
	bin = filepath.Dir(bin)
	// A lock that was never there takes a wait, in case it was: that can be spent now.
	made, err := testbed.Start(testbed.Cmd{
		Path: filepath.Join(bin, "tenure"), Log: filepath.Join(s.dir, "init.log"),
		Args: []string{"init", "--lock", s.bucket.Lock(s.bucket.URL, "tenure", "demo", "ttl=21s")},
	})
	if err != nil {
		return "", err
	}
	s.procs = append(s.procs, made)
	s.say("starting clusters a and b: etcd, kube-apiserver")
	s.lab, err = e2e.Start(ctx, e2e.Options{
		Dir: filepath.Join(s.dir, "clusters"), Programs: e2e.Programs{Tenure: filepath.Join(bin, "tenure")}, Clusters: []string{"a", "b"},
		Lock: lock, Lease: lease, Renew: renew, Retry: retry,
	})
	if err != nil {
		return "", err
	}
	s.say("both are up; Tenure's definitions, accounts and rights are in them")
	var wait sync.WaitGroup
	errs := make([]error, len(s.lab.Sites))
	for i, site := range s.lab.Sites {
		wait.Go(func() { errs[i] = s.site(ctx, site, filepath.Join(bin, "controller")) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	s.say("Tenure, two replicas, and two copies of the controller run in each; waiting until somebody leads (a new lock takes a wait)")
	select {
	case first := <-s.receiver.first:
		s.say("%s leads: its controller writes to the receiver", first)
		cluster, _, _ := strings.Cut(first, "/")
		return cluster, nil
	case <-time.After(3 * time.Minute):
		return "", errors.New("nobody leads after 3 minutes")
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// site gates the controller's Lease in a cluster, and starts the controller.
func (s *stand) site(ctx context.Context, site *e2e.Site, controller string) error {
	admin := site.Cluster.AdminClient(0)
	type object = map[string]any
	rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/demo/"
	role := object{"metadata": object{"name": "publisher"}, "rules": []object{
		{"apiGroups": []string{""}, "resources": []string{"configmaps"}, "verbs": []string{"get", "list", "watch"}},
		{"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "verbs": []string{"get", "create", "update"}},
		{"apiGroups": []string{"", "events.k8s.io"}, "resources": []string{"events"}, "verbs": []string{"create", "patch"}},
	}}
	binding := object{
		"metadata": object{"name": "publisher"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "publisher"},
		"subjects": []object{{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "publisher"}},
	}
	config := object{"metadata": object{"name": "greeting", "labels": object{"publish": "yes"}}, "data": object{"hello": "world"}}
	err := errors.Join(admin.Post(ctx, rbac+"roles", role, nil), admin.Post(ctx, rbac+"rolebindings", binding, nil),
		admin.Post(ctx, "/api/v1/namespaces/demo/configmaps", config, nil))
	if err != nil {
		return err
	}
	err = site.Gate(ctx, func(mcl *v1alpha1.MultiClusterLease) { mcl.Spec.Leases[0].Name = "publisher" })
	if err != nil {
		return err
	}
	for _, replica := range []string{"tenure-1", "tenure-2"} {
		if err := site.Tenure(replica); err != nil {
			return err
		}
	}
	// The controller comes when its Lease is gated: before that it elects alone.
	if err := s.gated(ctx, site); err != nil {
		return err
	}
	kubeconfig, err := site.Cluster.Kubeconfig(0, "publisher", "system:authenticated")
	if err != nil {
		return err
	}
	for _, name := range []string{"publisher-1", "publisher-2"} {
		err := s.keep(ctx, testbed.Cmd{
			Path: controller, Log: site.LogFile(name), Args: []string{
				"-kube", kubeconfig, "-receiver", s.receiver.url, "-name", site.Name + "/" + name, "-leader-elect",
				"-leader-elect-lease-duration", lease.String(), "-leader-elect-renew-deadline", renew.String(), "-leader-elect-retry-period", retry.String(),
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// keep runs a process, and starts it again when it ends, as a kubelet would.
func (s *stand) keep(ctx context.Context, c testbed.Cmd) error {
	p, err := testbed.Start(c)
	if err != nil {
		return err
	}
	s.kept.Go(func() {
		for {
			select {
			case <-p.Done():
			case <-ctx.Done():
				p.Kill()
				return
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return
			}
			next, err := testbed.Start(c)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				continue
			}
			p = next
		}
	})
	return nil
}

// gated waits until the API server was seen to refuse.
func (s *stand) gated(ctx context.Context, site *e2e.Site) error {
	for end := time.Now().Add(time.Minute); ; {
		mcl, err := site.Object(ctx)
		if err == nil && mcl.Status != nil {
			for _, c := range mcl.Status.Conditions {
				if c.Type == v1alpha1.ConditionEnforced && c.Status == "True" {
					return nil
				}
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("cluster %s: the gate is not enforced after a minute: %s", site.Name, site.Describe(ctx))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// guide says what to try.
func (s *stand) guide(leads string) {
	bin, err := os.Executable()
	if err != nil {
		bin = ""
	}
	var env []string
	for _, e := range s.bucket.Env {
		env = append(env, "export "+e)
	}
	a, b := s.lab.Sites[0].Cluster.Admin(0), s.lab.Sites[1].Cluster.Admin(0)
	other := "b"
	if leads == other {
		other = "a"
	}
	fmt.Fprintf(s.progress, `
What the receiver gets, and from whom:
  tail -f %[1]s
Who leads (cluster b: with %[3]s):
  kubectl --kubeconfig %[2]s -n demo get multiclusterleases
Have the other cluster lead, on request:
  %[4]s
  %[5]s handover --lock '%[6]s' --namespace demo --name demo --to %[8]s
Kill the leading cluster's Tenure, API server or controllers, or freeze its Tenure or API server (kill -STOP): see that
two never write. A controller that was frozen itself writes when it wakes, until it notices (docs/guarantees.md).
What you kill stays dead, but for the controllers, which are started again as a kubelet would.
Logs: %[7]s
make down ends all of it.
`, s.receiver.path, a, b, strings.Join(env, "; "), filepath.Join(filepath.Dir(bin), "tenure"), s.lab.Opt.Lock, filepath.Join(s.dir, "clusters"), other)
}

// receiver notes who writes.
type receiver struct {
	url, path string
	first     chan string
}

func newReceiver(path string) (*receiver, error) {
	log, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{url: "http://" + l.Addr().String(), path: path, first: make(chan string, 1)}
	var mu sync.Mutex
	last := ""
	handler := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var m struct{ By, Object string }
		if err := json.NewDecoder(req.Body).Decode(&m); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		note := ""
		if m.By != last {
			note = "  <- leads now"
		}
		last = m.By
		fmt.Fprintf(log, "%s %s writes %s%s\n", time.Now().Format("15:04:05.000"), m.By, m.Object, note)
		select {
		case r.first <- m.By:
		default:
		}
		w.WriteHeader(http.StatusNoContent)
	})
	go func() {
		s := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
		fmt.Fprintln(os.Stderr, s.Serve(l))
	}()
	return r, nil
}

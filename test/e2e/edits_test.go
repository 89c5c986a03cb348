// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/test/cluster"
)

const (
	admission = "/apis/admissionregistration.k8s.io/v1/"
	policies  = admission + "validatingadmissionpolicies/"
	bindings  = admission + "validatingadmissionpolicybindings/"
	gateName  = "tenure-gate.demo.demo"
	crds      = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
	crd       = "multiclusterleases.tenure.dev"
	gated     = "/apis/coordination.k8s.io/v1/namespaces/demo/leases/ctl"
)

// others is a user of a cluster whom no gate concerns: he writes another Lease of the
// same namespace, a node's heartbeat, and a ConfigMap.
func others(ctx context.Context, s *Site) (failures func() []error, err error) {
	ctl, err := s.Cluster.Client(0, "ctl", "system:authenticated")
	if err != nil {
		return nil, err
	}
	admin := s.Cluster.AdminClient(0)
	type object = map[string]any
	named := func(name string, spec object) object { return object{"metadata": object{"name": name}, "spec": spec} }
	lease, beat := named("free", object{"holderIdentity": "somebody"}), named("node-1", object{"holderIdentity": "node-1"})
	const demo, nodes = "/apis/coordination.k8s.io/v1/namespaces/demo/leases", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	err = errors.Join(ctl.Post(ctx, demo, lease, nil),
		ignore(admin.Post(ctx, "/api/v1/namespaces", object{"metadata": object{"name": "kube-node-lease"}}, nil), cluster.ErrConflict),
		admin.Post(ctx, nodes, beat, nil),
		admin.Post(ctx, "/api/v1/namespaces/demo/configmaps", object{"metadata": object{"name": "free"}}, nil))
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var all []error
	go func() {
		for n := 0; ctx.Err() == nil; n++ {
			now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
			spec := object{"spec": object{"renewTime": now}}
			err := errors.Join(
				ctl.Patch(ctx, demo+"/free", cluster.MergePatch, spec, nil), admin.Patch(ctx, nodes+"/node-1", cluster.MergePatch, spec, nil),
				admin.Patch(ctx, "/api/v1/namespaces/demo/configmaps/free", cluster.MergePatch, object{"data": object{"n": fmt.Sprint(n)}}, nil))
			// Who deletes all Leases deletes this one.
			if err != nil && ctx.Err() == nil && !errors.Is(err, cluster.ErrNotFound) {
				mu.Lock()
				all = append(all, err)
				mu.Unlock()
			}
			if errors.Is(err, cluster.ErrNotFound) {
				_ = ctl.Post(ctx, demo, lease, nil) // the next round tells
			}
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return func() []error {
		mu.Lock()
		defer mu.Unlock()
		out := all
		all = nil
		return out
	}, nil
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// TestEdits: what Tenure relies on is edited or deleted by hand, in the cluster that
// leads and in the one that stands by. Others notice nothing.
func TestEdits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := newPair(t, pairOptions{})
	failures := make(map[string]func() []error)
	for _, s := range p.Sites {
		f, err := others(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		failures[s.Name] = f
	}
	step := func(name string, f func(s *scene)) {
		p.step(name, "", func(s *scene) {
			f(s)
			for site, f := range failures {
				if errs := f(); len(errs) > 0 {
					s.Errorf("%s: %d writes that no gate concerns failed, as: %v", site, len(errs), errs[0])
				}
			}
		})
	}
	both := func(name string, f func(s *scene, site *Site)) {
		step(name+" in the leading cluster", func(s *scene) { f(s, s.lead) })
		step(name+" in the standby", func(s *scene) { f(s, s.other) })
	}
	// back waits until what was deleted is there again.
	back := func(s *scene, site *Site, path string) {
		begin := time.Now()
		for site.Cluster.AdminClient(0).Get(s.ctx, path, nil) != nil {
			if time.Since(begin) > 90*time.Second {
				s.Fatalf("%s: %s is not back after 90 s", site.Name, path)
			}
			pause(s, 200*time.Millisecond)
		}
		s.Say("figure: %s in %s is back after %v", path, site.Name, time.Since(begin).Round(100*time.Millisecond))
	}
	both("policy deleted", func(s *scene, site *Site) {
		s.do(site.Cluster.AdminClient(0).Delete(s.ctx, policies+gateName, nil))
		back(s, site, policies+gateName)
	})
	both("binding deleted", func(s *scene, site *Site) {
		s.do(site.Cluster.AdminClient(0).Delete(s.ctx, bindings+gateName, nil))
		back(s, site, bindings+gateName)
	})
	both("policy made to admit all", func(s *scene, site *Site) {
		s.do(site.Cluster.AdminClient(0).Patch(s.ctx, policies+gateName, cluster.JSONPatch, `[{"op":"replace","path":"/spec/validations","value":[{"expression":"true"}]}]`, nil))
		pause(s, 20*time.Second)
	})
	both("status edited", func(s *scene, site *Site) {
		admin := site.Cluster.AdminClient(0)
		path := site.Objects() + "/demo"
		if err := admin.Patch(s.ctx, path+"/status", cluster.MergePatch, `{"status":{"leading":true,"epoch":9000000000,"validUntil":"2096-01-01T00:00:00.000000Z"}}`, nil); err == nil {
			s.Error("somebody else may write the status")
		}
		mcl, err := site.Object(s.ctx)
		s.do(err)
		mcl.Status = nil
		if err := admin.Put(s.ctx, path, mcl, nil); err != nil {
			s.Say("a PUT without status: %v", err)
		}
		if mcl, err = site.Object(s.ctx); err != nil || mcl.Status == nil {
			s.Errorf("the status is gone: %v", err)
		}
		s.steady(5 * time.Second)
	})
	both("gated Lease deleted", func(s *scene, site *Site) {
		admin := site.Cluster.AdminClient(0)
		if err := admin.Delete(s.ctx, gated, nil); err == nil {
			s.Error("a gated Lease was deleted")
		}
		_ = admin.Delete(s.ctx, "/apis/coordination.k8s.io/v1/namespaces/demo/leases", nil) // kubectl delete leases --all
		if err := admin.Get(s.ctx, gated, nil); err != nil {
			s.Errorf("a gated Lease was deleted with all: %v", err)
		}
		s.steady(5 * time.Second)
	})
	step("gated Lease edited in the standby", func(s *scene) {
		for who, c := range map[string]*cluster.Client{"admin": s.other.Cluster.AdminClient(0)} {
			now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
			if err := c.Patch(s.ctx, gated, cluster.MergePatch, fmt.Sprintf(`{"spec":{"holderIdentity":"me","renewTime":%q}}`, now), nil); err == nil {
				s.Errorf("%s took the Lease of a standby", who)
			}
			// Giving up is always allowed: the pods that try then are refused.
			s.do(c.Patch(s.ctx, gated, cluster.MergePatch, `{"spec":{"holderIdentity":""}}`, nil))
		}
		s.steady(15 * time.Second)
	})
	both("object deleted", func(s *scene, site *Site) {
		admin := site.Cluster.AdminClient(0)
		s.do(admin.Delete(s.ctx, site.Objects()+"/demo", nil))
		s.until("the object is gone", func() bool { return errors.Is(admin.Get(s.ctx, site.Objects()+"/demo", nil), cluster.ErrNotFound) })
		pause(s, 15*time.Second)
		s.do(site.Gate(s.ctx, nil))
	})
	both("CRD deleted", func(s *scene, site *Site) {
		admin := site.Cluster.AdminClient(0)
		s.do(admin.Delete(s.ctx, crds+crd, nil))
		s.until("the CRD is gone", func() bool { return errors.Is(admin.Get(s.ctx, crds+crd, nil), cluster.ErrNotFound) })
		pause(s, 15*time.Second)
		s.do(s.install(site))
		s.until("the object can be made", func() bool { return site.Gate(s.ctx, nil) == nil })
	})
	step("policies deleted in a standby whose Tenure is dead", func(s *scene) {
		s.other.KillTenure()
		admin := s.other.Cluster.AdminClient(0)
		for _, name := range []string{gateName, gateName + "-delete"} {
			s.do(admin.Delete(s.ctx, bindings+name, nil), admin.Delete(s.ctx, policies+name, nil))
		}
		s.steady(30 * time.Second)
		s.do(s.other.Tenure("t1"))
	})
	step("everything removed in the standby", func(s *scene) {
		admin := s.other.Cluster.AdminClient(0)
		s.other.KillTenure()
		const rbac = "/apis/rbac.authorization.k8s.io/v1/"
		for _, path := range []string{
			"/api/v1/namespaces/tenure-system/serviceaccounts/tenure", "/api/v1/namespaces/tenure-system/serviceaccounts/tenure-probe",
			"/apis/coordination.k8s.io/v1/namespaces/tenure-system/leases/tenure",
			rbac + "clusterrolebindings/tenure", rbac + "clusterroles/tenure", rbac + "clusterrolebindings/tenure-install", rbac + "clusterroles/tenure-install",
			rbac + "namespaces/demo/rolebindings/tenure-gate", rbac + "namespaces/demo/roles/tenure-gate",
		} {
			s.do(admin.Delete(s.ctx, path, nil))
		}
		s.do(admin.Patch(s.ctx, s.other.Objects()+"/demo", cluster.MergePatch, `{"metadata":{"finalizers":null}}`, nil))
		s.do(admin.Delete(s.ctx, crds+crd, nil))
		s.steady(15 * time.Second)
		if errs := failures[s.lead.Name](); len(errs) > 0 {
			s.Errorf("%s: %v", s.lead.Name, errs[0])
		}
		s.crash(s.lead) // nobody can lead now, and nobody does
		pause(s, 2*lockDuration)
		if beats := s.Receiver.Beats(time.Now().Add(-lockDuration)); len(beats) > 0 {
			s.Errorf("%s writes, and its cluster has no Tenure", beats[0].Holder)
		}
		s.revive(s.lead, "t1")
		pause(s, time.Second)
		failures[s.lead.Name]() // nobody could write there
		s.until("the CRD is gone", func() bool { return errors.Is(admin.Get(s.ctx, crds+crd, nil), cluster.ErrNotFound) })
		s.do(s.install(s.other))
		s.until("the object can be made", func() bool { return s.other.Gate(s.ctx, nil) == nil })
		s.do(s.other.Tenure("t1"))
	})
	p.step("good order at the end", "", func(*scene) {})
}

// until waits for something that must come.
func (s *scene) until(what string, is func() bool) {
	s.Helper()
	for begin := time.Now(); !is(); pause(s, 200*time.Millisecond) {
		if time.Since(begin) > time.Minute || s.ctx.Err() != nil {
			s.Fatalf("waited a minute, and not: %s", what)
		}
	}
}

// install applies Tenure's objects again.
func (s *scene) install(site *Site) error {
	return s.run("install-"+site.Name, s.Opt.Tenure, "install", "--kubeconfig", site.Cluster.Admin(0), "--namespaces", s.Opt.Namespace, "--timeout", "60s")
}

// change patches a site's object.
func (s *scene) change(site *Site, f func(*v1alpha1.MultiClusterLeaseSpec)) {
	s.Helper()
	var err error
	for range 5 {
		mcl, e := site.Object(s.ctx)
		s.do(e)
		f(&mcl.Spec)
		if err = site.Cluster.AdminClient(0).Put(s.ctx, site.Objects()+"/demo", mcl, nil); !errors.Is(err, cluster.ErrConflict) {
			break
		}
	}
	s.do(err)
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/internal/lab"
	"tenure.dev/operator/policy"
	"tenure.dev/test/cluster"
)

// maxGrant is what the status policy of the tests allows.
const maxGrant = 120

// servers is how many API servers there are.
const servers = 2

// shared is the cluster of all tests of this package: each has a namespace of its
// own there.
var shared *lab.Lab

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	shared, err = lab.Start(ctx, cluster.Options{Name: "policies", APIServers: servers, ControllerManager: &cluster.Part{}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer shared.Close()
	err = errors.Join(
		shared.Role(ctx, "", "people", []lab.Object{
			{"apiGroups": []string{"coordination.k8s.io", "tenure.dev", ""}, "resources": []string{"*"}, "verbs": []string{"*"}},
		}, lab.Object{"kind": "Group", "name": "people"}),
		shared.Apply(ctx, policy.Status(lab.Account, maxGrant)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wants checks how a request was answered: the empty text is success, another is
// of a refusal.
func wants(t *testing.T, what string, err error, refusal string) {
	t.Helper()
	var status *cluster.StatusError
	switch {
	case refusal == "" && err != nil:
		t.Errorf("%s: %v, want success", what, err)
	case refusal != "" && err == nil:
		t.Errorf("%s: succeeded, want a refusal with %q", what, refusal)
	case refusal != "" && (!errors.As(err, &status) || !strings.Contains(status.Message, refusal)):
		t.Errorf("%s: %v, want a refusal with %q", what, err, refusal)
	}
}

// A gated namespace, and those who write there: Tenure, a controller's service
// account, a person with a certificate, an administrator; at each API server.
type gated struct {
	name                          string
	gate                          policy.Gate
	mcl                           v1alpha1.MultiClusterLease
	tenure, pod, person, everyone [servers]*cluster.Client
}

var namespaces atomic.Int32

// newGated makes a namespace in which the Leases are gated, without an object yet.
func newGated(t *testing.T, leases ...string) *gated {
	t.Helper()
	g := &gated{name: fmt.Sprintf("team-%d", namespaces.Add(1))}
	must(t, shared.Namespace(t.Context(), g.name, "ctl"))
	must(t, shared.Bind(t.Context(), g.name, "ctl", "people", lab.Object{"kind": "ServiceAccount", "name": "ctl", "namespace": g.name}))
	for i := range servers {
		var err error
		g.tenure[i], err = shared.Account(t.Context(), i, lab.System, "tenure")
		must(t, err)
		g.pod[i], err = shared.Account(t.Context(), i, g.name, "ctl")
		must(t, err)
		g.person[i], err = shared.Client(i, "alice", "people")
		must(t, err)
		g.everyone[i] = shared.AdminClient(i)
	}
	g.mcl = v1alpha1.MultiClusterLease{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MultiClusterLease"},
		ObjectMeta: metav1.ObjectMeta{Name: "gate", Namespace: g.name},
		Spec:       v1alpha1.MultiClusterLeaseSpec{Lock: "gs://bucket/lock", Clusters: []string{"cluster-a", "cluster-b"}},
	}
	for _, l := range leases {
		g.mcl.Spec.Leases = append(g.mcl.Spec.Leases, v1alpha1.GatedLease{Name: l})
	}
	g.gate = policy.Of(&g.mcl, lab.Account)
	must(t, shared.Apply(t.Context(), g.gate.Sets()...))
	return g
}

func (g *gated) leases() string { return lab.Leases(g.name) }

func (g *gated) objects() string { return lab.MultiClusterLeases(g.name) }

// create makes the object.
func (g *gated) create(t *testing.T) {
	t.Helper()
	must(t, g.tenure[0].Post(t.Context(), g.objects(), g.mcl, &g.mcl))
}

// closed and open are states of the grant.
func (g *gated) closed(epoch int64) v1alpha1.MultiClusterLeaseStatus {
	return v1alpha1.MultiClusterLeaseStatus{Epoch: epoch, ClosedEpoch: epoch, ValidUntil: metav1.NowMicro(), Leader: "cluster-b"}
}

func (g *gated) open(epoch int64, valid time.Duration, leases ...string) v1alpha1.MultiClusterLeaseStatus {
	s := v1alpha1.MultiClusterLeaseStatus{
		Leading: true, Epoch: epoch, ClosedEpoch: epoch - 1, Leader: "cluster-a",
		ValidUntil: metav1.NewMicroTime(time.Now().Add(valid)),
	}
	for _, l := range leases {
		s.Leases = append(s.Leases, v1alpha1.GrantedLease{Name: l, LeaseDurationSeconds: 15, StopAfterSeconds: 23})
	}
	return s
}

// status writes a status as Tenure.
func (g *gated) status(t *testing.T, s v1alpha1.MultiClusterLeaseStatus) error {
	t.Helper()
	must(t, g.tenure[0].Get(t.Context(), g.objects()+"/gate", &g.mcl))
	next := g.mcl
	next.Status = &s
	return g.tenure[0].Put(t.Context(), g.objects()+"/gate/status", next, &g.mcl)
}

// set writes a status and waits until each API server goes by it.
func (g *gated) set(t *testing.T, s v1alpha1.MultiClusterLeaseStatus) {
	t.Helper()
	must(t, g.status(t, s))
	g.settle(t, fmt.Sprintf("rev=%s epoch=%d closed=%d leading=%t until=%s ", g.gate.Revision(), s.Epoch, s.ClosedEpoch, s.Leading,
		s.ValidUntil.UTC().Format(metav1.RFC3339Micro)))
}

// settle waits until each API server refuses with a text what nothing admits.
func (g *gated) settle(t *testing.T, text string) {
	t.Helper()
	for i, c := range g.pod {
		for _, l := range g.mcl.Spec.Leases {
			must(t, lab.Eventually(t.Context(), func(ctx context.Context) error {
				bad := lease(l.Name, "nobody", -time.Hour)
				delete(bad["spec"].(lab.Object), "renewTime")
				err := c.Post(ctx, g.leases()+"?dryRun=All", bad, nil)
				if err == nil || !strings.Contains(err.Error(), text) {
					return fmt.Errorf("API server %d says %w, want %q", i, err, text)
				}
				return nil
			}))
		}
	}
}

// lease is one that a candidate writes whose clock is off by so much.
func lease(name, holder string, off time.Duration) lab.Object {
	return lab.Object{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lab.Object{"name": name},
		"spec": lab.Object{"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": metav1.NewMicroTime(time.Now().Add(off))},
	}
}

// hold has Tenure write the Lease, so that each case begins with the same.
func (g *gated) hold(t *testing.T, name, holder string) *coordinationv1.Lease {
	t.Helper()
	l := new(coordinationv1.Lease)
	must(t, g.tenure[0].Patch(t.Context(), g.leases()+"/"+name+"?fieldManager=tenure&force=true", cluster.ApplyPatch, lease(name, holder, -time.Second), l))
	return l
}

// read returns the Lease.
func (g *gated) read(t *testing.T, name string) *coordinationv1.Lease {
	t.Helper()
	l := new(coordinationv1.Lease)
	must(t, g.tenure[0].Get(t.Context(), g.leases()+"/"+name, l))
	return l
}

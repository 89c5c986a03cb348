// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev/operator/internal/lab"
	"tenure.dev/operator/policy"
	"tenure.dev/test/cluster"
)

const strategicPatch = "application/strategic-merge-patch+json"

// A write is one that a candidate makes to a Lease that p1 holds and renewed a
// second ago.
type write struct {
	what    string
	do      func(ctx context.Context, c *cluster.Client, path string, now coordinationv1.Lease) error
	refusal string // empty: it passes
}

// put replaces the spec as a candidate of client-go does.
func put(holder string, off time.Duration, change ...func(*coordinationv1.Lease)) func(context.Context, *cluster.Client, string, coordinationv1.Lease) error {
	return func(ctx context.Context, c *cluster.Client, path string, l coordinationv1.Lease) error {
		renewed := metav1.NewMicroTime(time.Now().Add(off))
		seconds := int32(15)
		l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed}
		for _, f := range change {
			f(&l)
		}
		return c.Put(ctx, path, l, nil)
	}
}

func patch(kind, body string) func(context.Context, *cluster.Client, string, coordinationv1.Lease) error {
	return func(ctx context.Context, c *cluster.Client, path string, _ coordinationv1.Lease) error {
		body := strings.ReplaceAll(body, "NOW", metav1.NowMicro().UTC().Format(metav1.RFC3339Micro))
		if kind == cluster.ApplyPatch {
			path += "?fieldManager=ctl&force=true"
		}
		return c.Patch(ctx, path, kind, body, nil)
	}
}

// entry plants an entry of managedFields with a date.
func entry(manager, date string) func(*coordinationv1.Lease) {
	at, err := time.Parse(time.RFC3339, date)
	if err != nil {
		panic(err)
	}
	return func(l *coordinationv1.Lease) {
		l.ManagedFields = append(l.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "coordination.k8s.io/v1", Time: &metav1.Time{Time: at},
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:holderIdentity":{},"f:leaseDurationSeconds":{},"f:renewTime":{}}}`),
		})
	}
}

func cleared(l *coordinationv1.Lease) { l.ManagedFields = []metav1.ManagedFieldsEntry{{}} }

func seconds(n int32) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = &n }
}

// always pass: giving up, in any state.
var givingUp = []write{
	{"emptied", put("", 0), ""},
	{"emptied, as client-go does", put("", 0, seconds(1)), ""},
	{"emptied by merge patch", patch(cluster.MergePatch, `{"spec":{"holderIdentity":null}}`), ""},
	{"emptied by JSON patch", patch(cluster.JSONPatch, `[{"op":"remove","path":"/spec/holderIdentity"}]`), ""},
	{"emptied by strategic patch", patch(strategicPatch, `{"spec":{"holderIdentity":""}}`), ""},
	{"emptied with a planted date", put("", 0, entry("other", "2095-01-01T00:00:00Z")), ""},
}

// never pass, in any state: nothing that keeps a holder without renewing.
var never = []write{
	{"an annotation by merge patch", patch(cluster.MergePatch, `{"metadata":{"annotations":{"a":"b"}}}`), "lease=ctl: "},
	{"an annotation by JSON patch", patch(cluster.JSONPatch, `[{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`), "lease=ctl: "},
	{"a label by strategic patch", patch(strategicPatch, `{"metadata":{"labels":{"a":"b"}}}`), "lease=ctl: "},
	{"a label by apply", patch(cluster.ApplyPatch, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"ctl","labels":{"a":"b"}}}`), "lease=ctl: "},
	{"a finalizer", patch(cluster.MergePatch, `{"metadata":{"finalizers":["example.com/stay"]}}`), "lease=ctl: "},
	{"a write of what is there", func(ctx context.Context, c *cluster.Client, path string, l coordinationv1.Lease) error {
		return c.Put(ctx, path, l, nil)
	}, "lease=ctl: "},
	{"no renewTime", put("p2", 0, func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }), "lease=ctl: "},
	{"a holder by merge patch", patch(cluster.MergePatch, `{"spec":{"holderIdentity":"p2","renewTime":null}}`), "lease=ctl: "},
	{"managedFields cleared", put("p2", 0, cleared), "lease=ctl: "},
	{"managedFields cleared while emptying", put("", 0, cleared), "clears managedFields"},
	{"the spec removed", patch(cluster.MergePatch, `{"spec":null}`), "clears managedFields"},
	{"a subresource", func(ctx context.Context, c *cluster.Client, path string, l coordinationv1.Lease) error {
		return put("p2", 0)(ctx, c, path+"/status", l)
	}, "the server could not find the requested resource"},
	{"renewTime a day ahead", put("p2", 24*time.Hour), "lease=ctl: "},
}

// taking takes or renews the Lease in each way that the API knows.
func taking(refusal string) []write {
	spec := `"spec":{"holderIdentity":"p2","leaseDurationSeconds":15,"renewTime":"NOW"}`
	return []write{
		{"take", put("p2", 0), refusal},
		{"renew", put("p1", 0), refusal},
		{"take with a clock 60 s behind", put("p2", -time.Minute), refusal},
		{"take by merge patch", patch(cluster.MergePatch, "{"+spec+"}"), refusal},
		{"take by strategic patch", patch(strategicPatch, "{"+spec+"}"), refusal},
		{"take by JSON patch", patch(cluster.JSONPatch, `[{"op":"replace","path":"/spec/holderIdentity","value":"p2"},{"op":"replace","path":"/spec/renewTime","value":"NOW"}]`), refusal},
		{"take by apply", patch(cluster.ApplyPatch, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"ctl"},`+spec+`}`), refusal},
		{"take with an old date planted", put("p2", 0, entry("other", "2000-01-01T00:00:00Z")), refusal},
		{"a shorter duration", put("p2", 0, seconds(6)), refusal},
	}
}

// run makes each write at each API server.
func (g *gated) run(t *testing.T, writes ...[]write) {
	t.Helper()
	for _, list := range writes {
		for i, w := range list {
			who := g.pod[i%servers] // at the one server or the other, and by
			if i%3 == 2 {
				who = g.person[i%servers] // the one account or the other
			}
			now := g.hold(t, "ctl", "p1")
			path := g.leases() + "/ctl"
			err := w.do(t.Context(), who, path, *now)
			wants(t, w.what, err, w.refusal)
			if l := g.read(t, "ctl"); w.refusal != "" && l.ResourceVersion != now.ResourceVersion {
				t.Errorf("%s: was refused and changed the Lease", w.what)
			}
		}
	}
}

// TestClosed: nobody takes or keeps a Lease, whatever he writes.
func TestClosed(t *testing.T) {
	t.Parallel()
	g := newGated(t, "ctl")
	g.create(t)
	g.settle(t, "epoch=none closed=none leading=false until=none lease=ctl: this cluster does not lead")
	wants(t, "create before there is a status", g.pod[0].Post(t.Context(), g.leases(), lease("ctl", "p1", 0), nil), "does not lead")
	g.set(t, g.closed(6))
	wants(t, "create", g.pod[1].Post(t.Context(), g.leases(), lease("ctl", "p1", 0), nil), "epoch=6 closed=6 leading=false")
	wants(t, "create by apply", g.person[1].Patch(t.Context(), g.leases()+"/ctl?fieldManager=x", cluster.ApplyPatch, lease("ctl", "p1", 0), nil), "does not lead")
	wants(t, "create without a holder", g.pod[0].Post(t.Context(), g.leases()+"?dryRun=All", lease("ctl", "", 0), nil), "")
	const closed = "epoch=6 closed=6 leading=false"
	g.run(t, taking(closed+" until="), givingUp, never)

	t.Run("between acquiring and opening", func(t *testing.T) {
		s := g.closed(7)
		s.ClosedEpoch = 6
		g.set(t, s)
		g.hold(t, "ctl", "p1")
		wants(t, "take", g.pod[0].Patch(t.Context(), g.leases()+"/ctl", cluster.MergePatch, lease("ctl", "p2", 0), nil), "epoch=7 closed=6 leading=false")
	})
	t.Run("the denial says why", func(t *testing.T) {
		err := g.pod[0].Post(t.Context(), g.leases(), lease("ctl", "p1", 0), nil)
		for _, word := range []string{"'" + g.gate.PolicyName() + "'", "tenure gate " + g.name + "/gate rev=" + g.gate.Revision(), "epoch=7", "lease=ctl", "this cluster does not lead, cluster-b does"} {
			wants(t, "create", err, word)
		}
		if !errors.Is(err, cluster.ErrForbidden) {
			t.Errorf("got %v, want 403", err)
		}
	})
}

// TestOpen: the leader's pods elect as always, and nothing outlasts the grant.
func TestOpen(t *testing.T) {
	t.Parallel()
	g := newGated(t, "ctl", "extra")
	g.create(t)
	g.set(t, g.closed(6))
	s := g.open(7, 50*time.Second, "ctl")
	g.set(t, s)
	g.run(t, taking(""), givingUp, never, []write{
		{"take with a clock 60 s ahead", put("p2", time.Minute), "renewTime is past the grant"},
		{"take without renewTime", put("p2", 0, func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }), "renewTime is missing"},
		{"renew with a clock stepped back", put("p1", -3*time.Second), "renewTime does not grow"},
		{"a longer duration", put("p2", 0, seconds(16)), "leaseDurationSeconds is longer than the declared 15"},
		{"no duration", put("p2", 0, func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = nil }), "leaseDurationSeconds"},
		{"a planted date far ahead", put("p2", 0, entry("other", "2096-01-01T00:00:00Z")), "the grant is over by this API server's clock"},
		{"a planted date far ahead, by the same manager", put("p2", 0, func(l *coordinationv1.Lease) { l.ManagedFields = nil }, entry("Go-http-client", "2096-01-01T00:00:00Z")), ""},
		{"a no-op", func(ctx context.Context, c *cluster.Client, path string, l coordinationv1.Lease) error {
			return c.Put(ctx, path, l, nil)
		}, "renewTime does not grow"},
	})
	t.Run("renewals within a second", func(t *testing.T) {
		g.hold(t, "ctl", "p1")
		for range 20 {
			l := g.read(t, "ctl")
			wants(t, "renew", put("p1", 0)(t.Context(), g.pod[0], g.leases()+"/ctl", *l), "")
		}
	})
	t.Run("a date planted before does not lock out", func(t *testing.T) {
		l := g.hold(t, "ctl", "p1")
		wants(t, "plant while emptying", put("", 0, entry("another", "2096-01-02T00:00:00Z"))(t.Context(), g.person[0], g.leases()+"/ctl", *l), "")
		l = g.read(t, "ctl")
		if b, err := json.Marshal(l.ManagedFields); err != nil || !strings.Contains(string(b), "2096-01-02") {
			t.Fatalf("managedFields are %s (%v), want the planted entry", b, err)
		}
		wants(t, "take", put("p2", 0)(t.Context(), g.pod[0], g.leases()+"/ctl", *l), "")
		must(t, g.tenure[0].Delete(t.Context(), g.leases()+"/ctl", nil))
	})
	t.Run("create", func(t *testing.T) {
		planted := lease("ctl", "p1", 0)
		planted["metadata"].(lab.Object)["managedFields"] = []lab.Object{{"manager": "x", "operation": "Update", "apiVersion": "coordination.k8s.io/v1", "time": "2096-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": lab.Object{"f:spec": lab.Object{}}}}
		wants(t, "with a planted date", g.pod[0].Post(t.Context(), g.leases(), planted, nil), "the grant is over by this API server's clock")
		wants(t, "ahead", g.pod[0].Post(t.Context(), g.leases(), lease("ctl", "p1", time.Minute), nil), "renewTime is past the grant")
		wants(t, "of one not covered", g.pod[0].Post(t.Context(), g.leases(), lease("extra", "p1", 0), nil), "the grant does not cover this Lease yet")
		wants(t, "in time", g.pod[0].Post(t.Context(), g.leases(), lease("ctl", "p1", 0), nil), "")
	})
}

// TestGrantOver: Tenure is gone and the grant has run out. The API server's own
// clock ends it, also for candidates whose clocks are behind.
func TestGrantOver(t *testing.T) {
	t.Parallel()
	g := newGated(t, "ctl")
	g.create(t)
	g.set(t, g.closed(6))
	g.set(t, g.open(7, -2*time.Second, "ctl"))
	const over = "lease=ctl: the grant is over by this API server's clock"
	g.run(t, givingUp, never, []write{
		{"take", put("p2", 0), "renewTime is past the grant"},
		{"take with a clock 60 s behind", put("p2", -time.Minute), over},
		{"renew with a clock behind", put("p1", -500*time.Millisecond), "lease=ctl: "},
		{"with an old date planted", put("p2", -time.Minute, entry("other", "2000-01-01T00:00:00Z")), over},
		{"with an old date planted by the same manager", put("p2", -time.Minute, entry("Go-http-client", "2000-01-01T00:00:00Z")), over},
		{"with only an old date", put("p2", -time.Minute, func(l *coordinationv1.Lease) { l.ManagedFields = nil }, entry("Go-http-client", "2000-01-01T00:00:00Z")), over},
		{"by apply", func(ctx context.Context, c *cluster.Client, path string, _ coordinationv1.Lease) error {
			return c.Patch(ctx, path+"?fieldManager=ctl&force=true", cluster.ApplyPatch, lease("ctl", "p2", -time.Minute), nil)
		}, over},
		{"by merge patch", func(ctx context.Context, c *cluster.Client, path string, _ coordinationv1.Lease) error {
			return c.Patch(ctx, path, cluster.MergePatch, lab.Object{"spec": lease("ctl", "p2", -time.Minute)["spec"]}, nil)
		}, over},
	})
	t.Run("a write of the same second as the last", func(t *testing.T) {
		// The manager's entry is then the one that was there.
		for range 5 {
			l := g.hold(t, "ctl", "p1")
			path := g.leases() + "/ctl"
			must(t, put("", 0)(t.Context(), g.pod[0], path, *l))
			wants(t, "take", put("p2", -time.Minute)(t.Context(), g.pod[0], path, *g.read(t, "ctl")), over)
		}
	})
	t.Run("a stamp hidden behind a planted date", func(t *testing.T) {
		// The entry of a write at that second would be one that was there before.
		l := g.hold(t, "ctl", "p1")
		path := g.leases() + "/ctl"
		later := time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
		must(t, put("", 0, entry("planted", later))(t.Context(), g.pod[0], path, *l))
		l = g.read(t, "ctl")
		wants(t, "take", put("p2", -time.Minute, entry("other", "2000-01-01T00:00:00Z"))(t.Context(), g.pod[0], path, *l), over)
	})
	t.Run("create", func(t *testing.T) {
		must(t, g.tenure[0].Delete(t.Context(), g.leases()+"/ctl", nil))
		wants(t, "behind", g.pod[1].Post(t.Context(), g.leases(), lease("ctl", "p1", -time.Minute), nil), over)
	})
}

// TestGeneratedName: a name that the API server makes up is none of ours.
func TestGeneratedName(t *testing.T) {
	t.Parallel()
	g := newGated(t, "ctl", "ctl-abcde")
	g.create(t)
	g.set(t, g.closed(6))
	made := lease("", "p1", 0)
	made["metadata"] = lab.Object{"generateName": "ctl-"}
	// The second policy is in force a moment after the first, which set has waited for.
	for begin := time.Now(); g.pod[0].Post(t.Context(), g.leases()+"?dryRun=All", made, nil) == nil; time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > 30*time.Second {
			t.Fatal("the policy against deletion and made-up names is not in force after 30 s")
		}
	}
	for prefix, refusal := range map[string]string{"ctl": "", "other-": "", "ctl-": "might be that of a gated Lease"} {
		made := lease("", "p1", 0)
		made["metadata"] = lab.Object{"generateName": prefix}
		wants(t, "generateName "+prefix, g.pod[0].Post(t.Context(), g.leases(), made, nil), refusal)
	}
}

// TestMissingParameter: without the object exactly the gated names are refused, to
// all, and the object can be made again.
func TestMissingParameter(t *testing.T) {
	t.Parallel()
	g := newGated(t, "ctl")
	missing := func(t *testing.T) {
		t.Helper()
		g.settle(t, "no params found for policy binding")
		for i := range servers {
			wants(t, "the gated Lease, by Tenure too", g.tenure[i].Post(t.Context(), g.leases(), lease("ctl", "tenure", 0), nil), "no params found")
			wants(t, "the gated Lease, by an administrator", g.everyone[i].Post(t.Context(), g.leases(), lease("ctl", "p1", 0), nil), "no params found")
			name := fmt.Sprintf("other-%d-%d", i, time.Now().UnixNano())
			wants(t, "another Lease", g.pod[i].Post(t.Context(), g.leases(), lease(name, "p1", 0), nil), "")
			wants(t, "its renewal", g.pod[i].Patch(t.Context(), g.leases()+"/"+name, cluster.MergePatch, lease(name, "p1", 0), nil), "")
			wants(t, "its deletion", g.pod[i].Delete(t.Context(), g.leases()+"/"+name, nil), "")
			wants(t, "a Lease of that name elsewhere", g.everyone[i].Post(t.Context(), lab.Leases("default")+"?dryRun=All", lease("ctl", "p1", 0), nil), "")
			node, err := shared.Client(i, "system:node:"+name, "system:nodes", "people")
			must(t, err)
			wants(t, "a node's heartbeat", node.Post(t.Context(), lab.Leases("kube-node-lease"), lease(name, name, 0), nil), "")
			wants(t, "what people do", g.person[i].Post(t.Context(), "/api/v1/namespaces/"+g.name+"/configmaps", lab.Object{"metadata": lab.Object{"name": name}}, nil), "")
		}
	}
	missing(t)
	g.create(t)
	g.set(t, g.closed(6))
	wants(t, "Tenure holds the Lease", g.tenure[0].Post(t.Context(), g.leases(), lease("ctl", "tenure: cluster-b leads", 0), nil), "")
	must(t, g.tenure[0].Delete(t.Context(), g.objects()+"/gate", nil))
	g.settle(t, "no params found for policy binding")
	wants(t, "the Lease that is there", g.pod[0].Patch(t.Context(), g.leases()+"/ctl", cluster.MergePatch, lease("ctl", "p1", 0), nil), "no params found")
	must(t, shared.AdminClient(0).Delete(t.Context(), lab.Bindings+"/"+g.gate.PolicyName()+"-delete", nil))
	must(t, lab.Eventually(t.Context(), func(ctx context.Context) error { return g.everyone[0].Delete(ctx, g.leases()+"/ctl", nil) }))
	missing(t)

	g.mcl.ResourceVersion, g.mcl.UID, g.mcl.Status = "", "", nil
	g.create(t)
	g.settle(t, "epoch=none")
	g.set(t, g.closed(8))
}

// TestTypes: the API server's own check of the expressions finds nothing.
func TestTypes(t *testing.T) {
	t.Parallel()
	g := newGated(t, "ctl")
	for _, s := range append(g.gate.Sets(), policy.Status(lab.Account, maxGrant)) {
		var p admissionv1.ValidatingAdmissionPolicy
		must(t, lab.Eventually(t.Context(), func(ctx context.Context) error {
			if err := shared.AdminClient(0).Get(ctx, lab.Policies+"/"+s.Policy.Name, &p); err != nil {
				return err
			}
			if p.Status.TypeChecking == nil || p.Status.ObservedGeneration != p.Generation {
				return fmt.Errorf("%s has not been checked", p.Name)
			}
			return nil
		}))
		for _, w := range p.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s: %s", p.Name, w.FieldRef, w.Warning)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/internal/lab"
	"tenure.dev/operator/policy"
	"tenure.dev/test/cluster"
)

// asMap returns the object as JSON would have it, so that fields can be left out.
func asMap(t *testing.T, v any) lab.Object {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	var o lab.Object
	must(t, json.Unmarshal(b, &o))
	return o
}

// TestTransitions: what Tenure itself may not do to a status, in each way that the
// API knows. The rules stand at the root: at status, a write without one would go
// round them.
func TestTransitions(t *testing.T) {
	t.Parallel()
	g := newGated(t, "ctl")
	g.create(t)
	must(t, g.status(t, g.closed(6)))
	const stays, falls, reopened, closing = "status once set stays set", "epoch and closedEpoch never fall",
		"a closed epoch stays closed", "closing sets closedEpoch to the epoch in the same write"
	reset := func(t *testing.T, s v1alpha1.MultiClusterLeaseStatus) { // forwards only
		t.Helper()
		must(t, g.status(t, s))
	}
	open := func(epoch int64) v1alpha1.MultiClusterLeaseStatus { return g.open(epoch, time.Minute, "ctl") }
	for _, c := range []struct {
		what    string
		before  v1alpha1.MultiClusterLeaseStatus
		change  func(s lab.Object) // nil removes the status
		refusal string
	}{
		{"removed while closed", g.closed(6), nil, stays},
		{"opened at a closed epoch", g.closed(6), func(s lab.Object) { s["leading"] = true }, reopened},
		{"opened at a closed epoch by lowering closedEpoch", g.closed(6), func(s lab.Object) { s["leading"], s["closedEpoch"] = true, 5 }, falls},
		{"epoch lowered", g.closed(6), func(s lab.Object) { s["epoch"] = 5 }, falls},
		{"both lowered", g.closed(6), func(s lab.Object) { s["epoch"], s["closedEpoch"] = 5, 5 }, falls},
		{"opened", g.closed(6), func(s lab.Object) { s["leading"], s["epoch"] = true, 7 }, ""},
		{"removed while open", open(7), nil, stays},
		{"renewed", open(7), func(s lab.Object) {
			s["validUntil"] = time.Now().Add(70 * time.Second).UTC().Format(metav1.RFC3339Micro)
		}, ""},
		{"closed without closedEpoch", open(7), func(s lab.Object) { s["leading"] = false }, closing},
		{"closed at an older epoch, a newer one taken", open(7), func(s lab.Object) { s["leading"], s["epoch"] = false, 8 }, closing},
		{"closedEpoch lowered", open(7), func(s lab.Object) { s["closedEpoch"] = 5 }, falls},
		{"epoch lowered while open", open(7), func(s lab.Object) { s["epoch"] = 6 }, falls},
		{"closed", open(7), func(s lab.Object) { s["leading"], s["closedEpoch"] = false, 7 }, ""},
	} {
		for way, do := range map[string]func(o lab.Object) error{
			"PUT": func(o lab.Object) error {
				return g.tenure[1].Put(t.Context(), g.objects()+"/gate/status?dryRun=All", o, nil)
			},
			"merge patch": func(o lab.Object) error {
				return g.tenure[1].Patch(t.Context(), g.objects()+"/gate/status?dryRun=All", cluster.MergePatch, lab.Object{"status": o["status"]}, nil)
			},
			"JSON patch": func(o lab.Object) error {
				p := lab.Object{"op": "replace", "path": "/status", "value": o["status"]}
				if o["status"] == nil {
					p = lab.Object{"op": "remove", "path": "/status"}
				}
				return g.tenure[1].Patch(t.Context(), g.objects()+"/gate/status?dryRun=All", cluster.JSONPatch, []lab.Object{p}, nil)
			},
			"apply": func(o lab.Object) error {
				delete(o["metadata"].(lab.Object), "managedFields")
				return g.tenure[1].Patch(t.Context(), g.objects()+"/gate/status?dryRun=All&force=true&fieldManager=tenure", cluster.ApplyPatch, o, nil)
			},
		} {
			reset(t, c.before)
			if way == "apply" { // what is left out goes away only if it was applied
				o := asMap(t, g.mcl)
				delete(o["metadata"].(lab.Object), "managedFields")
				must(t, g.tenure[0].Patch(t.Context(), g.objects()+"/gate/status?force=true&fieldManager=tenure", cluster.ApplyPatch, o, &g.mcl))
				if c.change == nil {
					continue // the PUT owns it too: see below
				}
			}
			o := asMap(t, g.mcl)
			if c.change == nil {
				delete(o, "status")
			} else {
				c.change(o["status"].(lab.Object))
			}
			wants(t, c.what+" by "+way, do(o), c.refusal)
		}
	}
	t.Run("through the object itself nothing changes", func(t *testing.T) {
		before := *g.mcl.Status
		o := asMap(t, g.mcl)
		delete(o, "status")
		must(t, g.tenure[0].Put(t.Context(), g.objects()+"/gate", o, nil))
		must(t, g.person[0].Patch(t.Context(), g.objects()+"/gate", cluster.MergePatch, lab.Object{"status": nil}, nil))
		must(t, g.person[0].Patch(t.Context(), g.objects()+"/gate", cluster.MergePatch, lab.Object{"status": lab.Object{"leading": true, "epoch": 99}}, nil))
		o = asMap(t, g.mcl)
		o["metadata"] = lab.Object{"name": "gate"}
		o["status"].(lab.Object)["epoch"] = 99
		must(t, g.person[0].Patch(t.Context(), g.objects()+"/gate?force=true&fieldManager=x", cluster.ApplyPatch, o, nil))
		must(t, g.tenure[0].Get(t.Context(), g.objects()+"/gate", &g.mcl))
		if got := *g.mcl.Status; got.Epoch != before.Epoch || got.ClosedEpoch != before.ClosedEpoch || got.Leading != before.Leading {
			t.Errorf("the status became %+v, was %+v", got, before)
		}
	})
	t.Run("applied, then left out", func(t *testing.T) {
		g := newGated(t, "ctl")
		g.create(t)
		o := asMap(t, g.mcl)
		o["metadata"] = lab.Object{"name": "gate"}
		o["status"] = asMap(t, g.closed(6))
		path := g.objects() + "/gate/status?force=true&fieldManager=tenure"
		must(t, g.tenure[0].Patch(t.Context(), path, cluster.ApplyPatch, o, nil))
		delete(o, "status")
		wants(t, "apply without a status", g.tenure[0].Patch(t.Context(), path, cluster.ApplyPatch, o, nil), stays)
	})
}

// TestStatusIsTenures: nobody else writes a status, and no grant is longer than it
// can be.
func TestStatusIsTenures(t *testing.T) {
	t.Parallel()
	g := newGated(t, "ctl")
	g.create(t)
	must(t, g.status(t, g.closed(6)))
	const refusal = "only " + lab.Account + " writes it"
	for i := range servers {
		for who, c := range map[string]*cluster.Client{"a pod": g.pod[i], "a person": g.person[i], "an administrator": g.everyone[i]} {
			next := g.mcl
			s := g.open(7, time.Minute, "ctl")
			next.Status = &s
			path := g.objects() + "/gate/status"
			wants(t, who+" by PUT", c.Put(t.Context(), path, next, nil), refusal)
			wants(t, who+" by merge patch", c.Patch(t.Context(), path, cluster.MergePatch, lab.Object{"status": s}, nil), refusal)
			wants(t, who+" by JSON patch", c.Patch(t.Context(), path, cluster.JSONPatch, []lab.Object{{"op": "replace", "path": "/status/leader", "value": "x"}}, nil), refusal)
			o := asMap(t, next)
			o["metadata"] = lab.Object{"name": "gate"}
			wants(t, who+" by apply", c.Patch(t.Context(), path+"?force=true&fieldManager=x", cluster.ApplyPatch, o, nil), refusal)
			wants(t, who+" to remove it", c.Patch(t.Context(), path, cluster.MergePatch, lab.Object{"status": nil}, nil), "status once set stays set")
		}
	}
}

// TestLongGrant: a grant ends soon after the stamp of the write that makes it.
func TestLongGrant(t *testing.T) {
	t.Parallel()
	g := newGated(t, "ctl")
	g.create(t)
	must(t, g.status(t, g.closed(6)))
	const refusal = "validUntil is more than 120 s past this API server's clock"
	for range 5 { // also within one second, when the stamp stays
		wants(t, "as long as allowed", g.status(t, g.open(7, maxGrant*time.Second-5*time.Second, "ctl")), "")
		wants(t, "longer", g.status(t, g.open(7, maxGrant*time.Second+5*time.Second, "ctl")), refusal)
		wants(t, "much longer", g.status(t, g.open(7, 10*365*24*time.Hour, "ctl")), refusal)
	}
	closed := g.closed(7)
	closed.ValidUntil = metav1.NewMicroTime(time.Now().Add(time.Hour))
	wants(t, "closed, whatever it says", g.status(t, closed), "")
}

// TestSpec: what the schema refuses, with what to do.
func TestSpec(t *testing.T) {
	t.Parallel()
	g := newGated(t, "ctl")
	g.create(t)
	must(t, g.status(t, g.closed(6)))
	spec := func(s lab.Object) lab.Object { return s["spec"].(lab.Object) }
	leases := func(list ...lab.Object) []lab.Object { return list }
	for _, c := range []struct {
		what    string
		change  func(spec lab.Object)
		fresh   bool // in a new object, else in the one that is there
		refusal string
	}{
		{"lock changed", func(s lab.Object) { s["lock"] = "gs://bucket/other" }, false, "lock is immutable: tenure ungate in every cluster"},
		{"a Lease taken off", func(s lab.Object) { s["leases"] = leases(lab.Object{"name": "other"}) }, false, "a gated Lease cannot be taken off the list: tenure ungate opens it"},
		{"no Lease left", func(s lab.Object) { s["leases"] = leases() }, false, "spec.leases"},
		{"leases removed", func(s lab.Object) { delete(s, "leases") }, false, "spec.leases"},
		{"a Lease added", func(s lab.Object) { s["leases"] = leases(lab.Object{"name": "other"}, lab.Object{"name": "ctl"}) }, false, ""},
		{"a cluster added", func(s lab.Object) { s["clusters"] = []string{"cluster-a", "cluster-b", "cluster-c"} }, false, ""},
		{"a cluster twice", func(s lab.Object) { s["clusters"] = []string{"cluster-a", "cluster-a"} }, false, "clusters names one twice"},
		{"no lock", func(s lab.Object) { s["lock"] = "" }, true, "spec.lock"},
		{"no clusters", func(s lab.Object) { s["clusters"] = []string{} }, true, "spec.clusters"},
		{"a cluster's name", func(s lab.Object) { s["clusters"] = []string{"Cluster A"} }, true, "spec.clusters[0]"},
		{"a Lease twice", func(s lab.Object) { s["leases"] = leases(lab.Object{"name": "a"}, lab.Object{"name": "a"}) }, true, "Duplicate value"},
		{"half of the elector's settings", func(s lab.Object) { s["leases"] = leases(lab.Object{"name": "a", "renewDeadlineSeconds": 10}) }, true, "declared together or not at all"},
		{"the deadline past the duration", func(s lab.Object) {
			s["leases"] = leases(lab.Object{"name": "a", "leaseDurationSeconds": 10, "renewDeadlineSeconds": 10, "retryPeriodSeconds": 2})
		}, true, "renewDeadlineSeconds must be below leaseDurationSeconds"},
		{"the deadline past the default duration", func(s lab.Object) {
			s["leases"] = leases(lab.Object{"name": "a", "renewDeadlineSeconds": 20, "retryPeriodSeconds": 2})
		}, true, "renewDeadlineSeconds must be below leaseDurationSeconds"},
		{"enforcement misspelt", func(s lab.Object) { s["enforcement"] = "enforced" }, true, `"Enforced", "Advisory"`},
		{"a duration of a second", func(s lab.Object) { s["leaseDurationSeconds"] = 1 }, true, "greater than or equal to 2"},
		{"no skew", func(s lab.Object) { s["skewSeconds"] = 0 }, true, "greater than or equal to 1"},
		{"all settings", func(s lab.Object) {
			s["leases"] = leases(lab.Object{"name": "a", "leaseDurationSeconds": 15, "renewDeadlineSeconds": 10, "retryPeriodSeconds": 2, "releaseMeansStopped": true})
			s["enforcement"], s["leaseDurationSeconds"], s["periodSeconds"], s["skewSeconds"] = "Advisory", 40, 3, 2
		}, true, ""},
	} {
		o := asMap(t, g.mcl)
		delete(o, "status")
		c.change(spec(o))
		var err error
		if c.fresh {
			o["metadata"] = lab.Object{"name": "new"}
			err = g.person[0].Post(t.Context(), g.objects()+"?dryRun=All", o, nil)
		} else {
			err = g.person[0].Put(t.Context(), g.objects()+"/gate?dryRun=All", o, nil)
		}
		wants(t, c.what, err, c.refusal)
	}
}

func TestPolicyName(t *testing.T) {
	t.Parallel()
	long := policy.Gate{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("a", 253)}
	other := policy.Gate{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("a", 252) + "b"}
	for _, s := range long.Sets() {
		if n := len(s.Policy.Name); n > 253 {
			t.Errorf("%s is %d letters long", s.Policy.Name, n)
		}
	}
	if long.PolicyName() == other.PolicyName() {
		t.Error("two long names became one")
	}
}

func TestRevision(t *testing.T) {
	t.Parallel()
	a := policy.Gate{Namespace: "n", Name: "a", Leases: []string{"x"}, Account: "system:serviceaccount:s:t"}
	b := a
	if a.Revision() != b.Revision() || a.Revision() == "" {
		t.Errorf("revisions of one gate: %q and %q", a.Revision(), b.Revision())
	}
	b.Leases = []string{"x", "y"}
	if a.Revision() == b.Revision() {
		t.Error("another list of Leases has the same revision")
	}
	b = a
	b.Account = "it's"
	if a.Revision() == b.Revision() {
		t.Error("another account has the same revision")
	}
}

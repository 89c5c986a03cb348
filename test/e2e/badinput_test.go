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
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/test/cluster"
	"tenure.dev/test/testbed"
)

// A complaint is a condition that is to be false, and what it is to say.
type complaint struct {
	site, kind, reason string
	says               []string
}

// TestBadInput: each is a mistake that people make. No cluster leads by it, and a
// condition says why.
func TestBadInput(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := folder(t)
	gcs, err := testbed.StartGCS(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gcs.Close)
	if err := gcs.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	// twin has a's identity, bare no admission policies, and poor no right to make some.
	l, err := Start(ctx, Options{
		Dir: dir, Programs: programs(t), Clusters: []string{"a", "b", "twin", "bare", "poor"}, Lock: gcs.LockURL(bucket, object),
		Lease: leaseDuration, Renew: renewDeadline, Retry: retryPeriod, Log: t.Logf,
		Cluster: func(site string, c *cluster.Options) {
			if site == "bare" {
				c.DisableAdmission = []string{"ValidatingAdmissionPolicy"}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	sites := make(map[string]*Site)
	for _, s := range l.Sites {
		sites[s.Name] = s
	}
	sites["twin"].Identity = "a"
	if err := sites["poor"].Cluster.AdminClient(0).Delete(ctx, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/tenure-install", nil); err != nil {
		t.Fatal(err)
	}
	hanging := hangingKubeconfig(t, dir)
	type object = *v1alpha1.MultiClusterLease
	at := func(name string) string { return gcs.LockURL(bucket, name) }
	cases := []struct {
		name    string
		objects map[string]func(object) // by site
		wants   []complaint
	}{
		{
			"too-short", map[string]func(object){"a": func(o object) { o.Spec.LeaseDurationSeconds = 10 }},
			[]complaint{{"a", v1alpha1.ConditionSettingsAccepted, v1alpha1.ReasonTooShort, []string{"10 is too small", "stopAfter", "21s"}}},
		},
		{
			"twice", map[string]func(object){"a": func(o object) { o.Spec.Leases[0].Name = "too-short" }},
			[]complaint{{"a", v1alpha1.ConditionLockReachable, v1alpha1.ReasonLeaseGatedTwice, []string{"demo/too-short"}}},
		},
		{
			"differ", map[string]func(object){"a": nil, "b": func(o object) { o.Spec.LeaseDurationSeconds = 30 }},
			[]complaint{
				{"a", v1alpha1.ConditionSettingsAccepted, v1alpha1.ReasonSettingsDiffer, []string{`"a"`, `"b"`, "30s", "21s"}},
				{"b", v1alpha1.ConditionSettingsAccepted, v1alpha1.ReasonSettingsDiffer, []string{`"a"`, `"b"`, "30s", "21s"}},
			},
		},
		{
			"unknown", map[string]func(object){"a": func(o object) { o.Spec.Clusters = []string{"a"} }, "b": func(o object) { o.Spec.Clusters = []string{"a"} }},
			[]complaint{
				{"a", v1alpha1.ConditionMembersReady, v1alpha1.ReasonUnknownMember, []string{`"b"`}},
				{"b", v1alpha1.ConditionMembersReady, "", []string{`"b"`}},
			},
		},
		{
			"missing", map[string]func(object){"a": func(o object) { o.Spec.Clusters = []string{"a", "nowhere"} }},
			[]complaint{{"a", v1alpha1.ConditionMembersReady, v1alpha1.ReasonNotReady, []string{`"nowhere"`, "has no entry"}}},
		},
		{
			"other-lock", map[string]func(object){"a": nil, "b": func(o object) { o.Spec.Lock = at("quite-another") }},
			[]complaint{
				{"a", v1alpha1.ConditionMembersReady, v1alpha1.ReasonNotReady, []string{`"b"`, "same lock"}},
				{"b", v1alpha1.ConditionMembersReady, v1alpha1.ReasonNotReady, []string{`"a"`, "same lock"}},
			},
		},
		{
			"twins", map[string]func(object){"a": nil, "twin": nil, "b": nil},
			[]complaint{{"a|twin", v1alpha1.ConditionLockReachable, v1alpha1.ReasonDuplicateIdentity, []string{`"a"`}}},
		},
		{
			"no-rights", map[string]func(object){"poor": nil},
			[]complaint{{"poor", v1alpha1.ConditionEnforced, v1alpha1.ReasonPoliciesForbidden, []string{"admission policies", "tenure-install"}}},
		},
		{
			"no-admission", map[string]func(object){"bare": nil},
			[]complaint{{"bare", v1alpha1.ConditionEnforced, v1alpha1.ReasonNotRefused, []string{"would have admitted"}}},
		},
		{
			"hanging", map[string]func(object){"a": func(o object) { o.Spec.Lock = "k8s://demo/lock?kubeconfig=" + hanging }},
			[]complaint{{"a", v1alpha1.ConditionLockReachable, "", nil}},
		},
		{
			"loopback", map[string]func(object){"a": func(o object) { o.Spec.Lock = "mem://x" }},
			[]complaint{{"a", v1alpha1.ConditionLockReachable, v1alpha1.ReasonBadLock, []string{"mem"}}},
		},
		{
			"settings-in-url", map[string]func(object){"a": func(o object) { o.Spec.Lock += "&ttl=5s" }},
			[]complaint{{"a", v1alpha1.ConditionLockReachable, v1alpha1.ReasonBadLock, []string{"ttl"}}},
		},
	}
	for _, c := range cases {
		for site, change := range c.objects {
			err := sites[site].Gate(ctx, func(o object) {
				o.Name, o.Spec.Leases[0].Name, o.Spec.Lock = c.name, c.name, at(c.name)
				o.Spec.Clusters = []string{"a", "b"}
				if site == "bare" || site == "poor" {
					o.Spec.Clusters = []string{site}
				}
				if change != nil {
					change(o)
				}
			})
			if err != nil {
				t.Errorf("%s in %s: %v", c.name, site, err)
			}
		}
	}
	// A good one beside all of them: it leads.
	for _, s := range []string{"a", "b"} {
		if err := sites[s].Gate(ctx, func(o object) {
			o.Name, o.Spec.Leases[0].Name, o.Spec.Lock, o.Spec.Clusters = "good", "good", at("good"), []string{"a", "b"}
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range l.Sites {
		if err := s.Tenure("t1"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range cases {
		for _, want := range c.wants {
			expect(t, ctx, sites, c.name, want)
		}
	}
	goodLeads(t, ctx, l, sites)
}

// goodLeads: the one that is right leads, and no other.
func goodLeads(t *testing.T, ctx context.Context, l *Lab, sites map[string]*Site) {
	t.Helper()
	leads := ""
	for begin := time.Now(); leads == "" && time.Since(begin) < 2*time.Minute; time.Sleep(200 * time.Millisecond) {
		for _, s := range []string{"a", "b"} {
			if o, err := sites[s].named(ctx, "good"); err == nil && o.Status != nil && o.Status.Leading {
				leads = s
			}
		}
	}
	l.Say("figure: the good one leads in %q", leads)
	if leads == "" {
		t.Errorf("the good one does not lead:\n%s\n%s", sites["a"].Tail("t1", 4000), sites["b"].Tail("t1", 4000))
	}
	for _, s := range l.Sites {
		var list v1alpha1.MultiClusterLeaseList
		if err := s.Cluster.AdminClient(0).Get(ctx, s.Objects(), &list); err != nil {
			t.Error(err)
		}
		for _, o := range list.Items {
			if o.Name != "good" && o.Name != "twins" && o.Status != nil && (o.Status.Leading || o.Status.ClosedEpoch > 0) {
				t.Errorf("%s leads, or has led, by %s", s.Name, o.Name)
			}
		}
	}
}

// named reads an object of a site.
func (s *Site) named(ctx context.Context, name string) (*v1alpha1.MultiClusterLease, error) {
	var o v1alpha1.MultiClusterLease
	err := s.Cluster.AdminClient(0).Get(ctx, s.Objects()+"/"+name, &o)
	return &o, err
}

// expect waits for a complaint, at one of the sites that it names.
func expect(t *testing.T, ctx context.Context, sites map[string]*Site, name string, want complaint) {
	t.Helper()
	var last error
	for begin := time.Now(); time.Since(begin) < 90*time.Second; time.Sleep(200 * time.Millisecond) {
		for site := range strings.SplitSeq(want.site, "|") {
			last = complains(ctx, sites[site], name, want)
			if last == nil {
				return
			}
		}
	}
	t.Errorf("%s in %s: %v", name, want.site, last)
}

func complains(ctx context.Context, s *Site, name string, want complaint) error {
	o, err := s.named(ctx, name)
	if err != nil {
		return err
	}
	if o.Status == nil {
		return errors.New("it has no status")
	}
	c := meta.FindStatusCondition(o.Status.Conditions, want.kind)
	if c == nil {
		return fmt.Errorf("it has no condition %s", want.kind)
	}
	if c.Status != "False" || want.reason != "" && c.Reason != want.reason {
		return fmt.Errorf("condition %s is %s, %s: %s; want False, %s", c.Type, c.Status, c.Reason, c.Message, want.reason)
	}
	for _, says := range want.says {
		if !strings.Contains(c.Message, says) {
			return fmt.Errorf("condition %s, %s, says %q and not %q", c.Type, c.Reason, c.Message, says)
		}
	}
	return nil
}

// hangingKubeconfig is one whose plug-in for credentials never answers.
func hangingKubeconfig(t *testing.T, dir string) string {
	t.Helper()
	type m = map[string]any
	b, err := json.Marshal(m{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []m{{"name": "c", "cluster": m{"server": "https://127.0.0.1:1"}}},
		"contexts": []m{{"name": "c", "context": m{"cluster": "c", "user": "u"}}},
		"users": []m{{"name": "u", "user": m{"exec": m{
			"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": []string{"1000"}, "interactiveMode": "Never",
		}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "hanging.kubeconfig")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

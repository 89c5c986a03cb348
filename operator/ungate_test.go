// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"tenure.dev"
	"tenure.dev/operator"
	"tenure.dev/operator/internal/lab"
	"tenure.dev/operator/policy"
	_ "tenure.dev/store/file"
	"tenure.dev/test/cluster"
)

// TestUngate: a gate is opened only when its object is gone and the others can be
// told; then the Lease that Tenure held is free, and what was half done is finished.
func TestUngate(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := lab.Start(ctx, cluster.Options{Name: "ungate"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	cfg, err := clientcmd.BuildConfigFromFlags("", l.Admin(0))
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := tenure.Open(ctx, "file://"+filepath.Join(t.TempDir(), "lock"), tenure.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := kube.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	admin := l.AdminClient(0)
	if err := l.Namespace(ctx, "demo"); err != nil {
		t.Fatal(err)
	}
	object := lab.Object{
		"apiVersion": "tenure.dev/v1alpha1", "kind": "MultiClusterLease", "metadata": lab.Object{"name": "demo"},
		"spec": lab.Object{"lock": "gs://b/l", "clusters": []string{"a"}, "leases": []lab.Object{{"name": "ctl"}}},
	}
	lease := lab.Object{
		"metadata": lab.Object{"name": "ctl"},
		"spec":     lab.Object{"holderIdentity": "tenure: b leads", "leaseDurationSeconds": 3600, "renewTime": metav1.NowMicro()},
	}
	gate := policy.Gate{Namespace: "demo", Name: "demo", Leases: []string{"ctl"}, Account: lab.Account}
	err = errors.Join(
		admin.Post(ctx, lab.MultiClusterLeases("demo"), object, nil),
		admin.Post(ctx, lab.Leases("demo"), lease, nil),
		l.Apply(ctx, gate.Sets()...),
		operator.WriteMember(ctx, lock.Register, "a", string(ns.UID), func(m *operator.Member) { m.Gated = []string{"demo/ctl", "demo/other"} }))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(ctx context.Context) error {
		_, err := kube.CoordinationV1().Leases("demo").Patch(ctx, "ctl", "application/merge-patch+json", []byte(`{"spec":{"holderIdentity":"pod"}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), gate.PolicyName()) {
			return fmt.Errorf("not refused by the gate, but: %v", err) //nolint:errorlint // it may be nil
		}
		return nil
	}
	if err := lab.Eventually(ctx, refused); err != nil {
		t.Fatal(err)
	}

	u := operator.Ungating{Kube: kube, Register: lock.Register, Cluster: "a", Namespace: "demo", Name: "demo"}
	if _, err := u.Do(ctx); !errors.Is(err, operator.ErrStillThere) {
		t.Errorf("with its object there: %v, expected ErrStillThere", err)
	}
	if err := admin.Delete(ctx, lab.MultiClusterLeases("demo")+"/demo", nil); err != nil {
		t.Fatal(err)
	}
	away := u
	away.Register = awayRegister{}
	if _, err := away.Do(ctx); !errors.Is(err, errAway) {
		t.Errorf("with the store away: %v", err)
	}
	if err := refused(ctx); err != nil {
		t.Error("after two refusals to ungate:", err)
	}

	// Somebody began, and died: nothing refuses any more, and the Lease is still held.
	if err := admin.Delete(ctx, lab.Bindings+"/"+gate.PolicyName(), nil); err != nil {
		t.Fatal(err)
	}
	names, err := u.Do(ctx)
	if err != nil || !slices.Equal(names, []string{"demo/ctl"}) {
		t.Fatalf("opened %v, %v", names, err)
	}
	members, err := operator.Members(ctx, lock.Register)
	if err != nil || !slices.Equal(members["a"].Gated, []string{"demo/other"}) {
		t.Errorf("the entry beside the lock is %+v, %v", members["a"], err)
	}
	free(ctx, t, kube)

	// Again from the beginning, with the API server's policy still in force when the
	// Lease is to be emptied.
	if err := l.Apply(ctx, gate.Sets()...); err != nil {
		t.Fatal(err)
	}
	if err := lab.Eventually(ctx, refused); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Do(ctx); err != nil {
		t.Fatal(err)
	}
	free(ctx, t, kube)
	for _, name := range []string{gate.PolicyName(), gate.PolicyName() + "-delete"} {
		_, err := kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("policy %s is still there: %v", name, err)
		}
	}
}

// free sees that Tenure does not hold the Lease any more, and holds it again for
// what comes next.
func free(ctx context.Context, t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	l, err := kube.CoordinationV1().Leases("demo").Get(ctx, "ctl", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *l.Spec.HolderIdentity != "" {
		t.Errorf("the Lease is held by %q", *l.Spec.HolderIdentity)
	}
	holder := "tenure: b leads"
	l.Spec.HolderIdentity = &holder
	if _, err := kube.CoordinationV1().Leases("demo").Update(ctx, l, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

var errAway = errors.New("the store is away")

// awayRegister is a store that cannot be reached.
type awayRegister struct{}

func (awayRegister) Read(context.Context) ([]byte, tenure.Version, error) { return nil, "", errAway }

func (awayRegister) Write(context.Context, []byte, tenure.Version) (tenure.Version, error) {
	return "", errAway
}

func (r awayRegister) Sibling(string) tenure.Register { return r }

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package lab makes real clusters ready for tests of the gate: the custom
// resource, Tenure's accounts, and admission policies.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/policy"
	"tenure.dev/test/cluster"
)

// Tenure's namespace and accounts.
const (
	System  = "tenure-system"
	Account = "system:serviceaccount:" + System + ":tenure"
)

// Paths of resources.
const (
	Policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
	Bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
	CRDs     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	rbac     = "/apis/rbac.authorization.k8s.io/v1"
)

// Leases returns the path of a namespace's Leases, MultiClusterLeases that of its
// objects.
func Leases(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
}

// MultiClusterLeases returns the path of a namespace's objects.
func MultiClusterLeases(namespace string) string {
	return "/apis/tenure.dev/v1alpha1/namespaces/" + namespace + "/multiclusterleases"
}

// Object is a JSON object.
type Object = map[string]any

// A Lab is a cluster that knows Tenure's custom resource and accounts.
type Lab struct {
	*cluster.Cluster
}

// Start starts a cluster and installs what all tests need. Ctx bounds the
// starting. The caller closes it.
func Start(ctx context.Context, o cluster.Options) (*Lab, error) {
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	l := &Lab{Cluster: c}
	if err := l.install(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("lab: %w", err)
	}
	return l, nil
}

func (l *Lab) install(ctx context.Context) error {
	err := fs.WalkDir(v1alpha1.CRDs, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		crd, err := fs.ReadFile(v1alpha1.CRDs, path)
		if err != nil {
			return err
		}
		return l.AdminClient(0).Patch(ctx, CRDs+"/multiclusterleases.tenure.dev?fieldManager=lab&force=true", cluster.ApplyPatch, crd, nil)
	})
	if err != nil {
		return err
	}
	if err := l.Namespace(ctx, System, "tenure", "tenure-probe"); err != nil {
		return err
	}
	err = l.Bind(ctx, "", "tenure", "cluster-admin", Object{"kind": "ServiceAccount", "name": "tenure", "namespace": System})
	if err != nil {
		return err
	}
	for i := range l.APIServers() {
		err := Eventually(ctx, func(ctx context.Context) error {
			return l.AdminClient(i).Get(ctx, MultiClusterLeases("default"), nil)
		})
		if err != nil {
			return fmt.Errorf("API server %d: the custom resource is not served: %w", i, err)
		}
	}
	return nil
}

// Namespace makes a namespace with service accounts.
func (l *Lab) Namespace(ctx context.Context, name string, accounts ...string) error {
	admin := l.AdminClient(0)
	if err := admin.Post(ctx, "/api/v1/namespaces", Object{"metadata": Object{"name": name}}, nil); err != nil {
		return err
	}
	for _, a := range accounts {
		if err := admin.Post(ctx, "/api/v1/namespaces/"+name+"/serviceaccounts", Object{"metadata": Object{"name": a}}, nil); err != nil {
			return err
		}
	}
	return nil
}

// Role makes a Role of the rules in a namespace, or a ClusterRole for the empty
// namespace, and binds it to the subjects.
func (l *Lab) Role(ctx context.Context, namespace, name string, rules []Object, subjects ...Object) error {
	path := rbac + "/clusterroles"
	if namespace != "" {
		path = rbac + "/namespaces/" + namespace + "/roles"
	}
	if err := l.AdminClient(0).Post(ctx, path, Object{"metadata": Object{"name": name}, "rules": rules}, nil); err != nil {
		return err
	}
	return l.bind(ctx, namespace, name, name, namespace != "", subjects)
}

// Bind binds a ClusterRole in a namespace, or everywhere for the empty one.
func (l *Lab) Bind(ctx context.Context, namespace, name, clusterRole string, subjects ...Object) error {
	return l.bind(ctx, namespace, name, clusterRole, false, subjects)
}

func (l *Lab) bind(ctx context.Context, namespace, name, role string, own bool, subjects []Object) error {
	path, kind := rbac+"/clusterrolebindings", "ClusterRole"
	if namespace != "" {
		path = rbac + "/namespaces/" + namespace + "/rolebindings"
	}
	if own {
		kind = "Role"
	}
	return l.AdminClient(0).Post(ctx, path, Object{
		"metadata": Object{"name": name}, "subjects": subjects,
		"roleRef": Object{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
	}, nil)
}

// Token returns a token of a service account.
func (l *Lab) Token(ctx context.Context, namespace, account string) (string, error) {
	var r authenticationv1.TokenRequest
	err := l.AdminClient(0).Post(ctx, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token", r, &r)
	return r.Status.Token, err
}

// Account returns a client of API server i for a service account.
func (l *Lab) Account(ctx context.Context, i int, namespace, account string) (*cluster.Client, error) {
	token, err := l.Token(ctx, namespace, account)
	if err != nil {
		return nil, err
	}
	return l.TokenClient(i, token), nil
}

// Apply writes a policy and its binding.
func (l *Lab) Apply(ctx context.Context, sets ...policy.Set) error {
	for _, s := range sets {
		p, b := s.Policy.DeepCopy(), s.Binding.DeepCopy()
		p.APIVersion, p.Kind = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"
		b.APIVersion, b.Kind = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"
		const query = "?fieldManager=lab&force=true"
		if err := l.AdminClient(0).Patch(ctx, Policies+"/"+p.Name+query, cluster.ApplyPatch, p, nil); err != nil {
			return err
		}
		if err := l.AdminClient(0).Patch(ctx, Bindings+"/"+b.Name+query, cluster.ApplyPatch, b, nil); err != nil {
			return err
		}
	}
	return nil
}

// Eventually asks check until it returns nil, for as long as a busy machine may
// take, and returns its last error.
func Eventually(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return last
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"tenure.dev/operator/policy"
)

// errPoliciesForbidden: the policies are not as they should be, and this account
// may not write them.
var errPoliciesForbidden = errors.New("the admission policies are missing or differ, and this account may not write them: bind the ClusterRole tenure-install to it, or give the operator --install-kubeconfig for an account that may")

// Apply sees that a policy and its binding are there as given, and writes them if
// they are not. It reports whether it wrote. A policy is never deleted here.
func Apply(ctx context.Context, kube kubernetes.Interface, s policy.Set) (wrote bool, err error) {
	a, err := applyPolicy(ctx, kube, s.Policy)
	if err != nil {
		return a, forbidden(err)
	}
	b, err := applyBinding(ctx, kube, s.Binding)
	return a || b, forbidden(err)
}

func forbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w: %w", errPoliciesForbidden, err)
	}
	return err
}

func applyPolicy(ctx context.Context, kube kubernetes.Interface, want *admissionv1.ValidatingAdmissionPolicy) (bool, error) {
	policies := kube.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	have, err := policies.Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = policies.Create(ctx, want, metav1.CreateOptions{FieldManager: "tenure"})
		return err == nil, wrap("create ValidatingAdmissionPolicy", want.Name, err)
	}
	if err != nil {
		return false, wrap("read ValidatingAdmissionPolicy", want.Name, err)
	}
	meta, changed := mergeMeta(have.ObjectMeta, want.ObjectMeta)
	if !changed && equality.Semantic.DeepEqual(have.Spec, want.Spec) {
		return false, nil
	}
	next := have.DeepCopy()
	next.ObjectMeta, next.Spec = meta, want.Spec
	_, err = policies.Update(ctx, next, metav1.UpdateOptions{FieldManager: "tenure"})
	return err == nil, wrap("update ValidatingAdmissionPolicy", want.Name, err)
}

func applyBinding(ctx context.Context, kube kubernetes.Interface, want *admissionv1.ValidatingAdmissionPolicyBinding) (bool, error) {
	bindings := kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	have, err := bindings.Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = bindings.Create(ctx, want, metav1.CreateOptions{FieldManager: "tenure"})
		return err == nil, wrap("create ValidatingAdmissionPolicyBinding", want.Name, err)
	}
	if err != nil {
		return false, wrap("read ValidatingAdmissionPolicyBinding", want.Name, err)
	}
	meta, changed := mergeMeta(have.ObjectMeta, want.ObjectMeta)
	if !changed && equality.Semantic.DeepEqual(have.Spec, want.Spec) {
		return false, nil
	}
	next := have.DeepCopy()
	next.ObjectMeta, next.Spec = meta, want.Spec
	_, err = bindings.Update(ctx, next, metav1.UpdateOptions{FieldManager: "tenure"})
	return err == nil, wrap("update ValidatingAdmissionPolicyBinding", want.Name, err)
}

func wrap(doing, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", doing, name, err)
}

// mergeMeta puts our labels and annotations over what is there.
func mergeMeta(have, want metav1.ObjectMeta) (metav1.ObjectMeta, bool) {
	next := *have.DeepCopy()
	changed := merge(&next.Labels, want.Labels)
	return next, merge(&next.Annotations, want.Annotations) || changed
}

func merge(have *map[string]string, want map[string]string) (changed bool) {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if (*have)[k] != want[k] {
			if *have == nil {
				*have = make(map[string]string)
			}
			(*have)[k] = want[k]
			changed = true
		}
	}
	return changed
}

// Remove deletes a policy and its binding: the binding first, so that nothing is
// refused for a policy that is half gone.
func Remove(ctx context.Context, kube kubernetes.Interface, name string) error {
	if err := unbind(ctx, kube, name); err != nil {
		return err
	}
	err := kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return wrap("delete ValidatingAdmissionPolicy", name, err)
	}
	return nil
}

// unbind deletes a policy's binding: the policy stays, and refuses nothing.
func unbind(ctx context.Context, kube kubernetes.Interface, name string) error {
	err := kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return wrap("delete ValidatingAdmissionPolicyBinding", name, err)
	}
	return nil
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"

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
	adm := kube.AdmissionregistrationV1()
	a, err := apply(ctx, adm.ValidatingAdmissionPolicies(), "ValidatingAdmissionPolicy", s.Policy,
		func(have *admissionv1.ValidatingAdmissionPolicy) any { return &have.Spec },
		func(next *admissionv1.ValidatingAdmissionPolicy) { next.Spec = s.Policy.Spec })
	if err != nil {
		return a, forbidden(err)
	}
	b, err := apply(ctx, adm.ValidatingAdmissionPolicyBindings(), "ValidatingAdmissionPolicyBinding", s.Binding,
		func(have *admissionv1.ValidatingAdmissionPolicyBinding) any { return &have.Spec },
		func(next *admissionv1.ValidatingAdmissionPolicyBinding) { next.Spec = s.Binding.Spec })
	return a || b, forbidden(err)
}

func forbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w: %w", errPoliciesForbidden, err)
	}
	return err
}

// api is the part of client-go's typed clients that apply needs.
type api[T any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Create(ctx context.Context, obj T, o metav1.CreateOptions) (T, error)
	Update(ctx context.Context, obj T, o metav1.UpdateOptions) (T, error)
}

// apply sees that one object is there with want's metadata, as far as that says
// something, and want's spec.
func apply[T metav1.Object](ctx context.Context, c api[T], kind string, want T, spec func(T) any, setSpec func(T)) (bool, error) {
	name := want.GetName()
	have, err := c.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = c.Create(ctx, want, metav1.CreateOptions{FieldManager: "tenure"})
		return err == nil, wrap("create "+kind, name, err)
	}
	if err != nil {
		return false, wrap("read "+kind, name, err)
	}
	labels, a := merged(have.GetLabels(), want.GetLabels())
	annotations, b := merged(have.GetAnnotations(), want.GetAnnotations())
	if !a && !b && equality.Semantic.DeepEqual(spec(have), spec(want)) {
		return false, nil
	}
	have.SetLabels(labels)
	have.SetAnnotations(annotations)
	setSpec(have)
	_, err = c.Update(ctx, have, metav1.UpdateOptions{FieldManager: "tenure"})
	return err == nil, wrap("update "+kind, name, err)
}

func wrap(doing, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", doing, name, err)
}

// merged puts what is wanted over what is there, and reports whether that differs.
func merged(have, want map[string]string) (map[string]string, bool) {
	next := maps.Clone(have)
	if next == nil {
		next = make(map[string]string)
	}
	maps.Copy(next, want)
	return next, !maps.Equal(have, next)
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

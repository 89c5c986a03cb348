// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"tenure.dev"
	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/policy"
)

// Ungating opens a gate for good: a person's act.
type Ungating struct {
	// Kube reaches the cluster, with an account that may delete policies.
	Kube kubernetes.Interface
	// Register is the lock, unless Offline.
	Register tenure.Register
	// Cluster is the cluster's identity, Namespace and Name are the object's.
	Cluster, Namespace, Name string
	// Offline leaves the cluster's entry beside the lock as it is.
	Offline bool
}

// Do takes the names off the cluster's entry beside the lock first, and only then
// removes the policies and Tenure's hold. It returns the names that are open. Doing it
// again finishes what was half done.
func (u Ungating) Do(ctx context.Context) ([]string, error) {
	if err := u.deleted(ctx); err != nil {
		return nil, err
	}
	g := policy.Gate{Namespace: u.Namespace, Name: u.Name}
	gate, err := u.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, g.PolicyName(), metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the gate's policy %s: %w", g.PolicyName(), err)
	}
	var leases, names []string
	for _, rule := range gate.Spec.MatchConstraints.ResourceRules {
		leases = append(leases, rule.ResourceNames...)
	}
	for _, l := range leases {
		names = append(names, u.Namespace+"/"+l)
	}
	if !u.Offline {
		uid, err := clusterUID(ctx, u.Kube)
		if err != nil {
			return nil, err
		}
		if err := u.rightLock(ctx); err != nil {
			return nil, err
		}
		err = WriteMember(ctx, u.Register, u.Cluster, uid, func(m *Member) {
			m.Gated = slices.DeleteFunc(m.Gated, func(n string) bool { return slices.Contains(names, n) })
		})
		if err != nil {
			return nil, fmt.Errorf("the gate stays closed, since the others cannot be told: %w", err)
		}
	}
	if err := Remove(ctx, u.Kube, g.PolicyName()+"-delete"); err != nil {
		return nil, err
	}
	// The policy goes last: it has the names, for whoever has to finish this.
	if err := unbind(ctx, u.Kube, g.PolicyName()); err != nil {
		return nil, err
	}
	var errs []error
	for _, l := range leases {
		errs = append(errs, u.free(ctx, l))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return names, Remove(ctx, u.Kube, g.PolicyName())
}

// ErrOtherLock says that the cluster has no entry beside the lock that was named.
var ErrOtherLock = errors.New("this cluster has no entry beside that lock: is it the object's spec.lock? The gate stays closed")

// rightLock refuses a lock under which this cluster has never gated anything: the
// others would not be told.
func (u Ungating) rightLock(ctx context.Context) error {
	siblings, ok := u.Register.(tenure.Siblinger)
	if !ok {
		return ErrOtherLock
	}
	m, _, err := readMember(ctx, siblings.Sibling(MembersPrefix+u.Cluster))
	if err != nil {
		return fmt.Errorf("the gate stays closed: %w", err)
	}
	if m.Cluster != u.Cluster {
		return fmt.Errorf("%w (cluster %q)", ErrOtherLock, u.Cluster)
	}
	return nil
}

// ErrStillThere says that the object exists, so that Tenure would gate again.
var ErrStillThere = errors.New("the MultiClusterLease is still there: delete it first, or Tenure gates again")

func (u Ungating) deleted(ctx context.Context) error {
	err := u.Kube.Discovery().RESTClient().Get().AbsPath("/apis", v1alpha1.GroupVersion.String(), "namespaces", u.Namespace, "multiclusterleases", u.Name).Do(ctx).Error()
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read MultiClusterLease %s/%s: %w", u.Namespace, u.Name, err)
	}
	return fmt.Errorf("%w (%s/%s)", ErrStillThere, u.Namespace, u.Name)
}

// free empties a Lease that Tenure holds. API servers go by a policy for a moment
// after its binding is gone.
func (u Ungating) free(ctx context.Context, name string) error {
	for {
		err := u.tryFree(ctx, name)
		again := apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsConflict(err) // a policy without parameter says Invalid
		if !again || !pause(ctx, 200*time.Millisecond) {
			return err
		}
	}
}

func (u Ungating) tryFree(ctx context.Context, name string) error {
	leases := u.Kube.CoordinationV1().Leases(u.Namespace)
	l, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read Lease %s/%s: %w", u.Namespace, name, err)
	}
	if !strings.HasPrefix(holderOf(l), holdPrefix) {
		return nil
	}
	empty, second := "", int32(1)
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = &empty, &second
	if _, err := leases.Update(ctx, l, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("empty Lease %s/%s: %w", u.Namespace, name, err)
	}
	return nil
}

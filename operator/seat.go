// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"tenure.dev"
	"tenure.dev/internal/replica"
)

// SeatName is the Lease that the replica which acts for the cluster holds.
const SeatName = "tenure"

const (
	annotationNonces = "tenure.dev/nonces"
	annotationBeat   = "tenure.dev/beat"
)

// seatLease keeps the cluster's seat in a Lease.
type seatLease struct {
	kube      kubernetes.Interface
	namespace string
	seconds   int32
}

// Get implements [replica.Store].
func (s seatLease) Get(ctx context.Context) (replica.State, string, error) {
	l, err := s.kube.CoordinationV1().Leases(s.namespace).Get(ctx, SeatName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return replica.State{}, "", nil
	}
	if err != nil {
		return replica.State{}, "", fmt.Errorf("read Lease %s/%s: %w", s.namespace, SeatName, err)
	}
	return seatState(l), seatVersion(l), nil
}

func seatVersion(l *coordinationv1.Lease) string { return string(l.UID) + "/" + l.ResourceVersion }

// seatState reads a seat. What cannot be read counts as nothing: it makes nobody
// go on with a term.
func seatState(l *coordinationv1.Lease) replica.State {
	var st replica.State
	if l.Spec.HolderIdentity != nil {
		st.Holder = *l.Spec.HolderIdentity
	}
	if json.Unmarshal([]byte(l.Annotations[annotationNonces]), &st.Nonces) != nil {
		st.Nonces = nil
	}
	st.Beat, _ = strconv.ParseInt(l.Annotations[annotationBeat], 10, 64) //nolint:errcheck // as above
	return st
}

// Put implements [replica.Store].
func (s seatLease) Put(ctx context.Context, st replica.State, version string) (string, error) {
	nonces, err := json.Marshal(st.Nonces)
	if err != nil {
		return "", fmt.Errorf("write Lease %s/%s: %w", s.namespace, SeatName, err)
	}
	now := metav1.NewMicroTime(time.Now())
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: SeatName,
			Annotations: map[string]string{annotationNonces: string(nonces), annotationBeat: strconv.FormatInt(st.Beat, 10)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &st.Holder, LeaseDurationSeconds: &s.seconds, RenewTime: &now},
	}
	leases := s.kube.CoordinationV1().Leases(s.namespace)
	if version == "" {
		l, err = leases.Create(ctx, l, metav1.CreateOptions{})
	} else {
		uid, rv, _ := strings.Cut(version, "/")
		l.UID, l.ResourceVersion = types.UID(uid), rv
		l, err = leases.Update(ctx, l, metav1.UpdateOptions{})
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return "", fmt.Errorf("write Lease %s/%s: %w: %w", s.namespace, SeatName, tenure.ErrConflict, err)
	case err != nil:
		return "", fmt.Errorf("write Lease %s/%s: %w", s.namespace, SeatName, err)
	}
	return seatVersion(l), nil
}

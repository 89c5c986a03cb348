// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenure.dev/api/v1alpha1"
)

// watchObjects follows the objects of a namespace, and hands each to its worker.
func (op *Operator) watchObjects(ctx context.Context, namespace string) {
	for ctx.Err() == nil {
		if err := op.follow(ctx, namespace); err != nil && ctx.Err() == nil {
			op.log.Warn("cannot follow the MultiClusterLeases", "namespace", namespace, "error", err)
		}
		if !pause(ctx, time.Second) {
			return
		}
	}
}

// follow lists, and watches from there, for a few minutes at most: a watch that is
// silently dead must not go unnoticed for long.
func (op *Operator) follow(ctx context.Context, namespace string) error {
	var list v1alpha1.MultiClusterLeaseList
	listing, cancel := context.WithTimeout(ctx, requestTimeout)
	err := op.objects.List(listing, &list, client.InNamespace(namespace))
	cancel()
	if err != nil {
		return fmt.Errorf("list MultiClusterLeases: %w", err)
	}
	present := make(map[types.NamespacedName]bool)
	for i := range list.Items {
		present[client.ObjectKeyFromObject(&list.Items[i])] = true
		op.object(&list.Items[i])
	}
	op.mu.Lock()
	op.synced = true
	for key, w := range op.workers {
		if !present[key] && (namespace == metav1.NamespaceAll || key.Namespace == namespace) {
			w.gone()
		}
	}
	op.mu.Unlock()
	watching, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	changes, err := op.objects.Watch(watching, &list, client.InNamespace(namespace), &client.ListOptions{
		Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion},
	})
	if err != nil {
		return fmt.Errorf("watch MultiClusterLeases: %w", err)
	}
	defer changes.Stop()
	for {
		select {
		case ev, ok := <-changes.ResultChan():
			if !ok {
				return nil
			}
			mcl, is := ev.Object.(*v1alpha1.MultiClusterLease)
			switch {
			case !is:
				return fmt.Errorf("watch MultiClusterLeases: %v", ev.Object)
			case ev.Type == watch.Deleted:
				op.mu.Lock()
				if w := op.workers[client.ObjectKeyFromObject(mcl)]; w != nil {
					w.gone()
				}
				op.mu.Unlock()
			default:
				op.object(mcl)
			}
		case <-watching.Done():
			return nil
		}
	}
}

// object hands an object to its worker, which is started if there is none.
func (op *Operator) object(mcl *v1alpha1.MultiClusterLease) {
	op.mu.Lock()
	defer op.mu.Unlock()
	key := client.ObjectKeyFromObject(mcl)
	w := op.workers[key]
	if w == nil {
		w = newWorker(op, key)
		op.workers[key] = w
		go w.run(op.ctx)
	}
	w.see(mcl)
}

// newer reports whether resource version a is later than b. API servers since
// 1.35 promise that they can be compared; earlier ones kept to it.
func newer(a, b string) bool {
	x, err1 := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	if err1 != nil || err2 != nil {
		return a != b
	}
	return x > y
}

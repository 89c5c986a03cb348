// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"tenure.dev/operator/policy"
)

// watchPolicies has a worker compare its policies as soon as somebody has changed or
// deleted one. They are compared every minute too.
func (op *Operator) watchPolicies(ctx context.Context) {
	adm := op.watching.AdmissionregistrationV1()
	options := metav1.ListOptions{LabelSelector: policy.LabelManaged + "=true"}
	kinds := map[string]func(context.Context, metav1.ListOptions) (watch.Interface, error){
		"ValidatingAdmissionPolicies":       adm.ValidatingAdmissionPolicies().Watch,
		"ValidatingAdmissionPolicyBindings": adm.ValidatingAdmissionPolicyBindings().Watch,
	}
	for kind, begin := range kinds {
		go func() {
			for pause(ctx, time.Second) {
				if err := op.followPolicies(ctx, begin, options); err != nil && ctx.Err() == nil {
					op.log.Debug("cannot watch", "kind", kind, "error", err)
				}
			}
		}()
	}
}

func (op *Operator) followPolicies(ctx context.Context, begin func(context.Context, metav1.ListOptions) (watch.Interface, error), options metav1.ListOptions) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	changes, err := begin(ctx, options)
	if err != nil {
		return err
	}
	defer changes.Stop()
	op.policyChanged("") // what happened before the watch began
	for {
		select {
		case ev, ok := <-changes.ResultChan():
			if !ok {
				return nil
			}
			obj, err := meta.Accessor(ev.Object)
			if err != nil {
				return fmt.Errorf("watch: %v", ev.Object)
			}
			if ev.Type == watch.Modified || ev.Type == watch.Deleted {
				op.policyChanged(obj.GetAnnotations()[policy.AnnotationName])
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// policyChanged has the worker of an object compare its policies; "" means all.
func (op *Operator) policyChanged(object string) {
	op.mu.Lock()
	defer op.mu.Unlock()
	for key, w := range op.workers {
		if object == "" || object == key.Namespace+"/"+key.Name {
			w.mu.Lock()
			w.compare = true
			w.mu.Unlock()
			w.wake()
		}
	}
}

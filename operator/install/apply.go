// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Apply applies YAML documents in their order, by server-side apply, and waits for
// the definitions among them. Done is told each object. It blocks until all is
// there, at most until ctx ends; what was applied before an error stays.
func Apply(ctx context.Context, c client.Client, documents []byte, done func(kind, name string)) error {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(documents), 4096)
	for {
		var obj unstructured.Unstructured
		err := decoder.Decode(&obj)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("install: read a document: %w", err)
		}
		if obj.Object == nil {
			continue
		}
		if err := applyOne(ctx, c, &obj); err != nil {
			return fmt.Errorf("install: apply %s %s: %w", obj.GetKind(), obj.GetName(), err)
		}
		done(obj.GetKind(), obj.GetName())
	}
}

// newNamespace is how long an API server may take to know a namespace that was just
// made.
const newNamespace = 3 * time.Second

func applyOne(ctx context.Context, c client.Client, obj *unstructured.Unstructured) error {
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("tenure-install"), client.ForceOwnership)
	begin := time.Now()
	for meta.IsNoMatchError(err) || apierrors.IsNotFound(err) { // its definition, or its namespace, is very new
		if ns := obj.GetNamespace(); ns != "" && time.Since(begin) > newNamespace {
			return fmt.Errorf("is there a namespace %s? create it first: %w", ns, err)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
		err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("tenure-install"), client.ForceOwnership)
	}
	if err != nil || obj.GetKind() != "CustomResourceDefinition" {
		return err
	}
	for {
		have := obj.DeepCopy()
		if err := c.Get(ctx, client.ObjectKeyFromObject(obj), have); err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(have.Object, "status", "conditions") //nolint:errcheck // not there yet
		for _, item := range conditions {
			if m, ok := item.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
				return nil
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("it is not established: %w", ctx.Err())
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"tenure.dev"
	"tenure.dev/storetest"
	"tenure.dev/test/cluster"
)

func TestConformance(t *testing.T) {
	ns := namespace(t)
	admin := server(t).AdminClient(0)
	fresh := func() string { return fmt.Sprintf("lock-%d.x", shared.n.Add(1)) }
	storetest.Run(t, storetest.Harness{
		New: func(t storetest.T) tenure.Register { return open(t, ns, fresh(), server(t).Admin(0)) },
		Open: func(t storetest.T) (a, b tenure.Register) {
			name := fresh()
			return open(t, ns, name, server(t).Admin(0)), open(t, ns, name, server(t).Admin(0))
		},
		Delete: func(t storetest.T, r tenure.Register) {
			if err := admin.Delete(t.Context(), leases(ns, r.(*Register).name()), nil); err != nil {
				t.Fatalf("delete: %v", err)
			}
		},
		// The annotation is what a person would put there; a Lease holds 256 kB.
		Corrupt: func(t storetest.T, r tenure.Register, value []byte) {
			value = value[:min(len(value), 150_000)]
			name := r.(*Register).name()
			with := map[string]any{
				"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
				"metadata": map[string]any{"name": name, "namespace": ns, "annotations": map[string]any{noteValue: nil, noteBytes: encode64(value)}},
				"spec":     nil,
			}
			err := admin.Patch(t.Context(), leases(ns, name), cluster.MergePatch, with, nil)
			if errors.Is(err, cluster.ErrNotFound) {
				delete(with["metadata"].(map[string]any)["annotations"].(map[string]any), noteValue)
				err = admin.Post(t.Context(), leases(ns, ""), with, nil)
			}
			if err != nil {
				t.Fatalf("corrupt: %v", err)
			}
		},
		Histories: 4, Clients: 4, Requests: 25,
	})
}

func TestProbe(t *testing.T) {
	r := open(t, namespace(t), "lock", server(t).Admin(0))
	must(t, tenure.Probe(context.Background(), r.Sibling(".probe/h.host"), 0))
}

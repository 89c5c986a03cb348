// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"

	"tenure.dev/operator/internal/lab"
	"tenure.dev/test/cluster"
)

// gone waits until a path leads to nothing.
func gone(t *testing.T, path string) {
	t.Helper()
	must(t, lab.Eventually(t.Context(), func(ctx context.Context) error {
		if err := shared.AdminClient(0).Get(ctx, path, nil); !errors.Is(err, cluster.ErrNotFound) {
			return fmt.Errorf("%s is still there (%w)", path, err)
		}
		return nil
	}))
}

// TestDelete: a gated Lease goes with its namespace or its owner, and otherwise by
// Tenure only.
func TestDelete(t *testing.T) {
	t.Parallel()
	const refusal = "a gated Lease is not deleted"
	g := newGated(t, "ctl")
	g.create(t)
	g.set(t, g.closed(6))
	g.hold(t, "ctl", "tenure")
	path := g.leases() + "/ctl"
	for i := range servers {
		must(t, lab.Eventually(t.Context(), func(ctx context.Context) error {
			if err := g.pod[i].Delete(ctx, path+"?dryRun=All", nil); !errors.Is(err, cluster.ErrForbidden) {
				return fmt.Errorf("API server %d does not refuse yet: %w", i, err)
			}
			return nil
		}))
		for who, c := range map[string]*cluster.Client{"the pod": g.pod[i], "a person": g.person[i], "an administrator": g.everyone[i]} {
			wants(t, who+": by name", c.Delete(t.Context(), path, nil), refusal)
			wants(t, who+": all", c.Delete(t.Context(), g.leases(), nil), refusal)
			wants(t, who+": all of a field", c.Delete(t.Context(), g.leases()+"?fieldSelector=metadata.name=ctl", nil), refusal)
			wants(t, who+": a dry run", c.Delete(t.Context(), path+"?dryRun=All", nil), refusal)
			wants(t, who+": in the background", c.Delete(t.Context(), path, lab.Object{"propagationPolicy": "Background"}), refusal)
			wants(t, who+": in the foreground", c.Delete(t.Context(), path, lab.Object{"propagationPolicy": "Foreground"}), refusal)
			// As kubectl delete leases --all does: a list, and each by its name.
			must(t, g.tenure[i].Post(t.Context(), g.leases(), lease("other", "x", 0), nil))
			var list coordinationv1.LeaseList
			must(t, c.Get(t.Context(), g.leases(), &list))
			if len(list.Items) != 2 {
				t.Fatalf("%d Leases, want ctl and other", len(list.Items))
			}
			for _, l := range list.Items {
				wants(t, who+": "+l.Name, c.Delete(t.Context(), g.leases()+"/"+l.Name, nil), map[string]string{"ctl": refusal}[l.Name])
			}
		}
	}
	uid := g.read(t, "ctl").UID
	if uid == "" {
		t.Error("the Lease is gone")
	}

	t.Run("by Tenure", func(t *testing.T) {
		wants(t, "delete", g.tenure[0].Delete(t.Context(), path, nil), "")
		g.hold(t, "ctl", "tenure")
	})
	t.Run("with its owner", func(t *testing.T) {
		var owner struct{ Metadata struct{ UID string } }
		configMaps := "/api/v1/namespaces/" + g.name + "/configmaps"
		must(t, g.person[0].Post(t.Context(), configMaps, lab.Object{"metadata": lab.Object{"name": "owner"}}, &owner))
		must(t, g.tenure[0].Patch(t.Context(), path, cluster.MergePatch, lab.Object{"metadata": lab.Object{"ownerReferences": []lab.Object{
			{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.Metadata.UID},
		}}}, nil))
		must(t, g.person[0].Delete(t.Context(), configMaps+"/owner", nil))
		gone(t, path)
		g.hold(t, "ctl", "tenure")
	})
	t.Run("without the object", func(t *testing.T) {
		must(t, g.tenure[0].Delete(t.Context(), g.objects()+"/gate", nil))
		g.settle(t, "no params found")
		wants(t, "by name", g.everyone[0].Delete(t.Context(), path, nil), refusal)
	})
	t.Run("with its namespace", func(t *testing.T) {
		must(t, shared.AdminClient(0).Delete(t.Context(), "/api/v1/namespaces/"+g.name, nil))
		gone(t, "/api/v1/namespaces/"+g.name)
	})
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenure.dev/operator/install"
	"tenure.dev/test/cluster"
)

const samples = "../../deploy/samples"

// TestSamples: a real API server takes all samples, after what install applies.
func TestSamples(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := start(ctx, t)
	docs, err := install.Manifests(install.Options{System: "tenure-system", Namespaces: []string{"demo"}, Policies: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := install.Apply(ctx, c, docs, func(string, string) {}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(samples + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples in %s: %v", samples, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, obj := range decode(t, text) {
				if err := dryRun(ctx, c, obj); err != nil {
					t.Errorf("%s %s/%s: %v", obj.GetKind(), obj.GetNamespace(), obj.GetName(), err)
				}
			}
		})
	}

	// What the API server would let pass proves nothing if it lets everything pass.
	for _, tt := range []struct{ name, old, new, want string }{
		{"misspelt field", "renewDeadlineSeconds", "renewDeadline", "field not declared"},
		{"half declared", "    retryPeriodSeconds: 2 #", "    #", "declared together"},
		{"one cluster twice", "[a, b]", "[a, a]", "names one twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, err := os.ReadFile(samples + "/bucket.yaml")
			if err != nil {
				t.Fatal(err)
			}
			bad := strings.Replace(string(text), tt.old, tt.new, 1)
			if bad == string(text) {
				t.Fatalf("the sample has no %q", tt.old)
			}
			err = dryRun(ctx, c, decode(t, []byte(bad))[0])
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the API server said %v, expected %q", err, tt.want)
			}
		})
	}
}

// start starts a cluster with the namespaces of the samples, and returns a client.
func start(ctx context.Context, t *testing.T) client.Client {
	t.Helper()
	c, err := cluster.Start(ctx, cluster.Options{Name: "samples"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for _, ns := range []string{"demo", "locks"} {
		err := c.AdminClient(0).Post(ctx, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": ns}}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Admin(0))
	if err != nil {
		t.Fatal(err)
	}
	kube, err := client.New(cfg, client.Options{Scheme: runtime.NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

func decode(t *testing.T, text []byte) (out []*unstructured.Unstructured) {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(obj)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if obj.Object != nil {
			out = append(out, obj)
		}
	}
}

// dryRun is kubectl apply --server-side --dry-run=server.
func dryRun(ctx context.Context, c client.Client, obj *unstructured.Unstructured) error {
	return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("samples"), client.DryRunAll)
}

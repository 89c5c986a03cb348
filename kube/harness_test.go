// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"tenure.dev"
	"tenure.dev/test/cluster"
	"tenure.dev/test/fault"
)

// shared is the API server of all tests, started by the first that needs it.
var shared struct {
	once sync.Once
	c    *cluster.Cluster
	err  error
	n    atomic.Int64
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.c != nil {
		shared.c.Close()
	}
	os.Exit(code)
}

func server(t interface {
	Fatalf(string, ...any)
	Helper()
}) *cluster.Cluster {
	t.Helper()
	shared.once.Do(func() {
		shared.c, shared.err = cluster.Start(context.Background(), cluster.Options{Name: "arbiter"})
	})
	if shared.err != nil {
		t.Fatalf("start a cluster: %v", shared.err)
	}
	return shared.c
}

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// namespace makes a new one.
func namespace(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("locks-%d", shared.n.Add(1))
	must(t, server(t).AdminClient(0).Post(t.Context(), "/api/v1/namespaces", map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name},
	}, nil))
	t.Cleanup(func() {
		// Its controller does not run: what is in it goes by hand.
		ctx := context.Background()
		_ = server(t).AdminClient(0).Delete(ctx, leases(name, ""), nil)
		_ = server(t).AdminClient(0).Delete(ctx, "/api/v1/namespaces/"+name, nil)
	})
	return name
}

func leases(namespace, name string) string {
	return strings.TrimSuffix("/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases/"+name, "/")
}

// open opens a lock as a program does, by its URL.
func open(t interface {
	Fatalf(string, ...any)
	Helper()
}, namespace, name, kubeconfig string, params ...string) *Register {
	t.Helper()
	url := fmt.Sprintf("k8s://%s/%s?kubeconfig=%s", namespace, name, kubeconfig)
	for _, p := range params {
		url += "&" + p
	}
	lock, err := tenure.Open(context.Background(), url, tenure.Vars{})
	if err != nil {
		t.Fatalf("open %s: %v", url, err)
	}
	return lock.Register.(*Register)
}

// lease reads a Lease past the driver.
func lease(t *testing.T, namespace, name string) *coordinationv1.Lease {
	t.Helper()
	var l coordinationv1.Lease
	must(t, server(t).AdminClient(0).Get(t.Context(), leases(namespace, name), &l))
	return &l
}

// patch merges into a Lease, as kubectl does.
func patch(t *testing.T, namespace, name string, with map[string]any) {
	t.Helper()
	must(t, server(t).AdminClient(0).Patch(t.Context(), leases(namespace, name), cluster.MergePatch, with, nil))
}

// account makes a service account with a Role of these verbs on Leases and
// returns a token for it.
func account(t *testing.T, namespace, name string, verbs ...string) string {
	t.Helper()
	admin, ctx := server(t).AdminClient(0), t.Context()
	meta := map[string]any{"name": name, "namespace": namespace}
	must(t, admin.Post(ctx, "/api/v1/namespaces/"+namespace+"/serviceaccounts", map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}, nil))
	if len(verbs) > 0 {
		rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace
		must(t, admin.Post(ctx, rbac+"/roles", map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta,
			"rules": []any{map[string]any{"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "verbs": verbs}},
		}, nil))
		must(t, admin.Post(ctx, rbac+"/rolebindings", map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta,
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": name, "namespace": namespace}},
		}, nil))
	}
	return token(t, namespace, name)
}

func token(t *testing.T, namespace, name string) string {
	t.Helper()
	var answer struct{ Status struct{ Token string } }
	must(t, server(t).AdminClient(0).Post(t.Context(), "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+name+"/token",
		map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{}}, &answer))
	return answer.Status.Token
}

// kubeconfig writes a kubeconfig for a server at an address, by the authority ca.
func kubeconfig(t *testing.T, address string, ca []byte, user clientcmdapi.AuthInfo) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, path, address, ca, user)
	return path
}

func writeKubeconfig(t *testing.T, path, address string, ca []byte, user clientcmdapi.AuthInfo) {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + address, CertificateAuthorityData: ca}
	config.AuthInfos["u"] = &user
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	must(t, clientcmd.WriteToFile(*config, path))
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// record returns a record of ours as the core writes it.
func record(t *testing.T, r tenure.Record) []byte {
	t.Helper()
	value, err := r.Marshal()
	must(t, err)
	return value
}

func wantText(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q; want %q in it", err, text)
		}
	}
}

func encode64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// testCA is a certificate to put where one must be.
func testCA(t *testing.T) []byte {
	t.Helper()
	a, err := fault.NewAuthority()
	must(t, err)
	return a.PEM
}

func userInfo(token string) clientcmdapi.AuthInfo { return clientcmdapi.AuthInfo{Token: token} }

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(childEnv); how != "" {
		child(how)
	}
	os.Exit(m.Run())
}

// start starts a cluster that ends with the test.
func start(t *testing.T, o Options) *Cluster {
	t.Helper()
	begin := time.Now()
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	t.Logf("%s: %q ready after %v", o.Name, c.Parts(), time.Since(begin).Round(10*time.Millisecond))
	return c
}

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually asks check until it returns nil, for as long as a busy machine may
// take.
func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

type object map[string]any

const configMaps = "/api/v1/namespaces/default/configmaps"

func create(t *testing.T, c *Cluster, name string) {
	t.Helper()
	must(t, c.AdminClient(0).Post(t.Context(), configMaps, object{"metadata": object{"name": name}}, nil))
}

// names returns those of the ConfigMaps that tests made.
func names(t *testing.T, c *Client) []string {
	t.Helper()
	var list struct{ Items []meta }
	must(t, c.Get(t.Context(), configMaps, &list))
	var names []string
	for _, i := range list.Items {
		if i.Metadata.Name != "kube-root-ca.crt" { // of the controller manager
			names = append(names, i.Metadata.Name)
		}
	}
	return names
}

type meta struct {
	Metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
}

func TestClient(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Name: "client", AuditBodies: true})
	ctx, admin := t.Context(), c.AdminClient(0)
	someone, err := c.Client(0, "someone", "a-group")
	must(t, err)
	var made meta
	must(t, admin.Post(ctx, configMaps, `{"metadata":{"name":"x"}}`, &made))
	stale := made
	must(t, admin.Patch(ctx, configMaps+"/x", MergePatch, object{"data": object{"k": "v"}}, &made))
	must(t, admin.Put(ctx, configMaps+"/x", made, nil))

	for name, tt := range map[string]struct {
		do   func() error
		want error
	}{
		"a name twice": {func() error {
			return admin.Post(ctx, configMaps, object{"metadata": object{"name": "x"}}, nil)
		}, ErrConflict},
		"a stale version": {func() error { return admin.Put(ctx, configMaps+"/x", stale, nil) }, ErrConflict},
		"no such name":    {func() error { return admin.Get(ctx, configMaps+"/y", nil) }, ErrNotFound},
		"no rights":       {func() error { return someone.Get(ctx, configMaps+"/x", nil) }, ErrForbidden},
		"a bad token":     {func() error { return c.TokenClient(0, "nonsense").Get(ctx, configMaps, nil) }, ErrUnauthorized},
		"a bad name": {func() error {
			return admin.Post(ctx, configMaps, object{"metadata": object{"name": "X"}}, nil)
		}, ErrInvalid},
	} {
		if err := tt.do(); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
	}

	// An answer that has no sentinel.
	var status *StatusError
	if err := admin.Post(ctx, configMaps, "{", nil); !errors.As(err, &status) || status.Code != 400 || status.Message == "" {
		t.Errorf("half an object: got %v, want a StatusError with code 400", err)
	}

	seen := make(chan string, 1)
	go func() {
		path := configMaps + "?resourceVersion=" + made.Metadata.ResourceVersion
		if err := admin.Watch(ctx, path, func(e Event) bool { seen <- e.Type; return e.Type != "DELETED" }); err != nil {
			seen <- err.Error()
		}
	}()
	must(t, admin.Delete(ctx, configMaps+"/x", nil))
	for got := range seen {
		if got == "DELETED" {
			break
		}
		if got != "MODIFIED" {
			t.Fatalf("watch: got %s, want DELETED", got)
		}
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Name: "audit", AuditBodies: true})
	leases := "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	must(t, c.AdminClient(0).Post(t.Context(), leases, object{"metadata": object{"name": "l"}, "spec": object{"holderIdentity": "me"}}, nil))
	create(t, c, "x")
	eventually(t, func(context.Context) error {
		events, err := c.Audit(0)
		if err != nil {
			return err
		}
		lease := slices.ContainsFunc(events, func(e AuditEvent) bool {
			return e.Verb == "create" && e.User.Username == "admin" && e.ObjectRef.APIGroup == "coordination.k8s.io" &&
				e.ObjectRef.Name == "l" && e.ResponseStatus.Code == 201 && bytes.Contains(e.RequestObject, []byte("holderIdentity"))
		})
		other := slices.ContainsFunc(events, func(e AuditEvent) bool {
			return e.Verb == "create" && e.ObjectRef.Resource == "configmaps" && e.ObjectRef.Namespace == "default" && e.RequestObject == nil
		})
		if !lease || !other {
			return fmt.Errorf("%d events, the Lease's with its body: %t, the ConfigMap's without: %t", len(events), lease, other)
		}
		return nil
	})
}

// TestWhole has every part there is, and sees each do its work.
func TestWhole(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	c := start(t, Options{
		Name: "whole", APIServers: 2,
		ControllerManager: &Part{LeaderElect: true, LeaseDuration: 6 * time.Second, RenewDeadline: 4 * time.Second, RetryPeriod: time.Second},
		Scheduler:         &Part{LeaderElect: true, LeaseDuration: 7 * time.Second, RenewDeadline: 4 * time.Second, RetryPeriod: time.Second, Server: 1},
		Kwok:              &Part{},
	})
	if d := time.Since(begin); d > 60*time.Second {
		t.Errorf("ready after %v: that is not seconds", d)
	}
	admin := c.AdminClient(1)

	// Each API server is known by a Lease of its own.
	eventually(t, func(ctx context.Context) error {
		var leases struct {
			Items []struct {
				Metadata struct{ Labels map[string]string }
			}
		}
		if err := admin.Get(ctx, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io/identity%3Dkube-apiserver", &leases); err != nil {
			return err
		}
		hosts := make(map[string]bool)
		for _, l := range leases.Items {
			hosts[l.Metadata.Labels["kubernetes.io/hostname"]] = true
		}
		if len(leases.Items) != 2 || !hosts["whole-kube-apiserver-0"] || !hosts["whole-kube-apiserver-1"] {
			return fmt.Errorf("%d identity Leases, of %v: want one of each API server", len(leases.Items), hosts)
		}
		return nil
	})

	// The two that elect do, by durations of their own.
	for name, want := range map[string]int{ControllerManager: 6, Scheduler: 7} {
		eventually(t, func(ctx context.Context) error {
			var lease struct {
				Spec struct {
					HolderIdentity       string
					LeaseDurationSeconds int
				}
			}
			if err := admin.Get(ctx, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/"+name, &lease); err != nil {
				return err
			}
			if got := lease.Spec; got.LeaseDurationSeconds != want || !strings.HasPrefix(got.HolderIdentity, "whole-"+name) {
				return fmt.Errorf("the Lease of %s is %+v, want %d s", name, got, want)
			}
			return nil
		})
	}

	// A node that is not there runs a Deployment's pod.
	must(t, admin.Post(t.Context(), "/api/v1/nodes", object{"metadata": object{"name": "n"}}, nil))
	labels := object{"app": "x"}
	must(t, admin.Post(t.Context(), "/apis/apps/v1/namespaces/default/deployments", object{
		"metadata": object{"name": "x"},
		"spec": object{
			"replicas": 2, "selector": object{"matchLabels": labels},
			"template": object{
				"metadata": object{"labels": labels},
				"spec":     object{"containers": []object{{"name": "c", "image": "none"}}},
			},
		},
	}, nil))
	eventually(t, func(ctx context.Context) error {
		var d struct{ Status struct{ ReadyReplicas int } }
		if err := admin.Get(ctx, "/apis/apps/v1/namespaces/default/deployments/x", &d); err != nil {
			return err
		}
		if d.Status.ReadyReplicas != 2 {
			return fmt.Errorf("%d pods are ready, want 2", d.Status.ReadyReplicas)
		}
		return nil
	})
}

func TestFlags(t *testing.T) {
	t.Parallel()
	c := start(t, Options{
		Name: "flags", DisableAdmission: []string{"ValidatingAdmissionPolicy"},
		APIServerArgs: []string{"--runtime-config=batch/v1=false"},
	})
	admin := c.AdminClient(0)
	if err := admin.Get(t.Context(), "/apis/batch/v1", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("an API that a flag turns off: got %v, want ErrNotFound", err)
	}
	var metrics []byte
	must(t, admin.Get(t.Context(), "/metrics", &metrics))
	create(t, c, "x")
	must(t, admin.Get(t.Context(), "/metrics", &metrics))
	if bytes.Contains(metrics, []byte(`name="ValidatingAdmissionPolicy"`)) {
		t.Error("the admission plugin that was turned off has run")
	}
	if !bytes.Contains(metrics, []byte(`name="NamespaceLifecycle"`)) {
		t.Error("the metrics do not tell which admission plugins ran")
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		o    Options
		want string
	}{
		"no name":           {Options{}, "Options.Name"},
		"a bad name":        {Options{Name: "A b"}, "Options.Name"},
		"too few":           {Options{Name: "a", APIServers: -1}, "Options.APIServers"},
		"no programs":       {Options{Name: "a", Bin: t.TempDir()}, "etcd"},
		"no such server":    {Options{Name: "a", Kwok: &Part{Server: 1}}, "counted from 0"},
		"a flag":            {Options{Name: "a", APIServerArgs: []string{"--no-such-flag"}}, "no-such-flag"},
		"nothing to go on ": {Options{Name: "a", From: filepath.Join(t.TempDir(), "none")}, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Start(t.Context(), tt.o)
			if err == nil {
				c.Close()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, want it to name %q", err, tt.want)
			}
		})
	}
}

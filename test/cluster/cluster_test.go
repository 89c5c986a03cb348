// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"testing"
	"time"
)

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

// eventually polls until check returns nil, for as long as a busy machine may
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

func configMap(name string, data map[string]string) object {
	return object{"metadata": object{"name": name}, "data": data}
}

const configMaps = "/api/v1/namespaces/default/configmaps"

func TestOneAPIServer(t *testing.T) {
	c := start(t, Options{Name: "one"})
	admin := c.AdminClient(0)
	if err := admin.Post(t.Context(), configMaps, configMap("x", nil), nil); err != nil {
		t.Fatal(err)
	}
	if err := admin.Post(t.Context(), configMaps, configMap("x", nil), nil); !errors.Is(err, ErrConflict) {
		t.Errorf("created twice: got %v, want ErrConflict", err)
	}
	someone, err := c.Client(0, "someone", "a-group")
	if err != nil {
		t.Fatal(err)
	}
	if err := someone.Get(t.Context(), configMaps+"/x", nil); !errors.Is(err, ErrForbidden) {
		t.Errorf("read without rights: got %v, want ErrForbidden", err)
	}
}

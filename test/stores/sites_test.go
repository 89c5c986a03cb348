// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenure.dev"
	_ "tenure.dev/kube"
	_ "tenure.dev/store/azblob"
	_ "tenure.dev/store/etcd"
	_ "tenure.dev/store/file"
	_ "tenure.dev/store/gcs"
	_ "tenure.dev/store/mem"
	_ "tenure.dev/store/postgres"
	_ "tenure.dev/store/s3"
	"tenure.dev/test/cluster"
	"tenure.dev/test/testbed"
)

// A site is one running store with its proxies.
type site struct {
	// raw returns the URL of lock n, by the proxy of a side or, with -1, past both.
	raw     func(side, n int) string
	proxies [sides]proxy
	damages []damage
	watches bool
	// served, when set, returns how many requests for records the server has
	// answered: those that read, and those that write.
	served func() (reads, writes int64)
}

func (s *site) url(side, n int, params string) string { return withParams(s.raw(side, n), params) }

// sites are all stores, by name, and how each is started.
var sites = []struct {
	name  string
	start func(t *testing.T, dir string) *site
}{
	{"mem", startMem},
	{"file", startFile},
	{"etcd", startEtcd},
	{"postgres", startPostgres},
	{"k8s", startKube},
	{"s3", startS3},
	{"gs", startGS},
	{"azblob", startAzure},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// overHTTP puts the two proxies before a server.
func (s *site) overHTTP(t *testing.T, target string) (addrs [sides]string) {
	t.Helper()
	for i := range sides {
		p, err := newHTTPProxy(target)
		must(t, err)
		t.Cleanup(p.close)
		s.proxies[i], addrs[i] = p, p.Addr()
	}
	// Whatever is for a key beside a lock is not counted.
	s.served = func() (reads, writes int64) {
		for _, p := range s.proxies {
			for _, r := range p.(*httpProxy).Records() {
				switch {
				case strings.Contains(r.Path, ".candidates") || strings.Contains(r.Query, "candidates") || strings.Contains(r.Query, "list"):
				case r.Method == "GET":
					reads++
				default:
					writes++
				}
			}
		}
		return reads, writes
	}
	return addrs
}

// overTCP does it before several servers.
func (s *site) overTCP(t *testing.T, targets ...string) (addrs [sides][]string) {
	t.Helper()
	for i := range sides {
		ps, err := newTCPProxies(targets...)
		must(t, err)
		t.Cleanup(ps.close)
		s.proxies[i] = ps
		for _, p := range ps {
			addrs[i] = append(addrs[i], p.Addr())
		}
	}
	return addrs
}

func startMem(t *testing.T, _ string) *site {
	return &site{
		raw:     func(_, n int) string { return fmt.Sprintf("mem://%s/%d", strings.ReplaceAll(t.Name(), "/", "-"), n) },
		proxies: [sides]proxy{none{}, none{}}, watches: true,
		damages: []damage{garbled, emptied, foreign, {"deleted", func(_ context.Context, l *lane) error {
			l.direct.(interface{ Delete() }).Delete()
			return nil
		}}},
	}
}

func startFile(_ *testing.T, dir string) *site {
	path := func(n int) string { return filepath.Join(dir, fmt.Sprintf("lock%d", n)) }
	return &site{
		raw:     func(_, n int) string { return "file://" + path(n) },
		proxies: [sides]proxy{none{}, none{}},
		damages: []damage{garbled, emptied, foreign, {"deleted", func(_ context.Context, l *lane) error { return os.Remove(path(l.n)) }}},
	}
}

func startEtcd(t *testing.T, dir string) *site {
	e, err := testbed.StartEtcd(dir, 3, testbed.EtcdOptions{})
	must(t, err)
	t.Cleanup(e.Close)
	key := func(n int) string { return fmt.Sprintf("locks/%d", n) }
	s := &site{watches: true, damages: []damage{garbled, emptied, foreign, {"deleted", func(_ context.Context, l *lane) error {
		return e.Delete(key(l.n))
	}}}}
	addrs := s.overTCP(t, e.Endpoints()...)
	s.raw = func(side, n int) string {
		if side < 0 {
			return e.URL(key(n))
		}
		return fmt.Sprintf("etcd://%s/%s?tls=off", strings.Join(addrs[side], ","), key(n))
	}
	return s
}

func startPostgres(t *testing.T, dir string) *site {
	must(t, os.Chmod(dir, 0o755)) // the server runs as another user
	p, err := testbed.StartPostgres(dir, testbed.PostgresOptions{Settings: map[string]string{"max_connections": "1000"}})
	must(t, err)
	t.Cleanup(p.Close)
	for _, env := range p.Env {
		name, value, _ := strings.Cut(env, "=")
		must(t, os.Setenv(name, value))
	}
	lock, err := tenure.Open(t.Context(), p.URL("init"), tenure.Vars{})
	must(t, err)
	must(t, lock.Register.(tenure.Initializer).Initialize(t.Context()))
	closerOf(lock.Register)()
	key := func(n int) string { return fmt.Sprintf("locks/%d", n) }
	s := &site{damages: []damage{garbled, emptied, foreign, {"deleted", func(_ context.Context, l *lane) error {
		_, err := p.SQL(fmt.Sprintf("DELETE FROM tenure_locks WHERE key = '%s'", key(l.n)))
		return err
	}}}}
	addrs := s.overTCP(t, p.Host)
	s.raw = func(side, n int) string {
		if side < 0 {
			return p.URL(key(n))
		}
		return strings.Replace(p.URL(key(n)), p.Host, addrs[side][0], 1)
	}
	return s
}

func startKube(t *testing.T, dir string) *site {
	c, err := cluster.Start(t.Context(), cluster.Options{Name: "arbiter", Dir: dir})
	must(t, err)
	t.Cleanup(c.Close)
	admin := c.AdminClient(0)
	const namespace = "locks"
	must(t, admin.Post(t.Context(), "/api/v1/namespaces", map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}, nil))
	lease := func(n int) string {
		return fmt.Sprintf("/apis/coordination.k8s.io/v1/namespaces/%s/leases/lock%d", namespace, n)
	}
	s := &site{watches: true, damages: []damage{garbled, emptied,
		{"deleted", func(ctx context.Context, l *lane) error { return admin.Delete(ctx, lease(l.n), nil) }},
		{"a stranger's", func(ctx context.Context, l *lane) error {
			return admin.Patch(ctx, lease(l.n), cluster.MergePatch, map[string]any{"spec": map[string]any{"holderIdentity": "stranger"}}, nil)
		}},
	}}
	addrs := s.overTCP(t, c.APIServer(0))
	var configs [sides]string
	for i := range sides {
		configs[i], err = c.KubeconfigVia(addrs[i][0], 0, "kubernetes-admin", "system:masters")
		must(t, err)
	}
	s.raw = func(side, n int) string {
		config := c.Admin(0)
		if side >= 0 {
			config = configs[side]
		}
		return fmt.Sprintf("k8s://%s/lock%d?kubeconfig=%s", namespace, n, config)
	}
	return s
}

func startS3(t *testing.T, dir string) *site {
	v, err := testbed.StartVersity(dir)
	must(t, err)
	t.Cleanup(v.Close)
	for _, env := range v.Env {
		name, value, _ := strings.Cut(env, "=")
		must(t, os.Setenv(name, value))
	}
	must(t, os.Setenv("AWS_EC2_METADATA_DISABLED", "true")) // nothing outside of this machine is asked
	const bucket = "locks"
	must(t, v.MakeBucket(t.Context(), bucket))
	key := func(n int) string { return fmt.Sprintf("lock%d", n) }
	s := &site{damages: []damage{garbled, emptied, foreign, {"deleted", func(ctx context.Context, l *lane) error {
		return v.Delete(ctx, bucket, key(l.n))
	}}, {"a person's", func(ctx context.Context, l *lane) error {
		return v.Put(ctx, bucket, key(l.n), []byte("hello"))
	}}}}
	addrs := s.overHTTP(t, v.URL)
	s.raw = func(side, n int) string {
		endpoint := v.URL
		if side >= 0 {
			endpoint = "http://" + addrs[side]
		}
		return v.Lock(endpoint, bucket, key(n))
	}
	return s
}

func startGS(t *testing.T, dir string) *site {
	g, err := testbed.StartGCS(dir)
	must(t, err)
	t.Cleanup(g.Close)
	const bucket = "locks"
	must(t, g.CreateBucket(bucket))
	key := func(n int) string { return fmt.Sprintf("lock%d", n) }
	s := &site{damages: []damage{garbled, emptied, foreign, {"deleted", func(_ context.Context, l *lane) error {
		return g.Delete(bucket, key(l.n))
	}}, {"a person's", func(_ context.Context, l *lane) error {
		return g.Put(bucket, key(l.n), []byte("hello"))
	}}}}
	addrs := s.overHTTP(t, g.Endpoint)
	s.raw = func(side, n int) string {
		url := g.LockURL(bucket, key(n))
		if side >= 0 {
			url = strings.Replace(url, strings.TrimPrefix(g.Endpoint, "http://"), addrs[side], 1)
		}
		return url
	}
	return s
}

func startAzure(t *testing.T, dir string) *site {
	a, err := testbed.StartAzurite(dir, testbed.AzuriteTLS{})
	must(t, err)
	t.Cleanup(a.Kill)
	for _, env := range a.Env {
		name, value, _ := strings.Cut(env, "=")
		must(t, os.Setenv(name, value))
	}
	const container = "locks"
	must(t, a.CreateContainer(container))
	key := func(n int) string { return fmt.Sprintf("lock%d", n) }
	s := &site{damages: []damage{garbled, emptied, foreign}}
	addrs := s.overHTTP(t, "http://"+a.Host)
	s.raw = func(side, n int) string {
		if side < 0 {
			return a.URL(container, key(n))
		}
		return a.URLVia(addrs[side], container, key(n))
	}
	return s
}

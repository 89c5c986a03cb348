// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// A pki is a folder with an authority and certificates by it.
type pki struct {
	t         *testing.T
	dir       string
	authority *fault.Authority
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	a, err := fault.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	p := &pki{t, t.TempDir(), a}
	p.write("ca.pem", a.PEM)
	return p
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

// write replaces a file at once: servers read it at any time.
func (p *pki) write(name string, b []byte) {
	p.t.Helper()
	if err := os.WriteFile(p.path(name+".new"), b, 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(p.path(name+".new"), p.path(name)); err != nil {
		p.t.Fatal(err)
	}
}

// issue writes name.pem and name.key.
func (p *pki) issue(name string, end time.Time, hosts ...string) tls.Certificate {
	p.t.Helper()
	c, err := p.authority.Certificate(end, hosts...)
	if err != nil {
		p.t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	p.write(name+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
	return c
}

// start starts a member that wants a client certificate.
func (p *pki) start() *testbed.Etcd {
	p.t.Helper()
	p.issue("server", time.Now().Add(time.Hour), "127.0.0.1", "etcd.test")
	client := p.issue("testbed", time.Now().Add(time.Hour), "testbed")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.authority.PEM)
	return newEtcd(p.t, 1, testbed.EtcdOptions{
		CertFile: p.path("server.pem"), KeyFile: p.path("server.key"), ClientCAFile: p.path("ca.pem"),
		Client: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{client}},
	})
}

// options are those that are right.
func (p *pki) options(endpoint string) Options {
	return Options{Endpoints: []string{endpoint}, CAFile: p.path("ca.pem"), CertFile: p.path("client.pem"), KeyFile: p.path("client.key")}
}

// Certificates are renewed under a running register; one that has expired is
// named as the reason, and mends without a restart.
func TestCertificates(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	e := p.start()
	hour := time.Now().Add(time.Hour)
	p.issue("client", hour, "client")
	r := mustOpen(t, "/lock", p.options(e.Endpoints()[0]))
	v := mustWrite(t, r, "1", "")
	mustFind(t, r, "tls", tenure.FindingOK, "checked")
	expired := time.Now().Add(-time.Minute)
	for _, tt := range []struct {
		name  string
		spoil func()
		mend  func()
		words []string
	}{
		{"the server's has expired", func() { p.issue("server", expired, "127.0.0.1") }, func() { p.issue("server", hour, "127.0.0.1") },
			[]string{"certificate has expired", "renew the server's certificate, or set this machine's clock"}},
		{"the server's is for another host", func() { p.issue("server", hour, "10.0.0.1", "other.test") }, func() { p.issue("server", hour, "127.0.0.1") },
			[]string{"127.0.0.1", "servername"}},
		{"the client's has expired", func() { p.issue("client", expired, "client") }, func() { p.issue("client", hour, "client") },
			[]string{p.path("client.pem"), "has expired"}},
		{"the client's is gone", func() { os.Remove(p.path("client.pem")) }, func() { p.issue("client", hour, "client") },
			[]string{p.path("client.pem"), "no such file", "path and rights"}},
	} {
		mustHold(t, r, "1", v)
		tt.spoil()
		mustHold(t, r, "1", v) // what is connected goes on
		r.Close()
		_, _, err := r.Read(short(t))
		mustTell(t, tt.name, err, tt.words...)
		_, err = r.Write(short(t), []byte("x"), v)
		mustTell(t, tt.name, err, append(tt.words, "nothing was sent")...)
		tt.mend()
	}
	mustHold(t, r, "1", v)

	for name, tt := range map[string]struct {
		change func(*Options)
		words  []string
	}{
		"no client certificate": {func(o *Options) { o.CertFile, o.KeyFile = "", "" }, []string{"client certificate (certfile, keyfile)"}},
		"unknown authority":     {func(o *Options) { o.CAFile = newPKI(t).path("ca.pem") }, []string{"unknown authority", "cafile"}},
		"another name":          {func(o *Options) { o.ServerName = "wrong.test" }, []string{"wrong.test", "servername"}},
		"plain text":            {func(o *Options) { *o = plain(o.Endpoints...) }, []string{"wants TLS", "leave out tls=off"}},
	} {
		opt := p.options(e.Endpoints()[0])
		tt.change(&opt)
		_, _, err := mustOpen(t, "/lock", opt).Read(short(t))
		mustTell(t, name, err, tt.words...)
	}
	p.issue("server", hour, "etcd.test")
	opt := p.options(e.Endpoints()[0])
	opt.ServerName = "etcd.test"
	mustHold(t, mustOpen(t, "/lock", opt), "1", v)
	opt.ServerName = ""
	opt.TLS, opt.CAFile = TLSUnverified, ""
	r = mustOpen(t, "/lock", opt)
	mustHold(t, r, "1", v)
	mustFind(t, r, "tls", tenure.FindingWarning, "not checked")
}

// A leader's term survives that its certificate is renewed, and outlasts one
// that expired as long as its connection does.
func TestCertificateRotatedUnderLeader(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	e := p.start()
	proxy := newProxy(t, e.Endpoints()[0])
	p.issue("client", time.Now().Add(time.Hour), "client")
	r := mustOpen(t, "/lock", p.options(proxy.Addr()))
	initLock(t, r)
	a := contend(t, "a", r)
	a.Await(tenure.EventBegan, ttl)
	p.issue("client", time.Now().Add(-time.Minute), "client")
	if failed := len(a.Renewals(2, 4*ttl)); failed > 0 {
		t.Errorf("%d renewals failed on a connection that was there", failed)
	}
	proxy.Reset()
	proxy.Pass()
	mustTell(t, "renewal", a.Await(tenure.EventFailed, ttl).Err, "client.pem")
	p.issue("client", time.Now().Add(time.Hour), "client")
	a.Renewals(2, 4*ttl)
}

// What is no etcd is told from one that is down.
func TestNotEtcd(t *testing.T) {
	t.Parallel()
	html := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>Please log in</html>")
	})
	one := httptest.NewServer(html)
	defer one.Close()
	two := httptest.NewUnstartedServer(html) // speaks HTTP/2
	two.EnableHTTP2 = true
	two.StartTLS()
	defer two.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() // nobody accepts
	closed, err := testbed.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		opt   Options
		words []string
	}{
		"HTTP/1":      {plain(one.Listener.Addr().String()), []string{"no etcd"}},
		"HTTP/2":      {Options{Endpoints: []string{two.Listener.Addr().String()}, TLS: TLSUnverified}, []string{"not etcd, or a proxy"}},
		"no TLS":      {Options{Endpoints: []string{shared.Endpoints()[0]}}, []string{"check that TLS is spoken there", "tls=off"}},
		"silent":      {plain(silent.Addr().String()), []string{"deadline exceeded"}},
		"closed":      {plain(fmt.Sprintf("127.0.0.1:%d", closed)), []string{"refused", "check that etcd runs there"}},
		"unknown":     {plain("nowhere.invalid:2379"), []string{"nowhere.invalid", "check the host names"}},
		"unencrypted": {Options{Endpoints: []string{one.Listener.Addr().String()}}, []string{"no TLS is spoken there"}},
	} {
		r := mustOpen(t, "/lock", tt.opt)
		_, _, err := r.Read(short(t))
		mustTell(t, name, err, append(tt.words, tt.opt.Endpoints[0])...)
		_, err = r.Write(short(t), []byte("x"), "")
		mustTell(t, name, err, tt.words...)
		_, err = r.List(short(t), ".")
		mustTell(t, name, err, tt.words...)
		if r.Inspect(short(t)) == nil {
			t.Errorf("%s: nothing was found", name)
		}
	}
}

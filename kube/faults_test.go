// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"tenure.dev"
	"tenure.dev/test/fault"
)

// candidateVerbs are those of the Role in the package's documentation.
var candidateVerbs = []string{"get", "list", "watch", "create", "update"}

// proxied is a lock reached through a proxy that can read what passes.
type proxied struct {
	*Register
	proxy     *fault.HTTP
	authority *fault.Authority
	namespace string
	token     string
	file      string
}

func throughProxy(t *testing.T, params ...string) *proxied {
	t.Helper()
	ns := namespace(t)
	p := &proxied{namespace: ns, token: account(t, ns, "candidate", candidateVerbs...)}
	var err error
	p.authority, err = fault.NewAuthority()
	must(t, err)
	cert, err := p.authority.Certificate(time.Now().Add(24*time.Hour), "127.0.0.1")
	must(t, err)
	p.proxy, err = fault.NewHTTPS("https://"+server(t).APIServer(0), nil, cert)
	must(t, err)
	t.Cleanup(p.proxy.Close)
	p.file = kubeconfig(t, p.proxy.Addr(), p.authority.PEM, userInfo(p.token))
	p.Register = open(t, ns, "lock", p.file, params...)
	return p
}

func isPut(r *http.Request) bool  { return r.Method == http.MethodPut }
func isPost(r *http.Request) bool { return r.Method == http.MethodPost }

// Each call is one request, whatever comes of it.
func TestRequests(t *testing.T) {
	p := throughProxy(t)
	ctx := within(t, 20*time.Second)
	calls := func(want ...string) {
		t.Helper()
		var got []string
		for _, r := range p.proxy.Records() {
			got = append(got, r.Method)
			if r.Method == http.MethodGet && r.Query != "" {
				t.Errorf("a read has the query %q: without resourceVersion it is linearizable", r.Query)
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("requests %q, want %q", got, want)
		}
		p.proxy.Forget()
	}
	_, _, err := p.Read(ctx)
	if !errors.Is(err, tenure.ErrNotExist) {
		t.Fatal(err)
	}
	calls("GET")
	v, err := p.Write(ctx, record(t, full), "")
	must(t, err)
	calls("POST")
	v, err = p.Write(ctx, record(t, full), v)
	must(t, err)
	calls("PUT")
	_, _, err = p.Read(ctx)
	must(t, err)
	calls("GET")
	if _, err := p.Write(ctx, record(t, full), ""); !errors.Is(err, tenure.ErrConflict) {
		t.Error(err)
	}
	calls("POST")
	_, err = p.Now(ctx)
	must(t, err)
	calls("GET")
	for _, status := range []int{429, 500, 503} {
		p.proxy.SetRule(fault.Always(nil, fault.Instead(fault.Answer{
			Status: status, Header: http.Header{"Retry-After": {"1"}, "Content-Type": {"application/json"}},
			Body: `{"kind":"Status","apiVersion":"v1","status":"Failure","code":` + http.StatusText(status) + `}`,
		})))
		_, err := p.Write(ctx, record(t, full), v)
		var later tenure.RetryAfterer
		if !errors.As(err, &later) || later.RetryAfter() != time.Second || errors.Is(err, tenure.ErrConflict) {
			t.Errorf("%d: %v", status, err)
		}
		calls("PUT")
		if _, _, err := p.Read(ctx); err == nil || errors.Is(err, tenure.ErrNotExist) {
			t.Errorf("%d: %v", status, err)
		}
		calls("GET")
	}
}

// What comes back instead of an answer is never taken for one.
func TestFalseAnswers(t *testing.T) {
	p := throughProxy(t)
	ctx := within(t, 30*time.Second)
	v, err := p.Write(ctx, record(t, full), "")
	must(t, err)
	status := func(code int, rest string) fault.Answer {
		return fault.Answer{Status: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"kind":"Status","apiVersion":"v1","status":"Failure"` + rest + `}`}
	}
	for name, tt := range map[string]struct {
		answer fault.Answer
		want   string
	}{
		"a login page":               {fault.HTML(200), "not a Kubernetes API server"},
		"a page that says forbidden": {fault.HTML(403), "not a Kubernetes API server"},
		"a page that says not found": {fault.HTML(404), "not a Kubernetes API server"},
		"a page that says conflict":  {fault.HTML(409), "not a Kubernetes API server"},
		"a page that says bad gate":  {fault.HTML(502), "a proxy before it"},
		"a redirect":                 {fault.Answer{Status: 302, Header: http.Header{"Location": {"https://user:secret@login.example/x"}}}, "redirects to login.example"},
		"another object":             {fault.Answer{Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"kind":"List"}`}, "not the Lease that was asked for"},
		"no JSON that says so":       {fault.Answer{Header: http.Header{"Content-Type": {"application/json"}}, Body: `{`}, "cannot be read"},
		"an unknown resource":        {status(404, `,"reason":"NotFound","code":404`), "does not know Leases"},
		"too old a proxy token":      {fault.Answer{Status: 401, Body: "go away"}, "other credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			p.proxy.SetRule(fault.Always(nil, fault.Instead(tt.answer)))
			_, _, err := p.Read(ctx)
			wantText(t, err, tt.want, "k8s: read lease "+p.namespace+"/lock")
			_, werr := p.Write(ctx, record(t, full), v)
			_, cerr := p.Write(ctx, record(t, full), "")
			for _, err := range []error{err, werr, cerr} {
				if err == nil || errors.Is(err, tenure.ErrNotExist) || errors.Is(err, tenure.ErrConflict) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), p.token) {
					t.Errorf("%v", err)
				}
			}
		})
	}
	p.proxy.SetRule(nil)
	if _, got, err := p.Read(ctx); err != nil || got != v {
		t.Errorf("afterwards: version %q, want %q; %v", got, v, err)
	}
}

// A write whose answer is lost has happened, and is not called a conflict; one
// that was cut before has not.
func TestLostAnswers(t *testing.T) {
	p := throughProxy(t)
	ctx := within(t, 30*time.Second)
	for name, tt := range map[string]struct {
		action  fault.Action
		applied bool
	}{
		"applied, then cut":      {fault.LoseAnswer(), true},
		"applied, then 500":      {fault.Afterwards(fault.HTML(500)), true},
		"applied, half answered": {fault.Action{Torn: true}, true},
		"cut before":             {fault.CutBefore(), false},
	} {
		t.Run(name, func(t *testing.T) {
			p.proxy.SetRule(nil)
			_, old, err := p.Read(ctx)
			if err != nil && !errors.Is(err, tenure.ErrNotExist) {
				t.Fatal(err)
			}
			p.proxy.Forget()
			p.proxy.SetRule(fault.Times(1, func(r *http.Request) bool { return isPut(r) || isPost(r) }, tt.action))
			value := []byte(name)
			if _, err := p.Write(ctx, value, old); err == nil || errors.Is(err, tenure.ErrConflict) || ctx.Err() != nil {
				t.Fatalf("error %v; want one that is no conflict", err)
			}
			if n := len(p.proxy.Records()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
			got, v, err := p.Read(ctx)
			if tt.applied != (err == nil && string(got) == name && v != old) {
				t.Errorf("applied: want %t; read %q, %v", tt.applied, got, err)
			}
		})
	}
}

// A request ends with its context, whatever the server does, and the error says
// so.
func TestHanging(t *testing.T) {
	p := throughProxy(t)
	_, _, err := p.Read(within(t, 10*time.Second))
	if !errors.Is(err, tenure.ErrNotExist) {
		t.Fatal(err)
	}
	release := make(chan struct{})
	defer close(release)
	p.proxy.SetRule(fault.Always(nil, fault.HoldRequest(release)))
	for name, call := range map[string]func(context.Context) error{
		"read":  func(ctx context.Context) error { _, _, err := p.Read(ctx); return err },
		"write": func(ctx context.Context) error { _, err := p.Write(ctx, []byte("x"), ""); return err },
		"list":  func(ctx context.Context) error { _, err := p.List(ctx, ""); return err },
		"now":   func(ctx context.Context) error { _, err := p.Now(ctx); return err },
		"watch": func(ctx context.Context) error { return p.Watch(ctx, "") },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		err := call(ctx)
		cancel()
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 2*time.Second {
			t.Errorf("%s returned %v after %v", name, err, took)
		}
	}
}

func TestCertificates(t *testing.T) {
	p := throughProxy(t)
	other, err := fault.NewAuthority()
	must(t, err)
	for name, tt := range map[string]struct {
		authority *fault.Authority
		end       time.Time
		host      string
		want      string
	}{
		"expired":           {p.authority, time.Now().Add(-time.Hour), "127.0.0.1", "has expired or does not hold yet"},
		"of another host":   {p.authority, time.Now().Add(time.Hour), "api.example", "certificate of another host"},
		"unknown authority": {other, time.Now().Add(time.Hour), "127.0.0.1", "authority that the kubeconfig does not have"},
	} {
		t.Run(name, func(t *testing.T) {
			cert, err := tt.authority.Certificate(tt.end, tt.host)
			must(t, err)
			p.proxy.SetCertificate(cert)
			p.proxy.Disconnect()
			_, _, err = open(t, p.namespace, "lock", p.file).Read(within(t, 10*time.Second))
			wantText(t, err, tt.want)
		})
	}
	plain, err := fault.NewHTTP("https://"+server(t).APIServer(0), nil)
	must(t, err)
	t.Cleanup(plain.Close)
	_, _, err = open(t, p.namespace, "lock", kubeconfig(t, plain.Addr(), p.authority.PEM, userInfo(p.token))).Read(within(t, 10*time.Second))
	wantText(t, err, "does not speak TLS")
}

// A connection that has died without a word is found out by pings, not by the
// next renewal's timeout, and by one request's timeout at the latest.
func TestDeadConnections(t *testing.T) {
	proxy, err := fault.NewTCP(server(t).APIServer(0))
	must(t, err)
	t.Cleanup(proxy.Close)
	file, err := server(t).KubeconfigVia(proxy.Addr(), 0, "admin", "system:masters")
	must(t, err)
	r := open(t, namespace(t), "lock", file, "ttl=6s", "renew=1s")
	read := func(d time.Duration) error { _, _, err := r.Read(within(t, d)); return err }
	if err := read(10 * time.Second); !errors.Is(err, tenure.ErrNotExist) {
		t.Fatal(err)
	}
	proxy.BlackHole()
	start := time.Now()
	if err := read(10 * time.Second); err == nil || errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
		t.Errorf("%v after %v; want the pings to tell, within half a period and some", err, time.Since(start))
	}
	if err := read(200 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	proxy.Pass()
	if err := read(3 * time.Second); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("after the network came back: %v", err)
	}
	proxy.Refuse()
	if err := read(3 * time.Second); err == nil || errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("refused: %v", err)
	}
	proxy.Pass()
	if err := read(3 * time.Second); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("after it came back: %v", err)
	}
}

// The messages say what is not allowed, where, and what to do.
func TestRefusals(t *testing.T) {
	ns, admin := namespace(t), server(t).AdminClient(0)
	ctx := within(t, 30*time.Second)
	as := func(namespace, token string) *Register {
		return open(t, namespace, "lock", kubeconfig(t, server(t).APIServer(0), server(t).CA(), userInfo(token)))
	}
	reader := as(ns, account(t, ns, "reader", "get"))
	if _, _, err := reader.Read(ctx); !errors.Is(err, tenure.ErrNotExist) {
		t.Error(err)
	}
	_, err := reader.Write(ctx, record(t, full), "")
	wantText(t, err, "may not create leases.coordination.k8s.io", `"`+ns+`"`, "grant it the Role")
	v, err := open(t, ns, "lock", server(t).Admin(0)).Write(ctx, record(t, full), "")
	must(t, err)
	_, err = reader.Write(ctx, record(t, full), v)
	wantText(t, err, "may not update leases.coordination.k8s.io", `"`+ns+`"`)
	_, err = reader.List(ctx, "")
	wantText(t, err, "may not list leases.coordination.k8s.io")
	nobody := as(ns, account(t, ns, "nobody"))
	_, _, err = nobody.Read(ctx)
	wantText(t, err, "may not get leases.coordination.k8s.io")
	if errors.Is(err, tenure.ErrNotExist) {
		t.Error(err)
	}
	_, _, err = as(ns, "no token").Read(ctx)
	wantText(t, err, "credentials are refused")
	gone := open(t, "gone-"+ns, "lock", server(t).Admin(0))
	if _, _, err := gone.Read(ctx); !errors.Is(err, tenure.ErrNotExist) {
		t.Error(err)
	}
	_, err = gone.Write(ctx, record(t, full), "")
	wantText(t, err, "there is no namespace")
	must(t, admin.Delete(ctx, "/api/v1/namespaces/"+ns, nil))
	_, err = open(t, ns, "other", server(t).Admin(0)).Write(ctx, record(t, full), "")
	wantText(t, err, "is being deleted")
	long := open(t, ns, strings.Repeat("a", 250), server(t).Admin(0)).Sibling(".candidates/h.host")
	_, _, err = long.Read(ctx)
	wantText(t, err, "more than 253")
	stale := open(t, ns, "lock", kubeconfig(t, server(t).APIServer(0), server(t).CA(), clientcmdapi.AuthInfo{}))
	_, _, err = stale.Read(ctx)
	wantText(t, err, `User "system:anonymous"`)
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/store/mem"
)

var errFakeDriver = errors.New("the fake driver opens nothing")

func init() {
	tenure.RegisterScheme("urltest", tenure.Driver{
		Open:   func(context.Context, *tenure.URL) (tenure.Register, error) { return nil, errFakeDriver },
		Params: []string{"region", "endpoint"},
	})
}

var testVars = tenure.Vars{Namespace: "ns", Name: "nightly", Cluster: "eu/west:1"}

func TestParseURL(t *testing.T) {
	for _, tt := range []struct {
		raw                     string
		scheme, host, path, str string
		params                  map[string]string
	}{
		{"mem://x", "mem", "x", "", "mem://x", nil},
		{"MEM://X", "mem", "X", "", "mem://X", nil},
		{"urltest:///var/lib/x.lock", "urltest", "", "/var/lib/x.lock", "urltest:///var/lib/x.lock", nil},
		{"urltest://h1:2379,h2:2379,[::1]:80/p", "urltest", "h1:2379,h2:2379,[::1]:80", "/p", "urltest://h1:2379,h2:2379,[::1]:80/p", nil},
		{"urltest://b-{namespace}/{name}/x?region={name}", "urltest", "b-ns", "/nightly/x", "urltest://b-ns/nightly/x?region=nightly",
			map[string]string{"region": "nightly"}},
		{"urltest://b/a%40b%20c%7B?region=r&endpoint=http%3A%2F%2Fx:1&", "urltest", "b", "/a@b c{",
			"urltest://b/a%40b%20c%7B?endpoint=http%3A%2F%2Fx%3A1&region=r", map[string]string{"region": "r", "endpoint": "http://x:1"}},
		{"urltest://b/p?ttl=60s&region=r&identity=a+b%40c", "urltest", "b", "/p", "urltest://b/p?region=r&ttl=1m0s&identity=a+b%40c",
			map[string]string{"region": "r"}},
	} {
		u, err := tenure.ParseURL(tt.raw, testVars)
		if err != nil {
			t.Errorf("%s: %v", tt.raw, err)
			continue
		}
		if u.Scheme != tt.scheme || u.Host != tt.host || u.Path != tt.path || !maps.Equal(u.Params, tt.params) {
			t.Errorf("%s: %+v", tt.raw, u)
		}
		if u.String() != tt.str {
			t.Errorf("%s prints as %s, want %s", tt.raw, u, tt.str)
		}
	}
}

func TestParseURLSettings(t *testing.T) {
	for raw, want := range map[string]tenure.Settings{
		"mem://x":             {},
		"mem://x?ttl=5s":      {LeaseDuration: 5 * time.Second},
		"mem://x?timeout=90s": {LeaseDuration: 90 * time.Second},
		"mem://x?ttl=10s&deadline=6.5s&renew=2s&maxttl=1m&identity={cluster}-{name}&namespace={namespace}": {
			LeaseDuration: 10 * time.Second, RenewDeadline: 6500 * time.Millisecond, Period: 2 * time.Second,
			MaxLeaseDuration: time.Minute, Identity: "eu/west:1-nightly", Namespace: "ns"},
		"mem://x?takeover=storeclock": {Takeover: tenure.TakeoverStoreClock},
		"mem://x?takeover=wait":       {Takeover: tenure.TakeoverWait},
	} {
		u, err := tenure.ParseURL(raw, testVars)
		if err != nil || u.Settings != want {
			t.Errorf("%s: %+v, %v; want %+v", raw, u, err, want)
		}
	}
}

func TestParseURLErrors(t *testing.T) {
	for _, tt := range []struct {
		raw  string
		want []string
	}{
		{"", []string{"empty", "file:///"}},
		{"  ", []string{"empty"}},
		{"/var/x.lock", []string{"no scheme", "file:///var/x.lock"}},
		{"file:/var/x.lock", []string{"file:///var/x.lock"}},
		{"nightly.lock", []string{"no scheme", "scheme://"}},
		{"mem:x", []string{"no scheme"}},
		{"men://x", []string{`scheme "men" is not known`, `nearest is "mem"`, "mem", "urltest", `s3 (import _ "tenure.dev/store/s3")`}},
		{"s4://b/k", []string{`nearest is "s3"`, `azblob (import _ "tenure.dev/store/azblob")`}},
		{"gs://b/k", []string{`add import _ "tenure.dev/store/gcs"`, "imported are: ", "mem"}},
		{"s3://b/k", []string{`add import _ "tenure.dev/store/s3"`}},
		{"azblob://b/k", []string{`add import _ "tenure.dev/store/azblob"`}},
		{"etcd://b/k", []string{`add import _ "tenure.dev/store/etcd"`}},
		{"k8s://b/k", []string{`add import _ "tenure.dev/kube"`}},
		{"postgres://b/k", []string{`add import _ "tenure.dev/store/postgres"`}},
		{"mem://u:p@h/x", []string{"credentials"}},
		{"mem://h/a@b", []string{"%40"}},
		{"urltest://h/x?endpoint=https%3A%2F%2Fu:p%40h", []string{`"endpoint"`, "credentials"}},
		{"mem://x#y", []string{"fragment"}},
		{"mem://x?ttl=5s#y", []string{"fragment"}},
		{"mem://h:port/x", []string{"port"}},
		{"mem://a b/x", []string{"host"}},
		{"mem://a%20b/x", []string{"host"}},
		{"mem://h/%zz", []string{"percent-encoding"}},
		{"mem://h/%00", []string{"control"}},
		{"mem://h/%ff", []string{"control"}},
		{"mem://x?tll=5s", []string{`"tll"`, `nearest is "ttl"`, `scheme "mem"`, "deadline, identity, maxttl, namespace, renew, takeover, timeout, ttl"}},
		{"urltest://x?regin=5s", []string{`nearest is "region"`, "endpoint", "ttl"}},
		{"mem://x?region=r", []string{`"region" is not known`}},
		{"mem://x?a/b=r", []string{"a parameter is not known"}},
		{"mem://x?ttl=5s&ttl=6s", []string{`"ttl" is given twice`}},
		{"urltest://x?region=a&region=a", []string{`"region" is given twice`}},
		{"mem://x?ttl=5s&timeout=5s", []string{`"ttl" and "timeout"`}},
		{"mem://x?ttl", []string{"ttl=…"}},
		{"mem://x?ttl=", []string{`"ttl" is empty`}},
		{"mem://x?identity=", []string{`"identity" is empty`}},
		{"mem://x?ttl=5", []string{`"ttl" is 5`, "ttl=5s"}},
		{"mem://x?ttl=0", []string{"longer than nothing"}},
		{"mem://x?renew=-5s", []string{`"renew" is -5s`, "longer than nothing"}},
		{"mem://x?maxttl=soon", []string{`"maxttl" is not a duration`, "5s"}},
		{"mem://x?takeover=at-once", []string{`"takeover"`, "wait", "storeclock"}},
		{"mem://x?takeover=", []string{`"takeover" is empty`}},
		{"mem://x?takeover", []string{"takeover=…"}},
		{"mem://x?ttl=%zz", []string{"percent-encoding"}},
		{"mem://{cluster}/x", []string{"{cluster} in the host", "own lock", "identity"}},
		{"mem://x/{cluster}", []string{"{cluster} in the path", "own lock"}},
		{"urltest://x?region={cluster}", []string{`{cluster} in the parameter "region"`, "own lock"}},
		{"mem://x?namespace={cluster}", []string{"own lock"}},
		{"mem://{node}", []string{"{node} in the host is not known", "{namespace}, {name}", "{cluster}"}},
		{"mem://x/{}", []string{"a template in the path is not known"}},
		{"mem://x/{name", []string{"brace"}},
		{"mem://x/name}", []string{"brace"}},
	} {
		u, err := tenure.ParseURL(tt.raw, testVars)
		if err == nil || !errors.Is(err, tenure.ErrURL) {
			t.Errorf("%s: %v, %v; want an ErrURL", tt.raw, u, err)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error does not say %q: %v", tt.raw, w, err)
			}
		}
	}
}

func TestParseURLEmptyAndWrongVars(t *testing.T) {
	for _, tt := range []struct {
		raw, want string
		vars      tenure.Vars
	}{
		{"mem://{namespace}", "--namespace", tenure.Vars{Name: "x", Cluster: "x"}},
		{"mem://x/{name}", "--name ", tenure.Vars{Namespace: "x", Cluster: "x"}},
		{"mem://x?identity={cluster}", "--cluster", tenure.Vars{Namespace: "x", Name: "x"}},
		{"mem://x/{name}", "could name something else", tenure.Vars{Name: ".."}},
		{"mem://x/{name}", "could name something else", tenure.Vars{Name: "a/b"}},
		{"mem://{name}", "could name something else", tenure.Vars{Name: "a:80"}},
		{"mem://x/{name}", "could name something else", tenure.Vars{Name: "{name}"}},
		{"mem://x?identity={cluster}", "could name something else", tenure.Vars{Cluster: "a\nb"}},
	} {
		if _, err := tenure.ParseURL(tt.raw, tt.vars); !errors.Is(err, tenure.ErrURL) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %+v: %v, want an ErrURL with %q", tt.raw, tt.vars, err, tt.want)
		}
	}
}

// TestSecretsAreNotPrinted: whatever goes wrong, a value that might be a
// credential stays out of the message.
func TestSecretsAreNotPrinted(t *testing.T) {
	const secret = "hunter2"
	for _, raw := range []string{
		"mem://user:hunter2@h/x", "hunter2@h/x", "mem://user:hunter2", "mem://user%3Ahunter2%40h/x", "user:hunter2/x",
		"mem://u:hunter2/w@h/x", "mem://u:hunter2?w@h/x", "mem://u:hunter2#w@h/x", "/hunter2@h",
		"mem://x?sig=hunter2", "mem://x?password=hunter2&ttl=5s", "mem://x?p/w=hunter2", "mem://x?hunter2%40=1", "mem://x?hunter2/=1",
		"mem://x?ttl=hunter2", "mem://x#hunter2", "urltest://x?endpoint=https%3A%2F%2Fu:hunter2%40h", "mem://x?ttl=5s&ttl=hunter2",
		"urltest://x?region=hunter2%zz", "mem://{%hunter2}",
	} {
		if _, err := tenure.ParseURL(raw, testVars); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error is missing or prints the secret: %v", raw, err)
		}
	}
}

func TestOpen(t *testing.T) {
	l, err := tenure.Open(t.Context(), "mem://{name}?ttl=5s", tenure.Vars{Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	if l.Name != "mem://TestOpen?ttl=5s" || l.Settings != (tenure.Settings{LeaseDuration: 5 * time.Second}) {
		t.Errorf("lock is %+v", l)
	}
	v, err := l.Register.Write(t.Context(), []byte("x"), "")
	t.Cleanup(mem.Named(t.Name()).Delete)
	if _, got, rerr := mem.Named(t.Name()).Read(t.Context()); err != nil || rerr != nil || got != v {
		t.Errorf("the register is another one: %v, %v", err, rerr)
	}
	if _, err := tenure.Open(t.Context(), "urltest://x/y", testVars); !errors.Is(err, errFakeDriver) || !strings.Contains(err.Error(), "urltest://x/y") {
		t.Errorf("open: %v, want the driver's error and the URL", err)
	}
	if _, err := tenure.Open(t.Context(), "nothing://x", testVars); !errors.Is(err, tenure.ErrURL) {
		t.Errorf("open: %v, want ErrURL", err)
	}
}

func TestRegisterSchemePanics(t *testing.T) {
	open := func(context.Context, *tenure.URL) (tenure.Register, error) { return nil, errFakeDriver }
	for name, register := range map[string]func(){
		"twice":        func() { tenure.RegisterScheme("urltest", tenure.Driver{Open: open}) },
		"no open":      func() { tenure.RegisterScheme("urltest2", tenure.Driver{}) },
		"no scheme":    func() { tenure.RegisterScheme("URL test", tenure.Driver{Open: open}) },
		"common param": func() { tenure.RegisterScheme("urltest3", tenure.Driver{Open: open, Params: []string{"ttl"}}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			register()
		}()
	}
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"", "mem://x", "/var/x", "mem://{name}/x?ttl=5s&identity={cluster}", "urltest://h:1,h:2/%40?region=a+b", "mem://a#b", "mem://[::1]:1/{"} {
		f.Add(s, s)
	}
	const password = "pa55word-of-the-fuzz-test"
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.Contains(before+after, "pa55") {
			return
		}
		for _, raw := range []string{before + "://user:" + password + "@" + after, before + ":" + password + "@" + after, before + password + "@" + after} {
			u, err := tenure.ParseURL(raw, testVars)
			if err == nil {
				t.Fatalf("%q: credentials accepted: %v", raw, u)
			}
			if strings.Contains(err.Error(), password) {
				t.Fatalf("%q: the error prints the password: %v", raw, err)
			}
		}
		u, err := tenure.ParseURL(before, testVars)
		if err != nil {
			if !errors.Is(err, tenure.ErrURL) {
				t.Fatalf("%q: %v is not an ErrURL", before, err)
			}
			return
		}
		// What is printed is the same lock.
		again, err := tenure.ParseURL(u.String(), tenure.Vars{})
		if err != nil {
			t.Fatalf("%q prints as %q: %v", before, u, err)
		}
		if again.Scheme != u.Scheme || again.Host != u.Host || again.Path != u.Path || !maps.Equal(again.Params, u.Params) || again.Settings != u.Settings {
			t.Fatalf("%q prints as %q, which is %+v, not %+v", before, u, again, u)
		}
	})
}

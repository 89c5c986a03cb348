// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenure.dev"
)

func TestURL(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	password, junk := file("password", "one\n"), file("junk", "no certificate")
	for _, tt := range []struct {
		url  string
		want []string // words of the error; none if it is right
	}{
		{"etcd://a,b:1,[::1],[::1]:4/nightly", nil},
		{"etcd://a/x?tls=off&ttl=5s", nil},
		{"etcd://a/x?tls=unverified", nil},
		{"etcd://127.0.0.1/x?tls=off&user=u&passwordfile=" + password, nil},
		{"etcd://a/x?user=u&passwordfile=" + password, nil},
		{"etcd:///x", []string{"names no member", "etcd://host-1:2379"}},
		{"etcd://a", []string{"names no key"}},
		{"etcd://a/", []string{"names no key"}},
		{"etcd://a/x/", []string{"names no key"}},
		{"etcd://a,a:2379/x", []string{"a:2379 is given twice"}},
		{"etcd://a/x?tls=on", []string{"tls is not known", "unverified or off"}},
		{"etcd://a/x?tsl=off", []string{`"tsl"`, "tls"}},
		{"etcd://a/x?servername=", []string{`"servername"`}},
		{"etcd://a/x?tls=off&cafile=/x", []string{"no use for cafile"}},
		{"etcd://a/x?tls=unverified&servername=b", []string{"no use for cafile or servername"}},
		{"etcd://a/x?certfile=/x", []string{"certfile and keyfile belong together"}},
		{"etcd://a/x?cafile=" + dir + "/none", []string{"no such file", dir + "/none"}},
		{"etcd://a/x?cafile=" + junk, []string{"holds no certificate"}},
		{"etcd://a/x?certfile=" + junk + "&keyfile=" + junk, []string{"client certificate", junk}},
		{"etcd://a/x?user=u", []string{"no password", "ETCDCTL_PASSWORD"}},
		{"etcd://a/x?passwordfile=" + password, []string{"no user"}},
		{"etcd://a/x?user=u&passwordfile=" + dir + "/none", []string{"password of the user u", "no such file"}},
		{"etcd://127.0.0.1,a/x?tls=off&user=u&passwordfile=" + password, []string{"password would be sent", "a:2379"}},
		{"etcd://a/x?tls=unverified&user=u&passwordfile=" + password, []string{"password would be sent"}},
		{"etcd://me:secret@a/x", []string{"credentials"}},
	} {
		lock, err := tenure.Open(t.Context(), tt.url, tenure.Vars{})
		if tt.want == nil {
			if err != nil {
				t.Errorf("%s: %v", tt.url, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: opened as %v", tt.url, lock)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v; want %q in it", tt.url, err, w)
			}
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: a secret is printed: %v", tt.url, err)
		}
		// What a file holds may change without the URL.
		if onFiles := strings.Contains(tt.url, dir) || strings.Contains(tt.url, "user=u"); !onFiles && !errors.Is(err, tenure.ErrURL) {
			t.Errorf("%s: %v; want ErrURL", tt.url, err)
		}
	}
}

func TestEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		envUser, envPassword, query string
		user, password              string
	}{
		{"", "", "", "", ""},
		{"u:p:q", "", "", "u", "p:q"},
		{"u", "p", "", "u", "p"},
		{"u:p", "q", "", "u", "q"},
		{"u:p", "q", "&user=v", "v", "q"},
		{"", "p", "&user=v", "v", "p"},
		{"u:p", "q", "&user=v&passwordfile=" + file, "v", "from a file"},
		{"u:p", "q", "&passwordfile=" + file, "u", "from a file"},
	} {
		t.Setenv("ETCDCTL_USER", tt.envUser)
		t.Setenv("ETCDCTL_PASSWORD", tt.envPassword)
		lock, err := tenure.Open(t.Context(), "etcd://127.0.0.1/x?tls=off"+tt.query, tenure.Vars{})
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		a := lock.Register.(*Register).store.auth
		if password, err := a.password(); a.user != tt.user || password != tt.password || err != nil {
			t.Errorf("%+v: user %q, password %q, %v", tt, a.user, password, err)
		}
		if strings.Contains(lock.Name, "p:q") {
			t.Errorf("a password is printed: %s", lock.Name)
		}
	}
}

// The password that stands beside one user is not sent for another.
func TestEnvironmentOfAnother(t *testing.T) {
	t.Setenv("ETCDCTL_USER", "u:p")
	t.Setenv("ETCDCTL_PASSWORD", "")
	_, err := tenure.Open(t.Context(), "etcd://127.0.0.1/x?tls=off&user=v", tenure.Vars{})
	mustTell(t, "open", err, "no password is given for the user v")
}

func TestEndpoints(t *testing.T) {
	lock, err := tenure.Open(t.Context(), "etcd://a,b:1,[::1],[::1]:4/tenure/nightly", tenure.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	r := lock.Register.(*Register)
	if want := []string{"a:2379", "b:1", "[::1]:2379", "[::1]:4"}; !slices.Equal(r.store.opt.Endpoints, want) {
		t.Errorf("endpoints %q; want %q", r.store.opt.Endpoints, want)
	}
	if r.key != "/tenure/nightly" || r.String() != "etcd://a:2379,b:1,[::1]:2379,[::1]:4/tenure/nightly" {
		t.Errorf("key %q, URL %q", r.key, r)
	}
}

func TestVersion(t *testing.T) {
	for _, v := range []version{{1, 1, 1}, {1<<64 - 1, 1, 1<<63 - 1}, {0xabc, 12, 345}} {
		if got, err := parseVersion(v.encode()); err != nil || got != v {
			t.Errorf("%+v: %+v, %v", v, got, err)
		}
	}
	for _, s := range []tenure.Version{"x", "1-1", "1-2-1", "1-0-0", "01-1-1", "1-1-1 ", "1-1-1-1", "1--1-1", "-1-1-1"} {
		if got, err := parseVersion(s); !errors.Is(err, tenure.ErrConflict) {
			t.Errorf("%q: %+v, %v; want a conflict", s, got, err)
		}
	}
	for prefix, want := range map[string]string{"/a": "/b", "a\xff": "b", "\xff\xff": "\x00", "": "\x00"} {
		if got := string(prefixEnd(prefix)); got != want {
			t.Errorf("the end of %q is %q; want %q", prefix, got, want)
		}
	}
}

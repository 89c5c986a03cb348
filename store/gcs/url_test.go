// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"context"
	"errors"
	"strings"
	"testing"

	"tenure.dev"
)

func TestURLs(t *testing.T) {
	for _, tt := range []struct {
		url, object, endpoint string
		anonymous             bool
	}{
		{"gs://my-locks/nightly", "nightly", "https://storage.googleapis.com", false},
		{"gs://my_locks.example.com/a/b%20c", "a/b c", "https://storage.googleapis.com", false},
		{"gs://locks/a?anonymous=false&ttl=30s", "a", "https://storage.googleapis.com", false},
		{"gs://locks/a?endpoint=https://storage-psc.p.googleapis.com/", "a", "https://storage-psc.p.googleapis.com", false},
		{"gs://locks/a?endpoint=http://127.0.0.1:4443", "a", "http://127.0.0.1:4443", false},
		{"gs://locks/a?endpoint=http://localhost:4443", "a", "http://localhost:4443", false},
		{"gs://locks/a?endpoint=http://fake:4443&anonymous=true", "a", "http://fake:4443", true},
		{"gs://locks/a?renew=1s", "a", "https://storage.googleapis.com", false},
		{"gs://locks/a?ttl=5s", "a", "https://storage.googleapis.com", false},
		{"gs://locks/a?ttl=4s&renew=1s", "a", "https://storage.googleapis.com", false},
	} {
		lock, err := tenure.Open(t.Context(), tt.url, tenure.Vars{})
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		r := lock.Register.(*Register)
		if r.object != tt.object || r.store.endpoint.String() != tt.endpoint || (r.store.tokens == nil) != tt.anonymous {
			t.Errorf("%s: object %q at %v, anonymous %v", tt.url, r.object, r.store.endpoint, r.store.tokens == nil)
		}
		if lock.Price.ReadsPer10k == 0 || lock.Price.Source == "" {
			t.Errorf("%s: no price", tt.url)
		}
		if again, err := tenure.Open(t.Context(), lock.Name, tenure.Vars{}); err != nil || again.Name != lock.Name {
			t.Errorf("%s is printed as %s, which is not the same: %v", tt.url, lock.Name, err)
		}
	}
}

func TestWrongURLs(t *testing.T) {
	for _, tt := range []struct{ url, says string }{
		{"gs:///a", "names no bucket"},
		{"gs://locks", "names no object"},
		{"gs://locks/", "names no object"},
		{"gs://Locks/a", "no bucket's name"},
		{"gs://lo/a", "no bucket's name"},
		{"gs://locks:443/a", "neither port nor commas"},
		{"gs://a-1,b-2/a", "neither port nor commas"},
		{"gs://storage.googleapis.com/locks/a", "the service's host"},
		{"gs://locks/a/", "ends with a slash"},
		{"gs://locks//a", "two in a row"},
		{"gs://locks/a/../b", "\"..\""},
		{"gs://locks/a%FFb", "path has"},
		{"gs://locks/.well-known/acme-challenge/a", "acme-challenge"},
		{"gs://locks/" + strings.Repeat("x", 769), "choose a shorter one"},
		{"gs://locks/a?anonymous=true", "needs endpoint="},
		{"gs://locks/a?anonymous=yes&endpoint=http://127.0.0.1:1", "neither true nor false"},
		{"gs://locks/a?endpoint=storage.example.com", "is no URL"},
		{"gs://locks/a?endpoint=ftp://x", "is no URL"},
		{"gs://locks/a?endpoint=", "is no URL"},
		{"gs://locks/a?endpoint=https://x/storage/v1", "more than scheme and host"},
		{"gs://locks/a?endpoint=https://x%3Fa=b", "more than scheme and host"},
		{"gs://locks/a?endpoint=http://storage.example.com", "in the clear"},
		{"gs://locks/a?endpiont=https://x", "the nearest is \"endpoint\""},
		{"gs://locks/a?key=" + secret, "not known"},
		{"gs://user:" + secret + "@locks/a", "credentials do not belong"},
		{"gs://locks/a?endpoint=https://user:" + secret + "%40x", "credentials"},
		{"gs://locks/a?renew=900ms", "renew=1s or longer"},
		{"gs://locks/a?ttl=4s", "4s / 5 = 800ms"},
		{"gs://locks/a?timeout=4.9s&deadline=3s", "980ms"},
	} {
		_, err := tenure.Open(context.Background(), tt.url, tenure.Vars{})
		if !errors.Is(err, tenure.ErrURL) {
			t.Errorf("%s: %v, want ErrURL", tt.url, err)
		}
		mustSay(t, err, tt.says)
	}
}

// FuzzURL: no URL makes a lock in another place than it says, or a panic.
func FuzzURL(f *testing.F) {
	for _, u := range []string{"gs://locks/a", "gs://locks/a?endpoint=https://x&ttl=9s", "gs://l,o/..?anonymous=true", "gs://%41/%00"} {
		f.Add(u)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if !strings.HasPrefix(raw, "gs://") {
			raw = "gs://" + raw
		}
		u, err := tenure.ParseURL(raw, tenure.Vars{})
		if err != nil {
			return
		}
		p, err := parsePlace(u)
		if err != nil {
			return
		}
		s := newStore(p, nil)
		r, err := s.newRequest(t.Context(), request{method: "GET", path: s.objectPath(p.object)})
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if r.URL.Host != p.endpoint.Host || r.URL.Path != "/storage/v1/b/"+p.bucket+"/o/"+p.object {
			t.Errorf("%q asks %v", raw, r.URL)
		}
	})
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenure.dev"
)

func TestURL(t *testing.T) {
	noPEM := filepath.Join(t.TempDir(), "no.pem")
	if err := os.WriteFile(noPEM, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ url, want string }{
		{"s3:///path", "no bucket"},
		{"s3://bucket", "no path"},
		{"s3://bucket/", "no path"},
		{"s3://bucket:9000/path", "endpoint=https://host:port"},
		{"s3://Bucket/path", "not a bucket's name"},
		{"s3://ab/path", "not a bucket's name"},
		{"s3://a_b/path", "not a bucket's name"},
		{"s3://bucket,bucket/path", "not a bucket's name"},
		{"s3://bucket/a//b", "empty element"},
		{"s3://bucket/a/../b", "'..'"},
		{"s3://bucket/a/", "empty element"},
		{"s3://bucket/a%E2%80%A8", "cannot be printed"},
		{"s3://bucket/" + strings.Repeat("x", 801), "801 bytes"},
		{"s3://bucket/path?region=eu west", "not a region's name"},
		{"s3://bucket/path?endpoint=localhost:9000", "not https://host"},
		{"s3://bucket/path?endpoint=ftp://host", "not https://host"},
		{"s3://bucket/path?endpoint=https://host/bucket", "more than a host"},
		{"s3://bucket/path?endpoint=https://u:secret@host", "credentials"},
		{"s3://key:secret@bucket/path", "credentials"},
		{"s3://bucket/path?pathstyle=yes", "true or false"},
		{"s3://bucket/path?account=12", "12 digits"},
		{"s3://bucket/path?cafile=" + noPEM, "no PEM certificate"},
		{"s3://bucket/path?regoin=eu-west-1", "region"},
		{"s3://bucket/path?access_key=secret", "not known"},
		{"s3://bucket/path?region=a&region=b", "twice"},
	} {
		_, err := tenure.Open(t.Context(), tt.url, tenure.Vars{})
		switch {
		case !errors.Is(err, tenure.ErrURL):
			t.Errorf("%s: %v; want ErrURL", tt.url, err)
		case tt.want != "not known" && !strings.Contains(err.Error(), tt.want):
			t.Errorf("%s: %v; want %q", tt.url, err, tt.want)
		case strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: %v shows a credential", tt.url, err)
		}
	}
	if _, err := tenure.Open(t.Context(), "s3://bucket/path?region=x&cafile=/no/such", tenure.Vars{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing cafile: %v", err)
	}
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	if _, err := tenure.Open(t.Context(), "s3://bucket/path", tenure.Vars{}); !errors.Is(err, tenure.ErrURL) || !strings.Contains(err.Error(), "no region") {
		t.Errorf("without a region: %v", err)
	}
}

// TestAddress: where requests go, and by which name they ask for the bucket.
func TestAddress(t *testing.T) {
	for _, tt := range []struct {
		url, env, store string
		pathStyle       bool
	}{
		{"s3://bucket/a/b?region=eu-west-1", "", "Amazon S3, region eu-west-1, bucket bucket", false},
		{"s3://bucket/a/b?region=eu-west-1&pathstyle=true", "", "Amazon S3, region eu-west-1, bucket bucket", true},
		{"s3://bucket/a/b", "", "Amazon S3, region us-east-1, bucket bucket", false},
		{"s3://bucket/a/b?endpoint=https://s3.example.org", "", "https://s3.example.org, region us-east-1, bucket bucket", true},
		{"s3://bucket/a/b?endpoint=https://s3.example.org&pathstyle=false", "", "https://s3.example.org, region us-east-1, bucket bucket", false},
		{"s3://bucket/a/b?endpoint=https://s3.example.org", "https://other.example.org", "https://s3.example.org, region us-east-1, bucket bucket", true},
	} {
		t.Setenv("AWS_ENDPOINT_URL_S3", tt.env)
		l, err := tenure.Open(t.Context(), tt.url, tenure.Vars{})
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		r := l.Register.(*Register)
		if r.StoreName() != tt.store || r.key != "a/b" || r.store.client.Options().UsePathStyle != tt.pathStyle {
			t.Errorf("%s: %s, key %s, path style %v", tt.url, r.StoreName(), r.key, r.store.client.Options().UsePathStyle)
		}
		if l.Price.WritesPer10k == 0 || l.Price.Source == "" {
			t.Errorf("the price is %+v", l.Price)
		}
	}
}

// TestEndpointOfEnvironment: two candidates with two environments would have two
// locks.
func TestEndpointOfEnvironment(t *testing.T) {
	for _, e := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
		t.Run(e, func(t *testing.T) {
			t.Setenv(e, "https://other.example.org")
			if _, err := tenure.Open(t.Context(), "s3://bucket/a?region=x", tenure.Vars{}); !errors.Is(err, tenure.ErrURL) || !strings.Contains(err.Error(), "endpoint=") {
				t.Errorf("%v; want ErrURL", err)
			}
		})
	}
}

func TestSalt(t *testing.T) {
	a, b := salted([]byte("value")), salted([]byte("value"))
	if string(a) == string(b) || string(unsalt(a)) != "value" || string(unsalt(b)) != "value" || len(a) != saltLen+5 {
		t.Errorf("%q, %q", a, b)
	}
	for _, strange := range []string{
		"", "{}", "tenure/1 ", "tenure/1 ABCDEFGHIJKLMNOPQRSTUVWXYZ", "tenure/1 abcdefghijklmnopqrstuvwxyz\n{}",
		"tenure/1 ABCDEFGHIJKLMNOPQRSTUVWXYZ2\n{}", "tenure/2 ABCDEFGHIJKLMNOPQRSTUVWXYZ\n{}",
	} {
		if got := string(unsalt([]byte(strange))); got != strange {
			t.Errorf("%q became %q", strange, got)
		}
	}
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"s3://bucket/a?endpoint=http://h&pathstyle=true", "s3://b.c-d/e/f?account=123456789012", "s3:///", "s3://x/%2e%2e/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := tenure.ParseURL(raw, tenure.Vars{})
		if err != nil || u.Scheme != "s3" {
			return
		}
		p, err := parsePlace(u)
		if err == nil && (p.bucket == "" || p.key == "" || strings.HasPrefix(p.key, "/")) {
			t.Errorf("%q became %+v", raw, p)
		}
	})
}

func FuzzUnsalt(f *testing.F) {
	f.Add([]byte("value"))
	f.Add([]byte("tenure/1 ABCDEFGHIJKLMNOPQRSTUVWXYZ\nx"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got := unsalt(salted(b)); string(got) != string(b) {
			t.Errorf("%q came back as %q", b, got)
		}
		unsalt(b)
	})
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// mustTell checks that an error says all of these, and nothing secret.
func mustTell(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil || errors.Is(err, tenure.ErrConflict) || errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("%s: %v; want another error", what, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v; want %q in it", what, err, w)
		}
	}
	if strings.Contains(err.Error(), testbed.VersitySecret) {
		t.Errorf("%s: %v shows a secret", what, err)
	}
}

// TestCertificates: https with an authority of one's own, and certificates that
// will not do, also when they come while the lock is open.
func TestCertificates(t *testing.T) {
	ca, err := fault.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(end time.Time, host string) tls.Certificate {
		c, err := ca.Certificate(end, host)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	good := certificate(time.Now().Add(time.Hour), "127.0.0.1")
	p, err := fault.NewHTTPS(server.URL, nil, good)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, ca.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	key := newKey()
	_, _, err = openAt(t, p.URL(), key).Read(t.Context())
	mustTell(t, "unknown authority", err, "cafile=", key)

	r := openAt(t, p.URL(), key, "cafile="+caFile)
	v := mustWrite(t, r, "one", "")
	for _, tt := range []struct {
		name, want string
		cert       tls.Certificate
	}{
		{"another host", "another host's", certificate(time.Now().Add(time.Hour), "example.org")},
		{"expired", "has expired", certificate(time.Now().Add(-time.Minute), "127.0.0.1")},
	} {
		p.SetCertificate(tt.cert)
		p.Disconnect()
		_, _, _ = r.Read(t.Context()) // finds its connection gone
		_, err := r.Write(t.Context(), []byte("two"), v)
		mustTell(t, tt.name, err, tt.want)
		_, _, err = r.Read(t.Context())
		mustTell(t, tt.name, err, tt.want)
	}
	p.SetCertificate(good)
	if got, rv := mustRead(t, r); got != "one" || rv != v {
		t.Errorf("then %q, %q", got, rv)
	}
}

// TestCredentials: keys that are wrong are named; one that is put right in its
// file is taken up without opening the lock again.
func TestCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	put := func(access, secret string) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, "[lock]\naws_access_key_id = %s\naws_secret_access_key = %s\n", access, secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(testbed.VersityAccess, testbed.VersitySecret)
	r := openAt(t, server.URL, newKey(), "profile=lock")
	v := mustWrite(t, r, "one", "")

	for what, keys := range map[string][2]string{
		"unknown key": {"somebody", testbed.VersitySecret}, "wrong secret": {testbed.VersityAccess, "guess"},
	} {
		put(keys[0], keys[1])
		r := openAt(t, server.URL, r.key, "profile=lock")
		_, _, err := r.Read(t.Context())
		mustTell(t, what, err, "access key is unknown or its secret is wrong")
		_, err = r.Write(t.Context(), []byte("two"), v)
		mustTell(t, what, err, "access key is unknown or its secret is wrong")
		put(testbed.VersityAccess, testbed.VersitySecret)
		if got, _ := mustRead(t, r); got != "one" {
			t.Errorf("after the key was put right: %q", got)
		}
	}

	for _, e := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(e, "")
	}
	_, _, err := openAt(t, server.URL, r.key).Read(t.Context())
	mustTell(t, "no credentials", err, "set AWS_ACCESS_KEY_ID")
}

// TestBucketMissing, on the real server, is no empty lock.
func TestBucketMissing(t *testing.T) {
	l, err := tenure.Open(t.Context(), server.Lock(server.URL, "nosuchbucket", "a"), tenure.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = l.Register.Read(t.Context())
	mustTell(t, "read", err, "there is no bucket nosuchbucket")
	_, err = l.Register.Write(t.Context(), nil, "")
	mustTell(t, "create", err, "there is no bucket nosuchbucket")
	_, err = l.Register.Write(t.Context(), nil, "x")
	mustTell(t, "write", err, "there is no bucket nosuchbucket")
}

// TestOwner: each request names the account that must own the bucket.
func TestOwner(t *testing.T) {
	p, err := fault.NewHTTP(server.URL, func(r *http.Request) fault.Action {
		if r.Header.Get("X-Amz-Expected-Bucket-Owner") == "123456789012" {
			return fault.Instead(s3Error(403, "AccessDenied", "Access Denied"))
		}
		return fault.Pass
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := openAt(t, p.URL(), newKey(), "account=123456789012")
	_, _, err = r.Read(t.Context())
	mustTell(t, "read", err, "the bucket is not account 123456789012's")
	_, err = r.Write(t.Context(), nil, "")
	mustTell(t, "write", err, "the bucket is not account 123456789012's")
	_, err = r.List(t.Context(), "")
	mustTell(t, "list", err, "s3:ListBucket", "the bucket is not account 123456789012's")
}

// TestClock: the time is the store's, also in answers that refuse.
func TestClock(t *testing.T) {
	r, p := behind(t, nil)
	check := func(what string) {
		t.Helper()
		p.Forget()
		now, err := r.Now(t.Context())
		if err != nil || time.Since(now).Abs() > 3*time.Second || len(p.Records()) != 1 {
			t.Errorf("%s: %v, %v, %d requests", what, now, err, len(p.Records()))
		}
	}
	check("no record")
	mustWrite(t, r, "one", "")
	check("a record")
	p.SetRule(fault.Always(nil, fault.Instead(fault.Answer{Status: 403, Header: http.Header{"X-Amz-Request-Id": {"TEST"}}})))
	check("refused")
	p.SetRule(fault.Always(nil, fault.Instead(fault.Answer{Status: 403})))
	if now, err := r.Now(t.Context()); err == nil {
		t.Errorf("the time of somebody else: %v", now)
	}

	p.SetRule(nil)
	before := time.Now().Add(-3 * time.Second)
	for range 2 { // the second is a 304
		v, err := r.ReadDated(t.Context())
		if err != nil || string(v.Value) != "one" || v.Now.Before(before) || v.Written.After(v.Now.Add(time.Second)) {
			t.Errorf("%+v, %v", v, err)
		}
	}
}

// TestOddKeys: a path is signed as it is sent.
func TestOddKeys(t *testing.T) {
	folder := newKey() + "/"
	for _, key := range []string{"a b", "ä/ö", "a+b", "a%25b", "a=b&c", "a:b@c", "(a)'*!~", "{x}"} {
		path := strings.NewReplacer("%", "%25", " ", "%20", "{", "%7B", "}", "%7D", "@", "%40").Replace(folder + key)
		r := openAt(t, server.URL, path)
		if r.key != folder+key {
			t.Errorf("the key is %q, want %q", r.key, folder+key)
		}
		v := mustWrite(t, r, "one", "")
		if got, rv := mustRead(t, r); got != "one" || rv != v {
			t.Errorf("%s: %q", key, got)
		}
		mustWrite(t, r.Sibling(".candidates/x"), "two", "")
		if got, err := r.List(t.Context(), ".candidates/"); err != nil || len(got) != 1 || got[0] != ".candidates/x" {
			t.Errorf("%s: siblings %q, %v", key, got, err)
		}
	}
}

// TestSkewedClock: a request signed by a clock that is 20 minutes off is refused
// by the real server; the error names the clock, and the next one is signed by
// the store's. What others say about the time counts for nothing.
func TestSkewedClock(t *testing.T) {
	r, p := behind(t, nil)
	mustWrite(t, r, "one", "")
	wrong := time.Now().Add(20 * time.Minute).UTC().Format(http.TimeFormat)
	p.SetRule(fault.Times(1, nil, fault.Action{EditAnswer: func(a *http.Response) { a.Header.Set("Date", wrong) }}))
	mustRead(t, r)
	_, _, err := r.Read(t.Context())
	mustTell(t, "signed 20 minutes late", err, "clock", "RequestTimeTooSkewed")
	mustRead(t, r)
	for _, a := range []fault.Answer{{Status: 503}, fault.HTML(502), {Status: 404}} {
		a.Header = http.Header{"Date": {wrong}}
		p.SetRule(fault.Times(1, nil, fault.Instead(a)))
		if _, _, err := r.Read(t.Context()); err == nil {
			t.Errorf("%d: no error", a.Status)
		}
		mustRead(t, r)
	}
}

// TestRequests: one request for a renewal, one for a poll, which carries a
// condition as long as nothing changes.
func TestRequests(t *testing.T) {
	r, p := behind(t, nil)
	v := mustWrite(t, r, "0", "")
	poller := openAt(t, p.URL(), r.key)
	mustRead(t, poller)
	for i := range 5 {
		p.Forget()
		v = mustWrite(t, r, fmt.Sprint(i), v)
		mustRead(t, poller) // sees a change
		mustRead(t, poller) // sees none
		mustRead(t, r)      // the writer knows what it wrote
		all := p.Records()
		if len(all) != 4 {
			t.Fatalf("%d requests for a write and three reads", len(all))
		}
		for j, want := range []struct {
			method, condition string
			status            int
		}{{"PUT", "If-Match", 200}, {"GET", "If-None-Match", 200}, {"GET", "If-None-Match", 304}, {"GET", "If-None-Match", 304}} {
			if got := all[j]; got.Method != want.method || got.Header.Get(want.condition) == "" || got.Status != want.status {
				t.Errorf("request %d: %s %d %v; want %+v", j, got.Method, got.Status, got.Header, want)
			}
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"tenure.dev"
	"tenure.dev/test/fault"
)

// An issuer hands out tokens for whatever it is asked, at any of its paths, and
// plays the metadata server too.
type issuer struct {
	*httptest.Server

	mu     sync.Mutex
	asked  []string // paths
	life   time.Duration
	answer http.HandlerFunc // instead, if set
	hold   chan struct{}
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{life: time.Hour}
	i.Server = httptest.NewServer(http.HandlerFunc(i.serve))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.asked = append(i.asked, r.URL.Path)
	n, life, answer, hold := len(i.asked), i.life, i.answer, i.hold
	i.mu.Unlock()
	if hold != nil {
		<-hold
	}
	switch {
	case answer != nil:
		answer(w, r)
	case strings.HasSuffix(r.URL.Path, "project-id"):
		fmt.Fprint(w, "test")
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"%s-%d","token_type":"Bearer","expires_in":%d,"issued_token_type":"urn:ietf:params:oauth:token-type:access_token"}`,
			secret, n, int(life.Seconds()))
	}
}

func (i *issuer) set(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
}

func (i *issuer) tokens() (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, p := range i.asked {
		if !strings.HasSuffix(p, "project-id") {
			n++
		}
	}
	return n
}

// withTokens opens a lock with credentials, before a server that wants a token
// of the issuer. Its rule says which are refused.
func withTokens(t *testing.T, refuse func(token string) bool) *Register {
	t.Helper()
	p, err := fault.NewHTTP(server.Endpoint, func(r *http.Request) fault.Action {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "+secret)
		if !ok || refuse != nil && refuse(token) {
			return fault.Instead(says(401, "authError", "Invalid Credentials"))
		}
		return fault.Pass
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return open(t, "gs://"+newBucket(t)+"/"+testObject+"?endpoint="+p.URL())
}

var testKey = sync.OnceValue(func() []byte {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
})

// credentials writes a credentials file and names it in the environment.
func credentials(t *testing.T, fields map[string]any) string {
	t.Helper()
	b, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "credentials.json")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(envCredentials, name)
	return name
}

func serviceAccount(i *issuer) map[string]any {
	return map[string]any{
		"type": "service_account", "client_email": "lock@test.iam.gserviceaccount.com",
		"private_key_id": secret, "private_key": string(testKey()), "token_uri": i.URL + "/sa",
	}
}

// TestCredentials goes through the chain: each kind gets a token, once.
func TestCredentials(t *testing.T) {
	subject := filepath.Join(t.TempDir(), "subject")
	if err := os.WriteFile(subject, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		setup func(t *testing.T, i *issuer)
		asked string
	}{
		{"service account", func(t *testing.T, i *issuer) { credentials(t, serviceAccount(i)) }, "/sa"},
		{"workload identity federation", func(t *testing.T, i *issuer) {
			credentials(t, map[string]any{
				"type": "external_account", "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
				"subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": i.URL + "/sts",
				"credential_source": map[string]any{"file": subject},
			})
		}, "/sts"},
		{"gcloud's file", func(t *testing.T, i *issuer) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			t.Setenv(envCredentials, "")
			dir := filepath.Join(home, ".config", "gcloud")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(serviceAccount(i))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "application_default_credentials.json"), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "/sa"},
		{"metadata server", func(t *testing.T, i *issuer) {
			t.Setenv(envCredentials, "")
			t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(i.URL, "http://"))
		}, "/computeMetadata/v1/instance/service-accounts/default/token"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := newIssuer(t)
			tt.setup(t, i)
			r := withTokens(t, nil)
			v := mustWrite(t, r, "x", "")
			if _, got := mustRead(t, r); got != v {
				t.Errorf("read version %q, want %q", got, v)
			}
			if n := i.tokens(); n != 1 || i.asked[len(i.asked)-1] != tt.asked {
				t.Errorf("the issuer was asked %q, want %s once", i.asked, tt.asked)
			}
		})
	}
}

// TestTokenRefused: the store refuses a token under a leader, and the file has
// been replaced meanwhile. One request fails, which is no conflict, and the next
// one has a token of the new file.
func TestTokenRefused(t *testing.T) {
	old, replaced := newIssuer(t), newIssuer(t)
	name := credentials(t, serviceAccount(old))
	var mu sync.Mutex
	revoked := false
	r := withTokens(t, func(string) bool {
		mu.Lock()
		defer mu.Unlock()
		return revoked && replaced.tokens() == 0
	})
	v := mustWrite(t, r, "1", "")
	b, err := json.Marshal(serviceAccount(replaced))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	revoked = true
	mu.Unlock()
	_, err = r.Write(t.Context(), []byte("2"), v)
	if errors.Is(err, tenure.ErrConflict) {
		t.Errorf("write: %v", err)
	}
	mustSay(t, err, "does not accept this identity's token")
	mustWrite(t, r, "2", v)
	if old.tokens() != 1 || replaced.tokens() != 1 {
		t.Errorf("the issuers handed out %d and %d tokens, want 1 and 1", old.tokens(), replaced.tokens())
	}
}

// TestTokenEarly: a token is fetched anew before it ends, and requests do not
// wait for that, nor fail when it does.
func TestTokenEarly(t *testing.T) {
	i := newIssuer(t)
	credentials(t, serviceAccount(i))
	r := withTokens(t, nil)
	var offset atomic.Int64
	r.store.tokens = newTokens(r.store.place, func() time.Time { return time.Now().Add(time.Duration(offset.Load())) })
	later := func(d time.Duration) { offset.Store(int64(d)) }
	v := mustWrite(t, r, "1", "")
	later(time.Hour - tokenEarly + time.Second)
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	i.set(func() { i.hold, i.life = hold, 2*time.Hour })
	v = mustWrite(t, r, "2", v) // though the issuer is silent
	i.set(func() { i.hold = nil })
	release()
	r.store.tokens.Settle()
	if n := i.tokens(); n != 2 {
		t.Errorf("%d tokens were fetched, want a second one early", n)
	}
	i.set(func() { i.answer = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) } })
	later(2*time.Hour - tokenEarly + time.Minute)
	v = mustWrite(t, r, "3", v)
	r.store.tokens.Settle()
	mustWrite(t, r, "4", v) // with the old one
	later(3 * time.Hour)
	_, _, err := r.Read(t.Context())
	mustSay(t, err, "no token for this identity")
}

// TestTokenSlow: a call ends with its context while a token is being fetched,
// and the next one finds it.
func TestTokenSlow(t *testing.T) {
	i := newIssuer(t)
	hold := make(chan struct{})
	i.hold = hold
	credentials(t, serviceAccount(i))
	r := withTokens(t, nil)
	start := time.Now()
	_, _, err := r.Read(within(t, 100*time.Millisecond))
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	mustSay(t, err, "being fetched")
	close(hold)
	mustWrite(t, r, "x", "")
	if n := i.tokens(); n != 1 {
		t.Errorf("%d tokens were fetched, want 1", n)
	}
}

// TestTokenErrors: they say what to do, and print no key.
func TestTokenErrors(t *testing.T) {
	i := newIssuer(t)
	answer := func(status int, body string, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for k := 0; k+1 < len(header); k += 2 {
				w.Header().Set(header[k], header[k+1])
			}
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	past := time.Now().Add(-20 * time.Minute).UTC().Format(http.TimeFormat)
	credentials(t, serviceAccount(i))
	for _, tt := range []struct {
		answer http.HandlerFunc
		says   []string
	}{
		{answer(400, `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`), []string{"look at the credentials", "invalid_grant", "Invalid JWT Signature."}},
		{answer(400, `{"error":"invalid_grant","error_description":"Invalid JWT: Token must be a short-lived token"}`, "Date", past), []string{"clock is", "ahead of", "NTP"}},
		{answer(503, "busy\n"), []string{"503"}},
		{answer(200, "<html>"), []string{"no token"}},
		{answer(200, "{}"), []string{"no token"}},
	} {
		i.set(func() { i.answer = tt.answer })
		r := withTokens(t, nil)
		_, err := r.Write(t.Context(), nil, "")
		if errors.Is(err, tenure.ErrConflict) || errors.Is(err, tenure.ErrNotExist) {
			t.Errorf("write: %v", err)
		}
		mustSay(t, err, append(tt.says, "gcs: write gs://")...)
	}
	i.set(func() { i.answer = answer(400, `{"error":"invalid_grant"}`) })
	_, _, err := withTokens(t, nil).Read(t.Context())
	var cause *oauth2.RetrieveError
	if !errors.As(err, &cause) {
		t.Errorf("the issuer's own error is not reachable: %v", err)
	}

	sa := serviceAccount(i)
	sa["universe_domain"] = "example.test"
	credentials(t, sa)
	lock, err := tenure.Open(t.Context(), "gs://locks/a", tenure.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = lock.Register.Read(t.Context())
	mustSay(t, err, "cloud example.test", "add endpoint=https://storage.example.test")
}

// TestCredentialsFile: one that cannot be used is found at once, and none of it
// is printed.
func TestCredentialsFile(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		content []byte
		says    string
	}{
		{nil, "cannot be read"},
		{[]byte{}, "no credentials file"},
		{[]byte(`{"private_key":"` + secret + `"}`), "no credentials file"},
		{bytes.Repeat([]byte(secret), 99), "no credentials file"},
	} {
		name := filepath.Join(dir, "f.json")
		os.Remove(name)
		if tt.content != nil {
			if err := os.WriteFile(name, tt.content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv(envCredentials, name)
		_, err := tenure.Open(t.Context(), "gs://locks/a", tenure.Vars{})
		mustSay(t, err, envCredentials, tt.says)
		if _, err := tenure.Open(t.Context(), server.LockURL("locks", "a"), tenure.Vars{}); err != nil {
			t.Errorf("an anonymous lock needs no file: %v", err)
		}
	}
}

// TestCertificates: what is wrong with the one that the endpoint shows is said.
func TestCertificates(t *testing.T) {
	ca, err := fault.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	good, err := ca.Certificate(time.Now().Add(time.Hour), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	p, err := fault.NewHTTPS(server.Endpoint, nil, good)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	r := open(t, lockURL(p.URL(), newBucket(t), testObject))
	_, _, err = r.Read(t.Context())
	mustSay(t, err, "authority that this machine does not know", "SSL_CERT_FILE")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM)
	r.store.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	v := mustWrite(t, r, "x", "")
	for _, tt := range []struct {
		end  time.Time
		host string
		says string
	}{
		{time.Now().Add(time.Hour), "other.example", "another host's"},
		{time.Now().Add(-time.Hour), "127.0.0.1", "has expired, or this machine's clock"},
	} {
		bad, err := ca.Certificate(tt.end, tt.host)
		if err != nil {
			t.Fatal(err)
		}
		p.SetCertificate(bad)
		r.store.http.CloseIdleConnections()
		_, err = r.Write(t.Context(), []byte("y"), v)
		mustSay(t, err, tt.says)
	}
	p.SetCertificate(good)
	if _, got := mustRead(t, r); got != v {
		t.Errorf("afterwards: version %q, want %q", got, v)
	}
	_, _, err = open(t, lockURL(strings.Replace(server.Endpoint, "http:", "https:", 1), "locks", "a")).Read(t.Context())
	mustSay(t, err, "does not speak TLS")
}

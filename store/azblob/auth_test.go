// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"tenure.dev"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// makeSAS signs a shared access signature for all blobs of the emulator's
// account, as the account's owner does.
func makeSAS(t testing.TB, permissions string, ends time.Time) string {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(testbed.AzuriteKey)
	if err != nil {
		t.Fatal(err)
	}
	const version = "2020-08-04"
	se := ends.UTC().Format("2006-01-02T15:04:05Z")
	mac := hmac.New(sha256.New, key)
	fmt.Fprint(mac, strings.Join([]string{testbed.AzuriteAccount, permissions, "b", "sco", "", se, "", "https,http", version, ""}, "\n"))
	return url.Values{
		"sv": {version}, "ss": {"b"}, "srt": {"sco"}, "sp": {permissions}, "se": {se}, "spr": {"https,http"},
		"sig": {base64.StdEncoding.EncodeToString(mac.Sum(nil))},
	}.Encode()
}

// withSAS opens the lock of r with a shared access signature, at an endpoint
// that may be a proxy's.
func withSAS(t testing.TB, r *Register, host, token string) *Register {
	t.Helper()
	p := r.store.place
	u := *p.endpoint
	u.Host = host
	p.endpoint = &u
	s, err := newSAS(p, token)
	if err != nil {
		t.Fatal(err)
	}
	signed := &Register{store: newStore(p, s), blob: r.blob}
	t.Cleanup(signed.store.http.CloseIdleConnections)
	return signed
}

// TestSharedAccessSignature works with the rights that the documentation names,
// and says which are missing.
func TestSharedAccessSignature(t *testing.T) {
	direct := fresh(t)
	r := withSAS(t, direct, azurite.Host, "?"+makeSAS(t, "rcwl", time.Now().Add(time.Hour)))
	v := mustWrite(t, r, "1", "")
	v = mustWrite(t, r, "2", v)
	if got, now := mustRead(t, r); got != "2" || now != v {
		t.Errorf("read: %q at %q", got, now)
	}
	mustWrite(t, r.Sibling(".candidates/a"), "c", "")
	if list, err := r.List(t.Context(), ".candidates/"); err != nil || len(list) != 1 {
		t.Errorf("list: %q, %v", list, err)
	}

	readonly := withSAS(t, direct, azurite.Host, makeSAS(t, "r", time.Now().Add(time.Hour)))
	if _, now := mustRead(t, readonly); now != v {
		t.Errorf("with sp=r it reads version %q, want %q", now, v)
	}
	_, err := readonly.Write(t.Context(), []byte("3"), v)
	mustSay(t, err, "may not write", "sp=r)", "sp=rcwl", "403")
	if errors.Is(err, tenure.ErrConflict) {
		t.Errorf("missing rights are no conflict: %v", err)
	}
	_, _, err = withSAS(t, direct, azurite.Host, makeSAS(t, "rcwl", time.Now().Add(-time.Hour))).Read(t.Context())
	mustSay(t, err, "has ended at", "restart")
	forged := strings.Replace(makeSAS(t, "rcwl", time.Now().Add(time.Hour)), "sp=rcwl", "sp=rcwdl", 1)
	_, _, err = withSAS(t, direct, azurite.Host, forged).Read(t.Context())
	mustSay(t, err, "does not accept the shared access signature")

	// Nobody answers: the URL, which holds the signature, must not be quoted.
	port, err := testbed.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = withSAS(t, direct, fmt.Sprint("127.0.0.1:", port), makeSAS(t, "r", time.Now().Add(time.Hour))).Read(t.Context())
	mustSay(t, err, "no answer from", "refused")
}

// TestConditionsIgnored: a store that drops conditions is found out by the
// probe. Only a shared access signature or a token lets them be dropped on the
// way: a key signs them.
func TestConditionsIgnored(t *testing.T) {
	direct := fresh(t)
	for _, field := range []string{"If-None-Match", "If-Match"} {
		p, err := fault.NewHTTP("http://"+azurite.Host, fault.Always(fault.IsWrite, fault.Strip(field)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		r := withSAS(t, direct, p.Addr(), makeSAS(t, "rcwl", time.Now().Add(time.Hour)))
		var unsafe *tenure.UnsafeStoreError
		if err := tenure.Probe(t.Context(), r.Sibling(".probe/"+strings.ToLower(field)), 0); !errors.As(err, &unsafe) {
			t.Errorf("probe of a store that ignores %s: %v, want an UnsafeStoreError", field, err)
		}
		signed := openAt(t, p.URL()+"/"+testbed.AzuriteAccount, direct.store.container, "signed-"+strings.ToLower(field))
		old := tenure.Version("")
		if field == "If-Match" {
			old = `"0x1"`
		}
		_, err = signed.Write(t.Context(), []byte("x"), old)
		mustSay(t, err, "does not accept the key")
	}
	if err := tenure.Probe(t.Context(), direct.Sibling(".probe/none"), 0); err != nil {
		t.Errorf("probe of the real one: %v", err)
	}
}

// TestClockOff: the service refuses what was signed more than 15 minutes ago or
// ahead. The message blames the clock, and each request is signed anew.
func TestClockOff(t *testing.T) {
	r, _, p := proxied(t, nil)
	var mu sync.Mutex
	signed := map[string]bool{}
	rule := func(date bool) fault.Rule {
		return func(req *http.Request) fault.Action {
			mu.Lock()
			defer mu.Unlock()
			raw := req.Header.Get("x-ms-date")
			if signed[raw+req.Method] {
				t.Errorf("%s was signed with the time of an earlier one", req.Method)
			}
			signed[raw+req.Method] = true
			at, err := http.ParseTime(raw)
			if err == nil && time.Since(at).Abs() < 15*time.Minute {
				return fault.Pass
			}
			a := azureSays(403, "AuthenticationFailed")
			a.Body = "<?xml version=\"1.0\"?><Error><Code>AuthenticationFailed</Code><Message>Server failed to authenticate the request.</Message>" +
				"<AuthenticationErrorDetail>Request date header too old: '" + raw + "'</AuthenticationErrorDetail></Error>"
			if !date {
				a.Header.Set("Date", "")
			}
			return fault.Instead(a)
		}
	}
	for _, off := range []time.Duration{20 * time.Minute, -20 * time.Minute} {
		where := map[bool]string{true: "ahead of", false: "behind"}[off > 0]
		n := time.Duration(0)
		r.store.now = func() time.Time { n += time.Second; return time.Now().Add(off + n) }
		p.SetRule(rule(true))
		_, err := r.Write(t.Context(), nil, "")
		mustSay(t, err, "clock", where, "NTP")
		_, _, err = r.Read(t.Context())
		mustSay(t, err, "clock", where, "NTP")
		p.SetRule(rule(false))
		_, _, err = r.Read(t.Context())
		mustSay(t, err, "clock", "NTP")
	}
	r.store.now = time.Now
	if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("with the clock set right again: %v", err)
	}
}

// TestRefusals: what people get wrong, with what to do.
func TestRefusals(t *testing.T) {
	direct := fresh(t)
	missing := openAt(t, azurite.Endpoint, "no-such-container", "x.lock")
	_, _, err := missing.Read(t.Context())
	mustSay(t, err, "has no container no-such-container", "az storage container create", "404 ContainerNotFound")
	if errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("a missing container is no absent record: %v", err)
	}
	_, err = missing.Write(t.Context(), nil, "")
	mustSay(t, err, "has no container")
	_, err = missing.Write(t.Context(), nil, `"0x1"`)
	mustSay(t, err, "has no container")
	if errors.Is(err, tenure.ErrConflict) {
		t.Errorf("a missing container is no conflict: %v", err)
	}
	_, err = missing.List(t.Context(), "")
	mustSay(t, err, "has no container")

	wrongKey := azuriteStore(t, azurite.Endpoint, direct.store.container)
	wrongKey.signer = &sharedKey{testbed.AzuriteAccount, []byte("another")}
	_, _, err = (&Register{store: wrongKey, blob: "x"}).Read(t.Context())
	mustSay(t, err, "does not accept the key", "rotated", envKey)

	nobody := azuriteStore(t, azurite.Endpoint, direct.store.container)
	nobody.account, nobody.endpoint = "nosuchaccount", &url.URL{Scheme: "https", Host: "nosuchaccount.blob.core.windows.net"}
	nobody.http.Transport = roundTripper(func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "nosuchaccount.blob.core.windows.net", IsNotFound: true}}
	})
	_, _, err = (&Register{store: nobody, blob: "x"}).Read(t.Context())
	mustSay(t, err, "there is no host nosuchaccount.blob.core.windows.net", "account nosuchaccount does not exist", "endpoint=")

	r, direct, p := proxied(t, nil)
	v := mustWrite(t, direct, "1", "")
	for _, tt := range []struct {
		status int
		code   string
		says   []string
	}{
		{403, "AuthorizationPermissionMismatch", []string{"may not write", "Storage Blob Data Contributor"}},
		{403, "AuthorizationFailure", []string{"networking", "private endpoints"}},
		{403, "KeyBasedAuthenticationNotPermitted", []string{"does not accept account keys", envKey}},
		{403, "AccountIsDisabled", []string{"is disabled"}},
		{401, "NoAuthenticationInformation", []string{"without a credential"}},
		{409, "BlobImmutableDueToPolicy", []string{"immutability policy", "container without"}},
		{409, "InvalidBlobType", []string{"block blob", "another path"}},
		{409, "BlobArchived", []string{"archive tier"}},
		{400, "AccountRequiresHttps", []string{"https only"}},
		{400, "InvalidHeaderValue", []string{apiVersion}},
		{400, "SomethingNew", []string{"the store says 400 SomethingNew", "0a1b2c"}},
		{307, "", []string{"redirects"}},
	} {
		p.SetRule(fault.Always(fault.IsWrite, fault.Instead(azureSays(tt.status, tt.code))))
		_, err := r.Write(t.Context(), []byte("2"), v)
		mustSay(t, err, append(tt.says, "azblob: write azblob://")...)
		if errors.Is(err, tenure.ErrConflict) {
			t.Errorf("%s is no conflict", tt.code)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestCertificates: another host's, an expired one, one of nobody that is
// trusted, and a server that speaks no TLS.
func TestCertificates(t *testing.T) {
	authority, err := fault.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	direct := fresh(t)
	v := mustWrite(t, direct, "1", "")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.PEM)
	later := time.Now().Add(time.Hour)
	for _, tt := range []struct {
		name  string
		host  string
		ends  time.Time
		trust *x509.CertPool
		says  []string
	}{
		{"good", "127.0.0.1", later, pool, nil},
		{"another host", "example.test", later, pool, []string{"another host's", "correct the endpoint"}},
		{"expired", "127.0.0.1", time.Now().Add(-time.Hour), pool, []string{"expired", "clock"}},
		{"untrusted", "127.0.0.1", later, x509.NewCertPool(), []string{"authority", "SSL_CERT_FILE"}},
		{"no TLS", "", later, pool, []string{"does not speak TLS", "scheme or port"}},
	} {
		host := azurite.Host
		if tt.host != "" {
			cert, err := authority.Certificate(tt.ends, tt.host)
			if err != nil {
				t.Fatal(err)
			}
			p, err := fault.NewHTTPS("http://"+azurite.Host, nil, cert)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			host = p.Addr()
		}
		r := openAt(t, "https://"+host+"/"+testbed.AzuriteAccount, direct.store.container, direct.blob)
		r.store.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: tt.trust}
		_, got, err := r.Read(t.Context())
		if tt.says == nil {
			if err != nil || got != v {
				t.Errorf("%s: %q, %v", tt.name, got, err)
			}
			continue
		}
		mustSay(t, err, tt.says...)
	}
}

// A fakeCredential gives out tokens.
type fakeCredential struct {
	calls atomic.Int64
	give  func(ctx context.Context, n int64) (azcore.AccessToken, error)
}

func (f *fakeCredential) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	if len(o.Scopes) != 1 || o.Scopes[0] != tokenScope {
		return azcore.AccessToken{}, fmt.Errorf("scopes %q", o.Scopes)
	}
	return f.give(ctx, f.calls.Add(1))
}

// makeToken makes what an issuer would, unsigned: the emulator does not check
// that.
func makeToken(t testing.TB, begins, ends time.Time) azcore.AccessToken {
	t.Helper()
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	head := part(map[string]string{"alg": "HS256", "typ": "JWT"})
	body := part(map[string]any{
		"aud": "https://storage.azure.com", "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
		"iat": begins.Unix(), "nbf": begins.Unix(), "exp": ends.Unix(),
	})
	return azcore.AccessToken{Token: head + "." + body + ".c2ln", ExpiresOn: ends}
}

// secure starts a server of its own that speaks https and takes tokens, with a
// container, and returns the authorities to trust.
func secure(t testing.TB) (*testbed.Azurite, *x509.CertPool) {
	t.Helper()
	authority, err := fault.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := authority.Certificate(time.Now().Add(time.Hour), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	server, err := testbed.StartAzurite(t.TempDir(), testbed.AzuriteTLS{
		Cert: writeFile(t, "cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})),
		Key:  writeFile(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	if err := server.CreateContainer("locks"); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.PEM)
	return server, pool
}

// TestIdentity uses tokens at a real server over TLS: those that the usual
// chain gets for a managed identity, and one that was revoked, which is fetched
// anew after the first refusal.
func TestIdentity(t *testing.T) {
	server, pool := secure(t)
	trust := func(r *Register) {
		r.store.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
		t.Cleanup(r.store.http.CloseIdleConnections)
	}
	now := time.Now()
	var asked atomic.Int64
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("X-IDENTITY-HEADER") != "c2VjcmV0" || r.URL.Query().Get("resource") != "https://storage.azure.com" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"expires_on":"%d","resource":"https://storage.azure.com","token_type":"Bearer"}`,
			makeToken(t, now.Add(-time.Hour), now.Add(time.Hour)).Token, now.Add(time.Hour).Unix())
	}))
	t.Cleanup(issuer.Close)
	t.Setenv("IDENTITY_ENDPOINT", issuer.URL)
	t.Setenv("IDENTITY_HEADER", "c2VjcmV0")
	t.Setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
	lock, err := tenure.Open(t.Context(), server.URL("locks", "managed.lock"), tenure.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	managed := lock.Register.(*Register)
	trust(managed)
	v := mustWrite(t, managed, "1", "")
	mustWrite(t, managed, "2", v)
	if n := asked.Load(); n != 1 {
		t.Errorf("the issuer was asked %d times for two requests, want once", n)
	}

	cred := &fakeCredential{give: func(_ context.Context, n int64) (azcore.AccessToken, error) {
		if n == 2 { // one that the store does not accept any more, though it says that it lasts
			token := makeToken(t, now.Add(-2*time.Hour), now.Add(-time.Hour))
			token.ExpiresOn = now.Add(time.Hour)
			return token, nil
		}
		return makeToken(t, now.Add(-time.Hour), now.Add(time.Hour)), nil
	}}
	tokens := newTokens(cred)
	r := &Register{store: newStore(managed.store.place, tokens), blob: "nightly.lock"}
	trust(r)
	v = mustWrite(t, r, "1", "")
	v = mustWrite(t, r, "2", v)
	token, err := tokens.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tokens.Refused(token)
	_, _, err = r.Read(t.Context())
	mustSay(t, err, "does not accept this identity's token")
	if got, rv := mustRead(t, r); got != "2" || rv != v {
		t.Errorf("after the token was renewed: %q at %q", got, rv)
	}
	if n := cred.calls.Load(); n != 3 {
		t.Errorf("%d tokens, want 3", n)
	}
}

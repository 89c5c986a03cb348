// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/testbed"
)

// An authority makes certificates, as files in a folder.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	var der []byte
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	a.key, der = a.sign(template, nil)
	a.cert, _ = x509.ParseCertificate(der) // just made
	a.file = a.write(name+".crt", "CERTIFICATE", der)
	return a
}

// sign makes a key and a certificate for it, by the authority or, with no
// parent, by the key itself.
func (a *authority) sign(template, parent *x509.Certificate) (*ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	signer := a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, der
}

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// issue makes a certificate for a host, or a user, that ends then.
func (a *authority) issue(name string, end time.Time) (certFile, keyFile string) {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	key, der := a.sign(template, a.cert)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".crt", "CERTIFICATE", der), a.write(name+".key", "PRIVATE KEY", raw)
}

// TestTLS: a server and a user with certificates, and what can be wrong with
// them.
func TestTLS(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t, "authority"), newAuthority(t, "other")
	hour := time.Now().Add(time.Hour)
	cert, key := a.issue("127.0.0.1", hour)
	userCert, userKey := a.issue(testbed.PostgresUser, hour)
	p := start(t, testbed.PostgresOptions{CertFile: cert, KeyFile: key, ClientCAFile: a.file})
	url := func(params string) string {
		return strings.Replace(p.URL("x"), "sslmode=disable", params, 1)
	}
	good := "sslmode=verify-full&sslrootcert=" + a.file + "&sslcert=" + userCert + "&sslkey=" + userKey
	r := open(t, url(good))
	if err := r.Initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := mustWrite(t, r, "1", "")
	if f := finding(t, r, "encryption"); f.Level != tenure.FindingOK {
		t.Errorf("%+v", f)
	}

	strangerCert, strangerKey := other.issue(testbed.PostgresUser, hour)
	nobodyCert, nobodyKey := a.issue("nobody", hour)
	staleCert, staleKey := other.issue("stale", time.Now().Add(-time.Hour))
	for _, tt := range []struct {
		name, params string
		says         []string
	}{
		{"an authority that is not trusted", strings.Replace(good, a.file, other.file, 1), []string{"authority that is not trusted", "sslrootcert="}},
		{"the system's authorities", "sslmode=verify-full&sslcert=" + userCert + "&sslkey=" + userKey, []string{"authority that is not trusted"}},
		{"plain text", "sslmode=disable", []string{"does not let this user in", "TLS"}},
		{"no certificate", "sslmode=verify-full&sslrootcert=" + a.file, []string{"does not let this user in", "sslcert="}},
		{"another user's certificate", strings.NewReplacer(userCert, nobodyCert, userKey, nobodyKey).Replace(good), []string{"does not let this user in"}},
		{"a stranger's certificate", strings.NewReplacer(userCert, strangerCert, userKey, strangerKey).Replace(good), []string{"sslcert="}},
		{"an old certificate", strings.NewReplacer(userCert, staleCert, userKey, staleKey).Replace(good), []string{"sslcert="}},
		{"a key of another certificate", strings.Replace(good, userKey, nobodyKey, 1), []string{"cannot be used", "ssl"}},
	} {
		_, _, err := open(t, url(tt.params)).Read(t.Context())
		if err == nil {
			t.Errorf("%s: no error", tt.name)
		}
		mustSay(t, err, tt.says...)
	}
	for _, mode := range []string{"verify-ca", "require"} {
		mustRead(t, open(t, url(strings.Replace(good, "verify-full", mode, 1))))
	}

	// Under the open connection the server gets certificates with a fault: the
	// connection goes on, and a new one says what is wrong.
	for _, tt := range []struct {
		host string
		end  time.Time
		says string
	}{
		{"127.0.0.1", time.Now().Add(-time.Hour), "has expired or is not valid yet, or this machine's clock is wrong"},
		{"db.invalid", hour, "for another host"},
	} {
		cert, key := a.issue(tt.host, tt.end)
		if err := p.InstallCert(cert, key); err != nil {
			t.Fatal(err)
		}
		v = mustWrite(t, r, "2", v)
		_, _, err := open(t, url(good)).Read(t.Context())
		mustSay(t, err, tt.says)
	}
}

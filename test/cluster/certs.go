// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The service addresses that the API server hands out, and the first of them,
// which is its own.
const (
	serviceRange = "10.0.0.0/24"
	serviceIP    = "10.0.0.1"
)

// validity is that of every certificate: no test of ours outlives it.
const validity = 10 * 365 * 24 * time.Hour

// frontProxy is the common name of the certificate by which a proxy may tell an
// API server whom it speaks for.
const frontProxy = "front-proxy"

// pki is a folder with the cluster's authority and what it has issued. What is
// there is used again, so that a cluster has the same certificates after a
// restart.
type pki struct {
	dir    string
	ca     *x509.Certificate
	caPEM  []byte
	signer *ecdsa.PrivateKey
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

// openPKI makes the authority and the service-account keys, or reads them.
func openPKI(dir, name string) (*pki, error) {
	p := &pki{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if _, err := os.Stat(p.path("ca.crt")); errors.Is(err, fs.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		t := template(name+"-ca", nil)
		t.IsCA, t.BasicConstraintsValid = true, true
		t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
		der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
		if err != nil {
			return nil, err
		}
		// The certificate last: where it is, the key is too.
		if err := p.write("ca.key", keyPEM(key)); err != nil {
			return nil, err
		}
		if err := p.write("ca.crt", certPEM(der)); err != nil {
			return nil, err
		}
	}
	var err error
	if p.caPEM, err = os.ReadFile(p.path("ca.crt")); err != nil {
		return nil, err
	}
	if p.ca, err = parseCert(p.caPEM); err != nil {
		return nil, fmt.Errorf("read %s: %w", p.path("ca.crt"), err)
	}
	if p.signer, err = readKey(p.path("ca.key")); err != nil {
		return nil, err
	}
	return p, p.serviceAccountKeys()
}

func (p *pki) serviceAccountKeys() error {
	if _, err := os.Stat(p.path("sa.pub")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := p.write("sa.key", keyPEM(key)); err != nil {
		return err
	}
	return p.write("sa.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}))
}

// server issues the API servers' certificate for hosts, unless the one there
// already holds for them.
func (p *pki) server(hosts ...string) error {
	if b, err := os.ReadFile(p.path("apiserver.crt")); err == nil {
		if c, err := parseCert(b); err == nil && holdsFor(c, hosts) {
			return nil
		}
	}
	t := template("kube-apiserver", nil)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	cert, key, err := p.issue(t)
	if err != nil {
		return err
	}
	if err := p.write("apiserver.key", key); err != nil {
		return err
	}
	return p.write("apiserver.crt", cert)
}

func holdsFor(c *x509.Certificate, hosts []string) bool {
	for _, h := range hosts {
		if c.VerifyHostname(h) != nil {
			return false
		}
	}
	return true
}

// client issues a certificate that says who its bearer is.
func (p *pki) client(user string, groups []string) (cert, key []byte, err error) {
	t := template(user, groups)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return p.issue(t)
}

func (p *pki) issue(t *x509.Certificate) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, p.ca, k.Public(), p.signer)
	if err != nil {
		return nil, nil, err
	}
	return certPEM(der), keyPEM(k), nil
}

func (p *pki) write(name string, b []byte) error { return writeFile(p.path(name), b) }

// writeFile writes a file that is whole or not there.
func writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the one to tell
	}
	return err
}

func template(name string, groups []string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // the system has no randomness
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		// Clients whose clock is set back are part of the tests.
		NotBefore: now.Add(-24 * time.Hour),
		NotAfter:  now.Add(validity),
		KeyUsage:  x509.KeyUsageDigitalSignature,
	}
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(k *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		panic(err) // a key of a curve that Go made
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func parseCert(b []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, errors.New("not PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("read %s: not PEM", path)
	}
	k, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return k, nil
}

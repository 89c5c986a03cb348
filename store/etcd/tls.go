// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// transport is gRPC's view of how connections are secured. It reads the files
// for each connection, so that certificates may be renewed under a running
// candidate, and remembers why a connection failed.
type transport struct {
	config func() (*tls.Config, error) // nil for plain text
	blame  func(error)
}

// credentials returns how connections to addr are secured.
func (o *Options) credentials(addr string, blame func(error)) (credentials.TransportCredentials, error) {
	if o.TLS == TLSOff {
		return transport{nil, blame}, nil
	}
	name := o.ServerName
	if name == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		name = host
	}
	return transport{func() (*tls.Config, error) { return o.tlsConfig(name) }, blame}, nil
}

// tlsConfig reads the files.
func (o *Options) tlsConfig(serverName string) (*tls.Config, error) {
	c := &tls.Config{ServerName: serverName, InsecureSkipVerify: o.TLS == TLSUnverified, MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificate authority: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM form", o.CAFile)
		}
	}
	if o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the client certificate %s and its key: %w", o.CertFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// ClientHandshake implements [credentials.TransportCredentials].
func (t transport) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	under := insecure.NewCredentials()
	if t.config != nil {
		config, err := t.config()
		if err != nil {
			t.blame(err)
			return nil, nil, err
		}
		under = credentials.NewTLS(config)
		authority = config.ServerName // gRPC checks against this one
	}
	conn, info, err := under.ClientHandshake(ctx, authority, raw)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			err = fmt.Errorf("%w: %w", errHungUp, err)
		}
		t.blame(err)
		return nil, nil, err
	}
	return tapped{conn, t.blame}, info, nil
}

// errHungUp: no answer to the first TLS message but the end.
var errHungUp = errors.New("the server hung up when TLS began")

// A tapped connection remembers a TLS alert: a server tells only then that it
// does not accept a certificate.
type tapped struct {
	net.Conn
	blame func(error)
}

func (c tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if isAlert(err) {
		c.blame(err)
	}
	return n, err
}

// isAlert reports whether the other side ended TLS with an alert: its own type
// is not exported.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// ServerHandshake implements [credentials.TransportCredentials].
func (t transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("etcd: this is a client")
}

// Info implements [credentials.TransportCredentials].
func (t transport) Info() credentials.ProtocolInfo {
	if t.config == nil {
		return insecure.NewCredentials().Info()
	}
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements [credentials.TransportCredentials].
func (t transport) Clone() credentials.TransportCredentials { return t }

// OverrideServerName implements [credentials.TransportCredentials].
func (t transport) OverrideServerName(string) error {
	return errors.New("etcd: the server's name is Options.ServerName")
}

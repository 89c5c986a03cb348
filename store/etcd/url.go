// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"tenure.dev"
)

// TLS says how connections are secured.
type TLS string

// The ways to secure connections.
const (
	// TLSVerified checks the server's certificate; it is the default.
	TLSVerified TLS = ""
	// TLSUnverified encrypts, but talks to whoever answers.
	TLSUnverified TLS = "unverified"
	// TLSOff sends everything in plain text.
	TLSOff TLS = "off"
)

// Options say how to reach a cluster.
type Options struct {
	// Endpoints are the members' addresses for clients, "host:port"; at least
	// one.
	Endpoints []string
	// TLS is [TLSVerified] by default.
	TLS TLS
	// CAFile holds the certificates of the authorities that sign the server's;
	// the system's by default. CertFile and KeyFile are the client's
	// certificate, if the server wants one. ServerName is the name that the
	// server's certificate must have, by default the endpoint's. The files are
	// read for each connection.
	CAFile, CertFile, KeyFile, ServerName string
	// User is whom to log in as; nobody by default. The password is in
	// PasswordFile, which is read for each login, or else Password.
	User, PasswordFile, Password string

	fromEnv bool
}

var params = []string{"cafile", "certfile", "keyfile", "passwordfile", "servername", "tls", "user"}

func init() {
	tenure.RegisterScheme("etcd", tenure.Driver{Open: openURL, Params: params})
}

func openURL(_ context.Context, u *tenure.URL) (tenure.Register, error) {
	if err := checkURL(u); err != nil {
		return nil, fmt.Errorf("%w: %w", tenure.ErrURL, err)
	}
	opt := Options{
		TLS:    TLS(u.Params["tls"]),
		CAFile: u.Params["cafile"], CertFile: u.Params["certfile"], KeyFile: u.Params["keyfile"], ServerName: u.Params["servername"],
		User: u.Params["user"], PasswordFile: u.Params["passwordfile"],
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		opt.Endpoints = append(opt.Endpoints, withPort(host))
	}
	opt.fillFromEnv()
	r, err := Open(u.Path, opt)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func checkURL(u *tenure.URL) error {
	const example = "etcd://host-1:2379,host-2:2379,host-3:2379/tenure/nightly"
	switch {
	case u.Host == "":
		return fmt.Errorf("it names no member: write %s", example)
	case u.Path == "" || strings.HasSuffix(u.Path, "/"):
		return fmt.Errorf("it names no key: write %s", example)
	}
	for name, value := range u.Params {
		if value == "" {
			return fmt.Errorf("the parameter %q is empty: leave it out, or give it a value", name)
		}
	}
	switch TLS(u.Params["tls"]) {
	case TLSVerified, TLSUnverified, TLSOff:
	default:
		return errors.New("tls is not known: it is unverified or off; connections are secured and certificates checked by default")
	}
	return nil
}

// withPort adds etcd's port for clients if there is none.
func withPort(host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "2379")
}

// fillFromEnv takes user and password from where etcdctl takes them.
func (o *Options) fillFromEnv() {
	user, password, hasPassword := strings.Cut(os.Getenv("ETCDCTL_USER"), ":")
	if o.User == "" && o.CertFile == "" {
		o.User = user
	}
	if o.User != user {
		hasPassword = false // it is another user's
	}
	if p := os.Getenv("ETCDCTL_PASSWORD"); p != "" {
		password, hasPassword = p, true
	}
	if o.PasswordFile == "" && o.User != "" && hasPassword {
		o.Password, o.fromEnv = password, true
	}
}

// check finds what is wrong with the options themselves and the files that they
// name.
func (o *Options) check() error {
	if len(o.Endpoints) == 0 {
		return errors.New("etcd: no endpoint is given")
	}
	seen := map[string]bool{}
	for _, e := range o.Endpoints {
		if _, _, err := net.SplitHostPort(e); err != nil {
			return fmt.Errorf("%w: etcd: an endpoint is host:port: %w", tenure.ErrURL, err)
		}
		if seen[e] {
			return fmt.Errorf("%w: etcd: the endpoint %s is given twice: keep one", tenure.ErrURL, e)
		}
		seen[e] = true
	}
	if err := o.checkTLS(); err != nil {
		return err
	}
	return o.checkUser()
}

func (o *Options) checkTLS() error {
	switch {
	case o.TLS == TLSOff && o.CAFile+o.CertFile+o.KeyFile+o.ServerName != "":
		return fmt.Errorf("%w: etcd: tls=off has no use for cafile, certfile, keyfile or servername: leave out one or the other", tenure.ErrURL)
	case o.TLS == TLSUnverified && o.CAFile+o.ServerName != "":
		return fmt.Errorf("%w: etcd: tls=unverified has no use for cafile or servername: leave out one or the other", tenure.ErrURL)
	case (o.CertFile == "") != (o.KeyFile == ""):
		return fmt.Errorf("%w: etcd: certfile and keyfile belong together: give both", tenure.ErrURL)
	case o.TLS == TLSOff:
		return nil
	}
	if _, err := o.tlsConfig(""); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
}

func (o *Options) checkUser() error {
	switch {
	case o.User == "" && o.PasswordFile != "":
		return fmt.Errorf("%w: etcd: passwordfile is given and no user: add user", tenure.ErrURL)
	case o.User == "":
		return nil
	case o.PasswordFile == "" && o.Password == "":
		return fmt.Errorf("etcd: no password is given for the user %s: add passwordfile to the URL, or set ETCDCTL_PASSWORD", o.User)
	case o.TLS != TLSVerified:
		for _, e := range o.Endpoints {
			if !loopback(e) {
				return fmt.Errorf("%w: etcd: with tls=%s the password would be sent to whoever answers at, or listens on the way to, %s: leave out tls, or log in with a client certificate",
					tenure.ErrURL, o.TLS, e)
			}
		}
	}
	if _, err := newAuth(*o).password(); err != nil {
		return fmt.Errorf("etcd: read the password of the user %s: %w", o.User, err)
	}
	return nil
}

// loopback reports whether an endpoint is on this machine.
func loopback(endpoint string) bool {
	host, _, err := net.SplitHostPort(endpoint)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

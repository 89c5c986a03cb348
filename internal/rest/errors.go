// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"tenure.dev"
)

var _ tenure.RetryAfterer = (*laterError)(nil)

// Later returns err as one of a store that asked to be left alone: a
// tenure.RetryAfterer.
func Later(err error, after time.Duration) error { return &laterError{err, after} }

type laterError struct {
	error
	after time.Duration
}

// RetryAfter returns the time to wait.
func (e *laterError) RetryAfter() time.Duration { return e.after }

// Unwrap returns the error without the time.
func (e *laterError) Unwrap() error { return e.error }

// Said returns err with another message, for causes whose own are pages. What it
// wraps stays reachable.
func Said(message string, err error) error { return &saidError{message, err} }

type saidError struct {
	message string
	err     error
}

// Error implements error.
func (e *saidError) Error() string { return e.message }

// Unwrap returns the cause.
func (e *saidError) Unwrap() error { return e.err }

// WithoutURL takes the URL out of an error of net/http: it may hold a signature or
// another secret.
func WithoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// ExplainTransport says what an error without an answer means. NoHost is what it means
// that there is no such host.
func ExplainTransport(err error, endpoint *url.URL, noHost string) error {
	err = WithoutURL(err)
	var (
		host    x509.HostnameError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
		dns     *net.DNSError
	)
	name := endpoint.Host
	switch {
	case errors.As(err, &host):
		return fmt.Errorf("the certificate at %s is another host's: correct the endpoint, or look who answers there: %w", name, err)
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate at %s is signed by an authority that this machine does not know:"+
			" if it is right (a private one, a proxy that inspects TLS), name it in SSL_CERT_FILE: %w", name, err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the certificate at %s is not valid at this time: it has expired, or this machine's clock is off: %w", name, err)
	case errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("what answers at %s does not speak TLS: correct the endpoint's scheme or port: %w", name, err)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("there is no host %s: %s: %w", endpoint.Hostname(), noHost, err)
	}
	return fmt.Errorf("no answer from %s: %w", name, err)
}

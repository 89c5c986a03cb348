// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev/internal/rest"
)

// errNotAPIServer: what answered is something else.
var errNotAPIServer = errors.New("what answers there is not a Kubernetes API server")

// explainTransport says what to do about a request that got no answer. It wraps
// ctx's error when that has ended.
func explainTransport(ctx context.Context, cl *client, err error) error {
	hint := ""
	var (
		host    x509.HostnameError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		verify  *tls.CertificateVerificationError
		op      *net.OpError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &host):
		hint = "it shows the certificate of another host: check the server's address in the kubeconfig, and what stands between"
	case errors.As(err, &unknown):
		hint = "its certificate is by an authority that the kubeconfig does not have: check certificate-authority-data, and what stands between"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		hint = "its certificate has expired or does not hold yet: renew it, or set this machine's clock"
	case errors.As(err, &verify):
		hint = "its certificate cannot be verified"
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		hint = "it does not speak TLS: check the server's address in the kubeconfig"
	case errors.As(err, &op) && op.Op == "remote error":
		hint = "it refuses this client's certificate"
	}
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	if hint == "" {
		return fmt.Errorf("%s: %w", cl.base.Host, err)
	}
	return fmt.Errorf("%s: %s: %w", cl.base.Host, hint, err)
}

// explainStatus returns nil for success, else what the status means. Errors of
// an API server are *[apierrors.StatusError].
func explainStatus(cl *client, resp *http.Response, body []byte) error {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	isJSON := err == nil && kind == "application/json"
	if resp.StatusCode >= 200 && resp.StatusCode < 300 && isJSON {
		return nil
	}
	var status metav1.Status
	if !isJSON || json.Unmarshal(body, &status) != nil || status.Kind != "Status" {
		return notAPIServer(cl, resp, kind)
	}
	status.Code = int32(resp.StatusCode)
	var out error = &apierrors.StatusError{ErrStatus: status}
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		out = fmt.Errorf("the credentials are refused%s; they are read again for the next request: %w", certificateNote(cl), out)
	case http.StatusTooManyRequests:
		out = fmt.Errorf("the API server asks to wait: %w", out)
	}
	return withRetryAfter(out, resp, &status)
}

// notAPIServer is for answers without a Status.
func notAPIServer(cl *client, resp *http.Response, kind string) error {
	const next = "check the server's address in the kubeconfig, and for a proxy or a login page between"
	var out error
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		to := "elsewhere"
		if u, err := resp.Location(); err == nil {
			to = "to " + u.Host
		}
		out = fmt.Errorf("%w: %s redirects %s; %s", errNotAPIServer, cl.base.Host, to, next)
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		out = fmt.Errorf("%s answers %d and no Status (%s): the API server, or a proxy before it, is overloaded or down", cl.base.Host, resp.StatusCode, kind)
	case resp.StatusCode == http.StatusUnauthorized:
		out = fmt.Errorf("%w: %s answers 401 and no Status (%s): a proxy before it wants other credentials", errNotAPIServer, cl.base.Host, kind)
	default:
		out = fmt.Errorf("%w: %s answers %d with %q; %s", errNotAPIServer, cl.base.Host, resp.StatusCode, kind, next)
	}
	return withRetryAfter(out, resp, nil)
}

func withRetryAfter(err error, resp *http.Response, status *metav1.Status) error {
	var after time.Duration
	if text := resp.Header.Get("Retry-After"); text != "" {
		if seconds, perr := strconv.ParseInt(text, 10, 32); perr == nil {
			after = time.Duration(seconds) * time.Second
		} else if at, perr := http.ParseTime(text); perr == nil {
			after = time.Until(at)
		}
	}
	if status != nil && status.Details != nil && after <= 0 {
		after = time.Duration(status.Details.RetryAfterSeconds) * time.Second
	}
	if after <= 0 {
		return err
	}
	return rest.Later(err, after)
}

// certificateNote says so if the client certificate in use has ended: the
// server does not.
func certificateNote(cl *client) string {
	if end := cl.certificateEnd(); !end.IsZero() && time.Now().After(end) {
		return fmt.Sprintf(" (the client certificate ended on %s, by this machine's clock)", end.UTC().Format(time.RFC3339))
	}
	return ""
}

// apiStatus returns the Status in an error, or nil.
func apiStatus(err error) *metav1.Status {
	var s *apierrors.StatusError
	if !errors.As(err, &s) {
		return nil
	}
	return &s.ErrStatus
}

// explainRefusal adds what to do about what an API server refuses.
func (r *Register) explainRefusal(verb string, err error) error {
	s := apiStatus(err)
	if s == nil {
		return err
	}
	switch {
	case s.Code == http.StatusForbidden && hasCause(s, "NamespaceTerminating"):
		return fmt.Errorf("the namespace %q is being deleted: choose another one: %w", r.namespace, err)
	case s.Code == http.StatusForbidden && strings.Contains(s.Message, "exceeded quota"):
		return fmt.Errorf("a quota of the namespace %q leaves no room for another Lease: %w", r.namespace, err)
	case s.Code == http.StatusForbidden:
		return fmt.Errorf("this user may not %s leases.coordination.k8s.io in the namespace %q; grant it the Role in the documentation of tenure.dev/kube,"+
			" or see what an admission policy says: %w", verb, r.namespace, err)
	case s.Code == http.StatusNotFound && s.Details != nil && s.Details.Kind == "namespaces":
		return fmt.Errorf("there is no namespace %q in that cluster: make it, or name another one: %w", r.namespace, err)
	case s.Code == http.StatusNotFound && !isLease(s):
		return fmt.Errorf("the server does not know Leases of coordination.k8s.io/v1: is it a Kubernetes API server? %w", err)
	}
	return err
}

func isLease(s *metav1.Status) bool {
	return s.Details != nil && s.Details.Kind == "leases" && s.Details.Name != ""
}

func hasCause(s *metav1.Status, cause metav1.CauseType) bool {
	if s.Details == nil {
		return false
	}
	for _, c := range s.Details.Causes {
		if c.Type == cause {
			return true
		}
	}
	return false
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"time"
)

// A Delay keeps a request from the API server, and its answer from the client, for
// so long.
type Delay struct{ Before, After time.Duration }

// Delay has a rule say what happens to each request that is sent through the
// kubeconfigs of this site; nil ends it.
func (s *Site) Delay(rule func(*http.Request) Delay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = rule
}

// LeaseWrites matches writes of a gated Lease by a stock controller.
func LeaseWrites(r *http.Request) bool {
	return r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/leases") &&
		len(r.TLS.PeerCertificates) > 0 && !strings.Contains(r.TLS.PeerCertificates[0].Subject.CommonName, "tenure")
}

// intercept stands before each API server.
func (s *Site) intercept(_ int, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		rule := s.fault
		s.mu.Unlock()
		var d Delay
		if rule != nil {
			d = rule(r)
		}
		if d == (Delay{}) {
			next.ServeHTTP(w, r)
			return
		}
		wait(r, d.Before)
		// What the API server answers is kept whole, and it hears the request also
		// when the client has gone.
		a := &answer{header: w.Header(), status: http.StatusOK}
		next.ServeHTTP(a, r.WithContext(context.WithoutCancel(r.Context())))
		wait(r, d.After)
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body.Bytes()) // the client may have gone
	})
}

func wait(r *http.Request, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
	}
}

type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

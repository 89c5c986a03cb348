// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"tenure.dev"
	"tenure.dev/internal/replica"
)

// serve answers for metrics and health.
func (op *Operator) serve() (stop func(), err error) {
	var servers []*http.Server
	stop = func() {
		for _, s := range servers {
			_ = s.Close() // the process ends
		}
	}
	start := func(addr string, h http.Handler) error {
		if addr == "" {
			return nil
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("operator: listen for metrics or health: %w", err)
		}
		s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
		servers = append(servers, s)
		go func() {
			if err := s.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
				op.log.Error("serving metrics or health ended", "error", err)
			}
		}()
		return nil
	}
	metrics := http.NewServeMux()
	metrics.Handle("GET /metrics", op.metrics.handler())
	health := http.NewServeMux()
	health.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "alive") })
	health.HandleFunc("GET /readyz", op.readyz)
	if err := errors.Join(start(op.opt.Metrics, metrics), start(op.opt.Health, health)); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// readyz tells whether this cluster could lead: alive is not the same.
func (op *Operator) readyz(w http.ResponseWriter, _ *http.Request) {
	op.mu.Lock()
	synced := op.synced
	var waiting []string
	for key, wk := range op.workers {
		if !wk.mayOpen() {
			waiting = append(waiting, key.String())
		}
	}
	op.mu.Unlock()
	holder, err := op.seat.Holder()
	switch {
	case !synced:
		http.Error(w, "the objects have not been listed yet", http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, "the cluster's seat cannot be read: "+err.Error(), http.StatusServiceUnavailable)
	case holder != op.opt.Replica:
		fmt.Fprintf(w, "standing by: replica %q acts for the cluster\n", holder)
	case len(waiting) > 0:
		http.Error(w, fmt.Sprintf("not able to lead by: %v", waiting), http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "able to lead")
	}
}

// reason names why a request to a lock store failed, from a short list.
func reason(err error) string {
	var ra tenure.RetryAfterer
	var timeout net.Error
	switch {
	case errors.Is(err, replica.ErrNotSeated):
		return "not-seated"
	case errors.Is(err, tenure.ErrConflict):
		return "conflict"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.As(err, &ra):
		return "throttled"
	default:
		return "error"
	}
}

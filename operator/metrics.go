// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tenure.dev"
)

// metrics are what /metrics shows.
type metrics struct {
	registry    *prometheus.Registry
	seated      prometheus.Gauge
	leader      *prometheus.GaugeVec
	epoch       *prometheus.GaugeVec
	latency     *prometheus.HistogramVec
	failures    *prometheus.CounterVec
	transitions *prometheus.CounterVec
	refused     *prometheus.GaugeVec
	open        *prometheus.GaugeVec
	writes      *prometheus.CounterVec

	mu        sync.Mutex
	deadlines map[string]time.Time
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), deadlines: make(map[string]time.Time)}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tenure_" + name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tenure_" + name, Help: help}, labels)
	}
	m.seated = prometheus.NewGauge(prometheus.GaugeOpts{Name: "tenure_acting", Help: "1 if this replica acts for the cluster."})
	m.leader = gauge("leader", "1 if this cluster holds the lock.", "lock")
	m.epoch = gauge("epoch", "Epoch of the lock's newest term that this cluster has seen.", "lock")
	m.latency = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tenure_renew_seconds", Help: "How long renewals of the lock took.",
		Buckets: prometheus.ExponentialBuckets(0.002, 2, 14)}, []string{"lock"})
	m.failures = counter("request_failures_total", "Requests to the lock store that failed.", "lock", "reason")
	m.transitions = counter("transitions_total", "Terms that this cluster began or ended, by cause.", "lock", "cause")
	m.refused = gauge("enforced", "1 if every API server was seen to refuse at the gate's state.", "namespace", "name")
	m.open = gauge("open", "1 if the gate is open.", "namespace", "name")
	m.writes = counter("status_writes_total", "Writes of an object's status.", "namespace", "name")
	remaining := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tenure_remaining_seconds", Help: "Least time left of a term of this cluster, 0 if it has none."}, m.remaining)
	m.registry.MustRegister(m.seated, m.leader, m.epoch, m.latency, m.failures, m.transitions, m.refused, m.open, m.writes, remaining,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) seat(holding bool) { m.seated.Set(number(holding)) }

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) remaining() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	least := 0.0
	for _, d := range m.deadlines {
		if left := time.Until(d).Seconds(); least == 0 || left < least {
			least = max(left, 0)
		}
	}
	return least
}

func (m *metrics) deadline(lock string, d time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d.IsZero() {
		delete(m.deadlines, lock)
		return
	}
	m.deadlines[lock] = d
}

// event counts what an elector tells.
func (m *metrics) event(lock string, e tenure.Event) {
	if e.Epoch > 0 {
		m.epoch.WithLabelValues(lock).Set(float64(e.Epoch))
	}
	switch e.Kind {
	case tenure.EventBegan:
		m.leader.WithLabelValues(lock).Set(1)
		m.transitions.WithLabelValues(lock, "began").Inc()
		m.deadline(lock, e.Deadline)
	case tenure.EventRenewed:
		m.latency.WithLabelValues(lock).Observe(e.Latency.Seconds())
		m.deadline(lock, e.Deadline)
	case tenure.EventStopping:
		m.transitions.WithLabelValues(lock, cause(e.Err)).Inc()
	case tenure.EventEnded:
		m.leader.WithLabelValues(lock).Set(0)
		m.deadline(lock, time.Time{})
	case tenure.EventFailed:
		m.failures.WithLabelValues(lock, reason(e.Err)).Inc()
	default:
	}
}

// cause names why a term ends, from a short list.
func cause(err error) string {
	var lost *tenure.LostError
	switch {
	case errors.As(err, &lost):
		return "lost"
	case errors.Is(err, tenure.ErrRenewDeadline):
		return "renew-deadline"
	case errors.Is(err, tenure.ErrHandover):
		return "handover"
	case errors.Is(err, tenure.ErrStopped):
		return "stopped"
	case errors.Is(err, tenure.ErrWorkEnded):
		return "given-up"
	default:
		return "other"
	}
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

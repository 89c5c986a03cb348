// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// noiseKind is what goes wrong with a single request.
type noiseKind int

const (
	noNoise noiseKind = iota
	noiseErrors
	noiseLostRequests
	noiseLostAnswers
	noiseSlow
	noiseLate
	noiseKinds
)

var noiseNames = [noiseKinds]string{"none", "error", "lost request", "lost answer", "slow", "late"}

// noiseWindow is a time in which requests go wrong.
type noiseWindow struct {
	until time.Duration
	kind  noiseKind // noNoise for any
	p     float64
}

// newNoise makes a window; N says of what kind: from noiseErrors on in its
// lowest decimal digit, any for 0.
func newNoise(until time.Duration, n uint64) noiseWindow {
	r := newRNG(n, 2)
	return noiseWindow{until: until, kind: noiseKind(n % uint64(noiseKinds)), p: pick(r, []float64{0.2, 0.5, 0.8, 1})}
}

// noiseFor draws what goes wrong with a request of that slot.
func (w *world) noiseFor(s *slot, r *rng) noiseKind {
	now := w.now()
	any := noiseKind(1 + r.n(int(noiseKinds)-1))
	if r.chance(w.sc.Noise) {
		return any
	}
	for _, list := range [2][]noiseWindow{w.noise, s.noise} {
		for _, n := range list {
			if now >= n.until || !r.chance(n.p) {
				continue
			}
			if n.kind == noNoise {
				return any
			}
			return n.kind
		}
	}
	return noNoise
}

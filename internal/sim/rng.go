// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// rng is a small generator. There is one per purpose, seeded by what it is for,
// so that what one candidate draws does not depend on when another one draws.
type rng struct{ s uint64 }

func newRNG(parts ...uint64) *rng {
	r := &rng{}
	for _, p := range parts {
		r.s = r.next() ^ p
	}
	r.next()
	return r
}

func (r *rng) next() uint64 {
	r.s += 0x9e3779b97f4a7c15
	z := r.s
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// n returns a number from 0 to n-1.
func (r *rng) n(n int) int { return int(r.next() % uint64(n)) }

func (r *rng) float() float64 { return float64(r.next()>>11) / (1 << 53) }

func (r *rng) chance(p float64) bool { return r.float() < p }

// dur returns a duration from lo to hi, to the nanosecond, so that no two
// things happen at the same instant.
func (r *rng) dur(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo + time.Duration(r.n(1000))
	}
	return lo + time.Duration(r.next()%uint64(hi-lo))
}

func pick[T any](r *rng, from []T) T { return from[r.n(len(from))] }

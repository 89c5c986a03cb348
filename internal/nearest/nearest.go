// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package nearest finds what was probably meant by a mistyped word.
package nearest

import "slices"

// Word returns the word of list with the smallest edit distance to s, the
// first in the alphabet among equals, or "" if none is near: if more than a
// third of the longer word, or more than one letter of a short one, differs.
func Word(s string, list []string) string {
	best, bestDistance := "", 0
	for _, w := range slices.Sorted(slices.Values(list)) {
		d, longer := distance(s, w), max(len(s), len(w))
		if d < longer && d <= max(1, longer/3) && (best == "" || d < bestDistance) {
			best, bestDistance = w, d
		}
	}
	return best
}

// distance counts the bytes to insert, delete, replace or swap with their
// neighbour to turn a into b.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

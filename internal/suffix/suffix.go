// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package suffix is what drivers whose keys are paths ask of the suffixes of
// siblings.
package suffix

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var form = regexp.MustCompile(`^[A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*$`)

// Valid reports whether a register may have a sibling of that suffix.
func Valid(s string) bool { return s != "" && form.MatchString(s) }

// Refuse is the error for one that it may not have.
func Refuse(s string) error {
	return fmt.Errorf("%q is no sibling's suffix: use letters, digits, '.', '-', '_' and single slashes", s)
}

// Of returns the suffixes, sorted, that begin with prefix and make one of the names
// out of own.
func Of(names []string, own, prefix string) []string {
	var list []string
	for _, name := range names {
		s, ok := strings.CutPrefix(name, own)
		if ok && strings.HasPrefix(s, prefix) && Valid(s) {
			list = append(list, s)
		}
	}
	slices.Sort(list)
	return list
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

var (
	namespaceForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	nameForm      = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

const (
	maxNamespace = 63
	maxName      = 253
	// escape introduces the two hexadecimal digits of a byte that a name cannot
	// have where it stands. A lock's own name must not contain it.
	escape = "--"
)

// checkName returns what is wrong with the name of a lock, or "".
func checkName(name string) string {
	switch {
	case name == "":
		return "has no name of a Lease"
	case len(name) > maxName:
		return fmt.Sprintf("has a name of %d bytes; at most %d are possible", len(name), maxName)
	case strings.Contains(name, escape):
		return fmt.Sprintf("has %q in its name %q, which is kept for the Leases beside a lock", escape, name)
	case !nameForm.MatchString(name):
		return fmt.Sprintf("has the name %q, which no Lease can have: use lower case letters, digits, '-' and '.', beginning and ending with a letter or digit", name)
	}
	return ""
}

// encodeName returns the Lease's name for a lock's own name followed by a
// suffix. Letters and digits stay; '.' and '-' do where a name may have them;
// every other byte becomes "--" and two hexadecimal digits.
func encodeName(own, suffix string) string {
	var b strings.Builder
	b.WriteString(own)
	for i := range len(suffix) {
		c := suffix[i]
		between := i+1 < len(suffix) && plain(suffix[i+1])
		if plain(c) || (c == '.' || c == '-') && between {
			b.WriteByte(c)
			continue
		}
		b.WriteString(escape)
		b.WriteString(hex.EncodeToString([]byte{c}))
	}
	return b.String()
}

func plain(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// decodeName returns what encodeName was given, own name and suffix together;
// ok is false for a name that it never makes.
func decodeName(name string) (full string, ok bool) {
	var b strings.Builder
	for rest := name; rest != ""; {
		plainPart, escaped, found := strings.Cut(rest, escape)
		b.WriteString(plainPart)
		if !found {
			break
		}
		if len(escaped) < 2 {
			return "", false
		}
		c, err := hex.DecodeString(escaped[:2])
		if err != nil {
			return "", false
		}
		b.WriteByte(c[0])
		rest = escaped[2:]
	}
	return b.String(), true
}

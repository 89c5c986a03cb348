// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bytes"
	"crypto/rand"
)

// An ETag is most often a hash of the bytes, and the same bytes must not have
// the same version twice. So each write puts a line before the value that no
// other write has: saltMark, 130 random bits, a line feed.
const (
	saltMark = "tenure/1 "
	saltText = 26
	saltLen  = len(saltMark) + saltText + 1
)

func salted(value []byte) []byte {
	b := make([]byte, 0, saltLen+len(value))
	b = append(b, saltMark...)
	b = append(b, rand.Text()...)
	b = append(b, '\n')
	return append(b, value...)
}

// unsalt takes the line off. What has none was written by somebody else, and is
// the value as it is.
func unsalt(body []byte) []byte {
	if len(body) < saltLen || !bytes.HasPrefix(body, []byte(saltMark)) || body[saltLen-1] != '\n' {
		return body
	}
	for _, c := range body[len(saltMark) : saltLen-1] {
		if (c < 'A' || c > 'Z') && (c < '2' || c > '7') {
			return body
		}
	}
	return body[saltLen:]
}

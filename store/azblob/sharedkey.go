// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A sharedKey signs requests with the account's key.
type sharedKey struct {
	account string
	key     []byte
}

func (k *sharedKey) sign(_ context.Context, r *http.Request) error {
	mac := hmac.New(sha256.New, k.key)
	mac.Write([]byte(k.stringToSign(r))) // a hash takes everything
	r.Header.Set("Authorization", "SharedKey "+k.account+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return nil
}

// stringToSign is laid down by the service: the method, certain headers in this
// order, all x-ms- headers, and the resource with its parameters.
func (k *sharedKey) stringToSign(r *http.Request) string {
	var b strings.Builder
	line := func(s string) { b.WriteString(s + "\n") }
	line(r.Method)
	for _, name := range []string{
		"Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date",
		"If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range",
	} {
		value := r.Header.Get(name)
		if name == "Content-Length" && r.ContentLength > 0 {
			value = decimal(r.ContentLength)
		}
		line(value)
	}
	own := map[string]string{}
	for name := range r.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-ms-") {
			own[lower] = strings.TrimSpace(r.Header.Get(name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		line(name + ":" + own[name])
	}
	b.WriteString("/" + k.account + r.URL.EscapedPath())
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		values := slices.Sorted(slices.Values(query[name]))
		b.WriteString("\n" + strings.ToLower(name) + ":" + strings.Join(values, ","))
	}
	return b.String()
}

func (*sharedKey) refused(*http.Request) {}

func (*sharedKey) rights(time.Time) rights { return rights{kind: "key"} }

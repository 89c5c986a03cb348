// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"fmt"
	"sync/atomic"
	"testing"

	"tenure.dev"
	"tenure.dev/storetest"
)

// TestConformance runs the suite for drivers on a real server.
func TestConformance(t *testing.T) {
	container := newContainer(t)
	var n atomic.Int64
	name := func() string { return fmt.Sprintf("locks/%04d.lock", n.Add(1)) }
	storetest.Run(t, storetest.Harness{
		New: func(storetest.T) tenure.Register { return openAt(t, azurite.Endpoint, container, name()) },
		Open: func(storetest.T) (a, b tenure.Register) {
			blob := name()
			return openAt(t, azurite.Endpoint, container, blob), openAt(t, azurite.Endpoint, container, blob)
		},
		Delete:    func(_ storetest.T, r tenure.Register) { remove(t, r.(*Register)) },
		Corrupt:   func(_ storetest.T, r tenure.Register, b []byte) { put(t, r.(*Register), b) },
		Histories: 8, Clients: 4, Requests: 25,
	})
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"errors"
	"testing"

	"tenure.dev"
	"tenure.dev/store/mem"
)

// TestHandoverUnderWay: an order that is repeated while the lock is on its way, free
// and kept for the candidate, is no error; for another candidate it is.
func TestHandoverUnderWay(t *testing.T) {
	reg := struct{ tenure.Register }{mem.New()} // which lists no candidates: every name is accepted
	free := `{"holderIdentity":"","leaseDurationSeconds":10,"leaseTransitions":1,"epoch":5,"nonce":"n","preferredHolder":"b"}`
	if _, err := reg.Write(t.Context(), []byte(free), ""); err != nil {
		t.Fatal(err)
	}
	v, err := tenure.Handover(t.Context(), reg, "b")
	if err != nil || v.Record.PreferredHolder != "b" || v.State != tenure.RecordReleased {
		t.Errorf("to b: %+v, %v", v, err)
	}
	for _, to := range []string{"c", tenure.AnyHolder} {
		if _, err := tenure.Handover(t.Context(), reg, to); !errors.Is(err, tenure.ErrNoLeader) {
			t.Errorf("to %s: %v, want ErrNoLeader", to, err)
		}
	}
}

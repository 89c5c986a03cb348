// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"testing"
	"time"
)

// programs are built once for all tests.
func programs(t *testing.T) Programs {
	t.Helper()
	return Programs{Tenure: os.Getenv("E2E_TENURE"), Elector: os.Getenv("E2E_ELECTOR")}
}

func TestSmoke(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := os.Getenv("E2E_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	l, err := Start(ctx, Options{Dir: dir, Programs: programs(t), Clusters: []string{"a", "b"}, Lease: 6 * time.Second, Renew: 4 * time.Second, Retry: time.Second, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Say("clusters are up")
	for _, s := range l.Sites {
		if err := s.Tenure("t1"); err != nil {
			t.Fatal(err)
		}
		if err := s.Gate(ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * time.Second)
	for _, s := range l.Sites {
		if err := s.Elector("e1"); err != nil {
			t.Fatal(err)
		}
	}
	first, ok := l.Receiver.Await(90*time.Second, func(Beat) bool { return true })
	if !ok {
		for _, s := range l.Sites {
			t.Logf("%s: %s\n%s", s.Name, s.Describe(ctx), s.Tail("t1", 6000))
		}
		t.Fatal("nobody leads")
	}
	l.Say("%s leads", first.Holder)
	time.Sleep(20 * time.Second)
	if o := Overlaps(l.Receiver.Beats(time.Time{})); len(o) > 0 {
		t.Errorf("overlap: %+v", o)
	}
	for _, s := range l.Sites {
		t.Logf("%s: %s\n%s", s.Name, s.Describe(ctx), s.Tail("t1", 3000))
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/test/testbed"
)

// TestScale: 200 objects on one lock. One renewal of the lock serves them all, each
// object's status is written at most once per half grant, and the controller stays
// small.
func TestScale(t *testing.T) {
	objectsN := 200
	if n, err := strconv.Atoi(os.Getenv("TENURE_E2E_OBJECTS")); err == nil {
		objectsN = n
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	l, err := Start(ctx, Options{
		Dir: t.TempDir(), Programs: programs(t), Clusters: []string{"a"}, Lease: 15 * time.Second, Renew: 10 * time.Second, Retry: 2 * time.Second, Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := l.Sites[0]
	for i := range objectsN {
		err := s.Gate(ctx, func(mcl *v1alpha1.MultiClusterLease) {
			mcl.Name = fmt.Sprintf("demo-%d", i)
			mcl.Spec.Leases[0].Name = fmt.Sprintf("ctl-%d", i)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	port, err := testbed.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	if err := s.Tenure("t1", "--metrics-address", addr); err != nil {
		t.Fatal(err)
	}
	l.Say("%d objects, one replica", objectsN)
	for begin := time.Now(); ; time.Sleep(time.Second) {
		m, err := scrape(addr)
		if err == nil && m.sum("tenure_open") == float64(objectsN) {
			break
		}
		if time.Since(begin) > 4*time.Minute {
			t.Fatalf("%v of %d gates are open after 4 minutes: %v", m.sum("tenure_open"), objectsN, err)
		}
	}
	l.Say("all are open")
	time.Sleep(8 * time.Second) // the first grants stand on a renewal that is late
	// Nobody holds these Leases: the cluster yields after 30 s. Until then it is steady.
	const window = 20 * time.Second
	before, err := scrape(addr)
	if err != nil {
		t.Fatal(err)
	}
	cpu := cpuTime(t, s.Replica("t1").PID())
	time.Sleep(window)
	after, err := scrape(addr)
	if err != nil {
		t.Fatal(err)
	}
	used := cpuTime(t, s.Replica("t1").PID()) - cpu
	renewals := after.sum("tenure_renew_seconds_count") - before.sum("tenure_renew_seconds_count")
	writes := after.sum("tenure_status_writes_total") - before.sum("tenure_status_writes_total")
	memory := after.sum("process_resident_memory_bytes") / (1 << 20)
	// Full() at 15/10/2 is 8.9 s: half of it is 4.45 s, and grants come with renewals.
	perObject := writes / float64(objectsN)
	l.Say("in %v: %v renewals of the lock, %.2f status writes per object, %.3f cores, %.0f MB", window, renewals, perObject, used.Seconds()/window.Seconds(), memory)
	if renewals > 8 {
		t.Errorf("%v renewals of the lock in %v; one per P = 3 s is wanted", renewals, window)
	}
	if limit := window.Seconds()/4.45 + 1; perObject > limit {
		t.Errorf("%.2f status writes per object in %v, more than one per half grant (%.1f)", perObject, window, limit)
	}
	if cores := used.Seconds() / window.Seconds(); cores > 0.3 {
		t.Errorf("%.3f cores, more than 0.3", cores)
	}
	if memory > 150 {
		t.Errorf("%.0f MB, more than 150", memory)
	}
}

// samples are metrics by name with labels.
type samples map[string]float64

func (m samples) sum(name string) (total float64) {
	for key, v := range m {
		if key == name || strings.HasPrefix(key, name+"{") {
			total += v
		}
	}
	return total
}

func scrape(addr string) (samples, error) {
	res, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	m := make(samples)
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || i < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err == nil {
			m[line[:i]] = v
		}
	}
	return m, lines.Err()
}

// cpuTime is what a process has used, by the kernel's account of it.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // the kernel counts hundredths
}

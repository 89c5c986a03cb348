// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tenure.dev/test/fault"
)

// TestClones: a copy of the leading cluster, made while it leads, with a Tenure and
// pods of its own.
func TestClones(t *testing.T) {
	t.Parallel()
	p := newPair(t, pairOptions{})
	n := 0
	clone := func(s *scene) *Site {
		n++
		c, err := s.Clone(s.ctx, s.lead, fmt.Sprintf("clone%d", n))
		s.do(err)
		s.do(c.Tenure(fmt.Sprintf("c%d", n)), c.Elector("e1"), c.Elector("e2"))
		s.Say("%s is up", c.Name)
		return c
	}
	p.step("cloned", "", func(s *scene) {
		c := clone(s)
		s.steady(3 * lockDuration)
		s.Say("clone: %s", c.Describe(s.ctx))
		c.Close()
	})
	p.step("cloned, with the replica's name", "", func(s *scene) {
		n++
		c, err := s.Clone(s.ctx, s.lead, fmt.Sprintf("clone%d", n))
		s.do(err)
		s.do(c.Tenure("t1"), c.Elector("e1"))
		s.steady(2 * lockDuration)
		c.Close()
	})
	p.step("cloned while cut off for a moment", "", func(s *scene) {
		pause(s, 2*lockPeriod)
		s.cutOff(s.lead)
		pause(s, lockPeriod*3/2) // a nonce is in the seat, and not in the store
		c := clone(s)
		pause(s, time.Second)
		s.noGrantAt(c, s.epoch, 2*lockDuration)
		s.ways[s.lead.Name].SetRule(nil)
		c.Close()
	})
	p.step("cloned while cut off from the store", "", func(s *scene) {
		s.cutOff(s.lead)
		c := clone(s)
		pause(s, 3*lockDuration)
		s.Say("figure: turns of clusters, the original was cut off from the store when it was cloned: %v", Leaders(s.Receiver.Beats(s.begin)))
		c.Close()
		s.ways[s.lead.Name].SetRule(nil)
	})
	p.step("cloned, and both cut off in turn", "", func(s *scene) {
		c := clone(s)
		pause(s, 2*lockPeriod)
		s.cutOff(s.lead)
		pause(s, 3*lockDuration)
		s.Say("figure: turns of clusters, the original was cut off from the store later: %v", Leaders(s.Receiver.Beats(s.begin)))
		c.Close()
		s.ways[s.lead.Name].SetRule(nil)
	})
}

// noGrantAt sees, for so long, that a copy writes no grant of its own at an epoch that
// is the original's.
func (s *scene) noGrantAt(c *Site, epoch int64, within time.Duration) {
	s.Helper()
	for begin := time.Now(); time.Since(begin) < within; pause(s, 200*time.Millisecond) {
		o, err := c.Object(s.ctx)
		if err != nil || o.Status == nil {
			continue
		}
		if o.Status.Epoch == epoch && o.Status.Leading && o.Status.ValidUntil.After(time.Now()) && time.Since(begin) > lockDuration/2 {
			s.Errorf("a copy goes on with the term of epoch %d, until %v", epoch, o.Status.ValidUntil)
			return
		}
	}
}

// cutOff keeps the processes of Tenure that run in a site now from the store. Others
// that go the same way pass.
func (s *scene) cutOff(site *Site) {
	pids := make(map[int]bool)
	for _, r := range []string{"t1", "t2"} {
		if p := site.Replica(r); p != nil {
			pids[p.PID()] = true
		}
	}
	way := s.ways[site.Name]
	way.SetRule(func(r *http.Request) fault.Action {
		for pid := range pids {
			if owns(pid, r.RemoteAddr, way.Addr()) {
				return fault.CutBefore()
			}
		}
		return fault.Pass
	})
}

// owns reports whether a process has the connection from one address to another. A
// port by itself says nothing: it serves several connections to different addresses.
func owns(pid int, from, to string) bool {
	local, remote := hexPort(from), hexPort(to)
	inode := ""
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 9 && strings.HasSuffix(f[1], local) && strings.HasSuffix(f[2], remote) && f[9] != "0" {
				inode = f[9]
			}
		}
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || inode == "" {
		return false
	}
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil && to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}

// hexPort writes an address' port as the kernel does.
func hexPort(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "none"
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "none"
	}
	return fmt.Sprintf(":%04X", n)
}

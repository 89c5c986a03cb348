// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// address returns the cluster's IP address: that of its network, the one that
// it had before, or one of the loopback network's sixteen million.
func (c *Cluster) address() (string, error) {
	if c.opts.Network != nil {
		return c.opts.Network.Addr(), nil
	}
	file := filepath.Join(c.dir, "address")
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	addr := strings.TrimSpace(string(b))
	for range 100 {
		if addr != "" && c.free(addr) {
			return addr, writeFile(file, []byte(addr+"\n"))
		}
		addr = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	}
	return "", fmt.Errorf("no loopback address is free: port %d cannot be had at %s and others", etcdPort, addr)
}

// free says whether a cluster can have the address.
func (c *Cluster) free(addr string) bool {
	ports := []int{etcdPort, peerPort, controllerPort, schedulerPort, kwokPort}
	for i := range c.opts.APIServers {
		ports = append(ports, apiPort+i)
	}
	for _, p := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", addr, p))
		if err != nil {
			return false
		}
		_ = l.Close() // it never accepted
	}
	return true
}

// Temporary folders are named by the process that made them, and when it began:
// one that was killed leaves its folders, and the next start removes them.
const tempPrefix = "tenure-cluster-"

func tempDir() (string, error) {
	removeStale()
	return os.MkdirTemp("", fmt.Sprintf("%s%d-%s-", tempPrefix, os.Getpid(), begun(os.Getpid())))
}

func removeStale() {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	if err != nil {
		return // the pattern is fixed
	}
	for _, dir := range dirs {
		who := strings.SplitN(strings.TrimPrefix(filepath.Base(dir), tempPrefix), "-", 3)
		if len(who) != 3 {
			continue
		}
		if pid, err := strconv.Atoi(who[0]); err == nil && begun(pid) != who[1] {
			_ = os.RemoveAll(dir) // another user's is not ours to remove
		}
	}
}

// begun returns when a process began, in the kernel's ticks, empty if there is
// none: a process id comes back, but not with the same begin.
func begun(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The second field, the name, may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

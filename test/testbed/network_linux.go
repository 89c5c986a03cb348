// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
)

// setns has a number of its own on each architecture, and package syscall does
// not know all of them.
var setns = map[string]uintptr{"amd64": 308, "arm64": 268}[runtime.GOARCH]

// Dial connects to an address, host:port with an IP address, from within the
// network, where no cut is between. It blocks until that is done or ctx is.
func (n *Network) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// The namespace is the thread's; not unlocked, it ends with this
		// goroutine, and nothing else runs in there.
		runtime.LockOSThread()
		if err := enter(n.NetNS()); err != nil {
			done <- result{nil, fmt.Errorf("testbed: enter the network of %v: %w", n.addr, err)}
			return
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func enter(path string) error {
	if setns == 0 {
		return fmt.Errorf("the number of setns on %s is not known here: add it", runtime.GOARCH)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, errno := syscall.RawSyscall(setns, f.Fd(), syscall.CLONE_NEWNET, 0); errno != 0 {
		return errno
	}
	return nil
}

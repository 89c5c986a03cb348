// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// A link is one connection through a [TCP]: ends[0] is the client's, ends[1]
// the server's. What each direction needs is touched by its own pump alone.
type link struct {
	ends [2]*net.TCPConn
	done chan struct{}

	lost   [2]atomic.Bool // bytes are missing: nothing more may pass
	cutSet int            // the order to cut that left belongs to
	left   int64

	mu    sync.Mutex
	ended bool
}

// connect adds the server's end. It reports false, and closes it, if the link
// has ended meanwhile.
func (l *link) connect(server *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		server.Close()
		return false
	}
	l.ends[1] = server
	return true
}

// end closes both ends, with a reset if asked to.
func (l *link) end(reset bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	for _, c := range l.ends {
		if c == nil {
			continue
		}
		if reset {
			_ = c.SetLinger(0) // it fails only on a connection that is gone
		}
		c.Close()
	}
	close(l.done)
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

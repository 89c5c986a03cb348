// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// A PgBouncer is a pooler before a [Postgres]. It gives a connection to a client
// for one transaction only.
type PgBouncer struct {
	*Process
	// Host is its address, "127.0.0.1:port".
	Host string
}

// StartPgBouncer starts a pooler before p that shares so many of the server's
// connections, with its files in dir.
func StartPgBouncer(dir string, p *Postgres, connections int) (*PgBouncer, error) {
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		// Debian puts it where only root's PATH looks.
		if bin = "/usr/sbin/pgbouncer"; !exists(bin) {
			return nil, fmt.Errorf("testbed: pgbouncer is not installed: run make deps: %w", err)
		}
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	users := filepath.Join(dir, "users.txt")
	config := filepath.Join(dir, "pgbouncer.ini")
	for path, text := range map[string]string{
		users: fmt.Sprintf("%q %q\n", PostgresUser, PostgresPassword),
		config: fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
default_pool_size = %d
`, p.port, port, users, connections),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
		if err := p.give(path); err != nil {
			return nil, err
		}
	}
	process, err := Start(Cmd{
		Path: bin, Args: []string{config}, Dir: dir, Log: filepath.Join(dir, "pgbouncer.log"), UID: uint32(p.uid), GID: uint32(p.gid),
	})
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{Process: process, Host: fmt.Sprintf("127.0.0.1:%d", port)}
	if err := process.Ready(10*time.Second, Dial(port)); err != nil {
		process.Kill()
		return nil, err
	}
	return b, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

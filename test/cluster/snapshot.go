// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// What a snapshot holds, as folders of the cluster's and of the snapshot's:
// etcd's data and the keys, so that a clone believes the tokens and the
// certificates that the original issued.
var kept = []string{"etcd", "pki"}

// Snapshot copies the cluster's state into dir, which it makes. Etcd is frozen
// for the copy, some milliseconds, and everything else goes on.
func (c *Cluster) Snapshot(dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cluster %s: snapshot: %w", c.name, err)
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	p, err := c.part(Etcd)
	if err != nil {
		return err
	}
	p.starting.Lock()
	defer p.starting.Unlock()
	if proc := p.process(); proc != nil && proc.Err() == nil {
		if err := proc.Pause(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, proc.Resume()) }()
	}
	for _, d := range kept {
		if err := os.CopyFS(filepath.Join(dir, d), os.DirFS(filepath.Join(c.dir, d))); err != nil {
			return err
		}
	}
	return nil
}

// Restore kills the whole cluster, puts etcd's data back to what Snapshot wrote
// into dir, and starts all parts, as [Cluster.StartAll] does. The snapshot can be
// used again.
func (c *Cluster) Restore(ctx context.Context, dir string) error {
	c.KillAll()
	data := filepath.Join(c.dir, "etcd")
	err := os.RemoveAll(data)
	if err == nil {
		err = os.CopyFS(data, os.DirFS(filepath.Join(dir, "etcd")))
	}
	if err == nil {
		err = os.Chmod(data, 0o700) // etcd insists
	}
	if err == nil {
		err = c.StartAll(ctx)
	}
	if err != nil {
		return fmt.Errorf("cluster %s: restore: %w", c.name, err)
	}
	return nil
}

// begin fills a new folder from a snapshot. One that has data goes on with it.
func (c *Cluster) begin(snapshot string) error {
	if _, err := os.Stat(filepath.Join(c.dir, "etcd")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, d := range kept {
		to := filepath.Join(c.dir, d)
		if err := os.CopyFS(to, os.DirFS(filepath.Join(snapshot, d))); err != nil {
			return fmt.Errorf("begin from %s: %w", snapshot, err)
		}
		if err := os.Chmod(to, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// issuer returns who issues the cluster's service-account tokens. It is kept
// with the keys: a clone goes by the original's.
func (c *Cluster) issuer() (string, error) {
	b, err := os.ReadFile(c.pki.path("issuer"))
	if err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	issuer := fmt.Sprintf("https://%s.example", c.name)
	return issuer, c.pki.write("issuer", []byte(issuer+"\n"))
}

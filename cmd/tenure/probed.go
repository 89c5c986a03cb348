// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"tenure.dev"
)

// probedFor is how long a probe that passed is believed: servers are upgraded
// and replaced behind their names.
const probedFor = 24 * time.Hour

// probed remembers which stores have passed the probe, in a small file. It is
// only ever a reason not to probe again: nothing else is decided by it, and a
// file that is missing or damaged costs a probe.
type probed struct {
	// path is the file; empty where this user has no folder for such files.
	path string
	// program tells builds apart, and with them the drivers.
	program string
}

func newProbed() probed {
	folder, err := os.UserCacheDir()
	if err != nil {
		return probed{}
	}
	program, err := programID()
	if err != nil {
		return probed{}
	}
	return probed{filepath.Join(folder, "tenure", "probed.json"), program}
}

// programID is another one for each build of this program.
func programID() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %d %d", version, info.Size(), info.ModTime().UnixNano()), nil
}

// key is what an entry is kept under, "" for a store that does not say which it
// is.
func (p probed) key(reg tenure.Register) string {
	namer, ok := reg.(tenure.StoreNamer)
	if !ok || p.path == "" || namer.StoreName() == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(p.program + "\x00" + namer.StoreName()))
	return hex.EncodeToString(sum[:])
}

// at returns when the store of a register passed, if that counts at now.
func (p probed) at(reg tenure.Register, now time.Time) (time.Time, bool) {
	key := p.key(reg)
	if key == "" {
		return time.Time{}, false
	}
	at, ok := p.read()[key]
	return at, ok && !at.After(now) && now.Sub(at) < probedFor
}

// note remembers that the store of a register has passed at now. A failure to
// write costs the next start a probe.
func (p probed) note(reg tenure.Register, now time.Time) error {
	key := p.key(reg)
	if key == "" {
		return nil
	}
	all := p.read()
	for k, at := range all {
		if now.Sub(at).Abs() >= probedFor {
			delete(all, k)
		}
	}
	all[key] = now.UTC()
	out, err := json.Marshal(all)
	if err != nil {
		return err
	}
	folder := filepath.Dir(p.path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, "probed-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(out, '\n'))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), p.path)
}

func (p probed) read() map[string]time.Time {
	all := map[string]time.Time{}
	b, err := os.ReadFile(p.path)
	if err != nil || json.Unmarshal(b, &all) != nil || all == nil {
		return map[string]time.Time{}
	}
	return all
}

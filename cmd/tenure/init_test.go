// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"path/filepath"

	"tenure.dev"
	"tenure.dev/store/file"
)

// The test binary has a store that needs a table, which is here another file
// beside the lock's, before there can be a lock in it.
func init() {
	tenure.RegisterScheme("tabled", tenure.Driver{Open: func(ctx context.Context, u *tenure.URL) (tenure.Register, error) {
		lock, err := file.Open(ctx, u.Path)
		if err != nil {
			return nil, err
		}
		table, err := file.Open(ctx, filepath.Join(filepath.Dir(u.Path), "table"))
		return &tabled{lock, table, u.Host}, err
	}})
}

type tabled struct {
	*file.Register
	table *file.Register
	user  string
}

var errNoTable = errors.New("there is no table: run tenure init")

func (r *tabled) Initialize(ctx context.Context) error {
	if r.user == "stranger" {
		return errors.New("may not make a table")
	}
	if _, err := r.table.Write(ctx, []byte("made"), ""); !errors.Is(err, tenure.ErrConflict) {
		return err
	}
	return nil
}

func (r *tabled) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	if _, _, err := r.table.Read(ctx); err != nil {
		return nil, "", errors.Join(errNoTable, errors.New(err.Error()))
	}
	return r.Register.Read(ctx)
}

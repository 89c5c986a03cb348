// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin

package file

import (
	"context"
	"fmt"
	"runtime"

	"tenure.dev"
)

func init() {
	tenure.RegisterScheme("file", tenure.Driver{Open: func(context.Context, *tenure.URL) (tenure.Register, error) {
		return nil, fmt.Errorf("file: not made for %s, whose locks on files were not tested: use another store", runtime.GOOS)
	}})
}

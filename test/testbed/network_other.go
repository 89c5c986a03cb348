// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package testbed

import (
	"context"
	"errors"
	"net"
)

// Dial fails: only Linux has such networks.
func (n *Network) Dial(context.Context, string, string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}

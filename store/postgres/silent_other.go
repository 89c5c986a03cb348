// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package postgres

import "net"

// silent: such a system cannot tell, so that each call makes a connection.
func silent(net.Conn) bool { return false }

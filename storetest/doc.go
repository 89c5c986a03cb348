// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package storetest is the test of every register driver.
package storetest

import (
	_ "github.com/anishathalye/porcupine"
	_ "tenure.dev"
)

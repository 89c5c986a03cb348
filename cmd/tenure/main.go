// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Command tenure runs a command as the only active copy.
package main

import (
	_ "github.com/spf13/cobra"
	_ "tenure.dev"
)

func main() {}

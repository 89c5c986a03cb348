// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package kube

import "os/exec"

// killGroup leaves what the command has started: there are no process groups.
func killGroup(*exec.Cmd) {}

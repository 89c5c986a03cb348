// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e is the laboratory in which real clusters, Tenure and stock controllers
// run as processes, and a receiver outside all of them sees who works.
package e2e

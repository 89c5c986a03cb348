// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !mutant

package operator

func countsFromSending() bool { return false }

func emptiedBelieved() bool { return false }

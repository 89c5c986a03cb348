// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package clock

import "time"

func boottime(mono time.Duration) time.Duration { return mono }

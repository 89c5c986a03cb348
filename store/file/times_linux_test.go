// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package file

import "syscall"

func addTimes(st *syscall.Stat_t, mtime, ctime int64) {
	st.Mtim.Nsec += mtime
	st.Ctim.Nsec += ctime
}

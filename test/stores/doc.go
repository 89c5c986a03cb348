// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package stores runs many elections side by side over every lock store, on real
// servers with a fault proxy before them. One observer, with one clock, records
// the validity of every term, and what each request came to.
//
//	go test ./test/stores                 # a few locks per store, a minute
//	make stores                           # 20 locks and 200 events per store, then 100 locks at the defaults
//	TENURE_STORES=etcd,s3 make stores     # only these
//
// The environment says how much: TENURE_STORES (names, all by default),
// TENURE_STORES_LOCKS, TENURE_STORES_ROUNDS (of faults, with an event per lock in
// each), TENURE_STORES_HUNDRED (how many locks are run at the defaults, none by
// default), TENURE_STORES_SEED, and TENURE_STORES_REPORT (a file that the figures
// are appended to).
package stores

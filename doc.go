// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package tenure elects one leader among candidates that share nothing but one
// linearizable register: an object in a bucket, an etcd key, a Lease, a row, a
// file.
package tenure

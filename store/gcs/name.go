// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import "tenure.dev"

var _ tenure.StoreNamer = (*Register)(nil)

// StoreName implements [tenure.StoreNamer] by the endpoint and the bucket. It
// does not block.
func (r *Register) StoreName() string {
	return r.store.endpoint.String() + ", bucket " + r.store.bucket
}

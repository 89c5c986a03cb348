// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import "tenure.dev"

var _ tenure.StoreNamer = (*Register)(nil)

// StoreName implements [tenure.StoreNamer] by the endpoint, the account and the
// container. It does not block.
func (r *Register) StoreName() string {
	return r.store.endpoint.Redacted() + ", account " + r.store.account + ", container " + r.store.container
}

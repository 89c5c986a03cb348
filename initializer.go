// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import "context"

// An Initializer is a [Register] whose store needs something before there can
// be a lock in it, such as a table. Making that is a person's act, by the
// command's init or by a program that calls it before [Init]: electors never do.
type Initializer interface {
	// Initialize makes what the store needs, if it is not there. It makes no
	// record, changes nothing that is there, is idempotent, and blocks for a few
	// requests, at most until ctx ends.
	Initialize(ctx context.Context) error
}

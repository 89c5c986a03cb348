// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package operator is Tenure in a cluster. It holds locks for the cluster and gates
// the Leases by which the cluster's controllers elect: nobody can take one while
// another cluster leads, and pods elect as always while this one does. The
// controllers know nothing of it.
//
// An [Operator] has a runner per lock and a worker per MultiClusterLease. The runner
// has the elector; a term is handed to the workers, and is released when all of
// them have closed. A worker is one goroutine: it installs the policies, proves
// them, holds the Leases while standing by, writes grants while leading, and
// closes. Only the replica that has the cluster's seat writes anything.
package operator

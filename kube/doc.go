// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package kube keeps a register in a Lease of a Kubernetes cluster, for locks
// that are decided by the API server of a third cluster, or of the only one.
//
// The candidates' own clusters are no place for a lock that is to survive them:
// the Lease must be in a cluster that stays when one of theirs goes.
//
// # URL
//
//	k8s://namespace/name?kubeconfig=/etc/tenure/arbiter.kubeconfig&context=arbiter
//
// The namespace exists; the Lease, of coordination.k8s.io/v1, is made. The name
// is one that a Lease can have, without "--". Parameters of its own:
//
//   - kubeconfig: the file that says which cluster, and as whom. Without it, and
//     without context, a pod uses its service account unless KUBECONFIG is set;
//     everything else uses KUBECONFIG or ~/.kube/config.
//   - context: the context to use. Default: the file's current one.
//
// A kubeconfig, its token and certificate files are read again when credentials
// are refused or a connection breaks, and a token file once a minute too, so
// that they can be rotated under a leader. Credential plugins (exec) are run
// without a terminal, and killed after 30 s; a request that waits for one ends
// with its own context.
//
// Siblings, such as those of the candidates, are Leases beside it: letters and
// digits stay, '.' and '-' where a name can have them, every other byte becomes
// "--" and two hexadecimal digits, as in name.candidates--2fh.host-1.
//
// # What the Lease holds
//
// The spec is what every elector knows: holderIdentity, leaseDurationSeconds,
// acquireTime, renewTime, leaseTransitions. All else of the record is in
// annotations that begin with tenure.dev/: epoch, nonce, lineage, candidate,
// clusterUID, preferredHolder, paused, orders, endpoint, caBundle, and in other
// the fields that this version does not know. writtenWith repeats the spec that
// they were written with. Where it differs, somebody else has written the spec,
// and the record is a stranger's: its epoch is the annotated one and the
// difference in leaseTransitions, at least 1; lineage and pause stay; its
// duration is the longer of both. Labels, finalizers and other annotations are
// left alone. What is no record is kept whole in value, or bytes.
//
// # Guarantees
//
// Linearizable: a get without resourceVersion is answered by a quorum of etcd,
// and a put is compared with UID and resourceVersion in the transaction that
// stores it. A version is made of both and of a random annotation of the write,
// so it does not repeat, also when the Lease is deleted and made again.
// The clock is the Date of an API server's answer.
//
// What breaks it: an etcd restored from a backup. The lock is then what it was,
// and a leader from before finds another version and stops; epochs stay above
// all that a candidate has seen.
//
// Stock electors, such as those of client-go, may contend for the same Lease.
// They wait for the duration in it, and begin again whenever it changes, so a
// term here ends earlier by another ρ of it; their Leases are waited out for 1.5
// of the duration. They know no epoch, heed no pause and create a Lease that is
// absent at once. Electors that wait for their own duration instead must not
// have a shorter one.
//
// An admission webhook or policy that alters Leases on their way is found out by
// the answer, and reported.
//
// # Permissions
//
// For every candidate, in the lock's namespace:
//
//	apiVersion: rbac.authorization.k8s.io/v1
//	kind: Role
//	metadata:
//	  name: tenure-lock
//	  namespace: locks
//	rules:
//	- apiGroups: [coordination.k8s.io]
//	  resources: [leases]
//	  verbs: [get, list, watch, create, update]
//
// RBAC cannot limit create by name, nor list to what begins with a name, and
// every candidate has an entry beside the lock. So give locks that do not trust
// each other's users a namespace each. Without list the candidates' entries are
// not read; without watch a standby polls. No delete, and no patch. Who only
// looks at locks needs get and list.
//
// # Cost
//
// A renewal is one PUT and a poll one GET, of some 2 kB; a standby keeps one
// watch open. At D = 10 s and P = 2 s, a leader and a standby make
// 86,400 / 2 = 43,200 writes and as many reads a day, one request a second.
// A write is one etcd transaction, about 5 ms. Requests have no price. Pings at a
// quarter of P, which are not requests, find connections that have died.
package kube

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package etcd keeps a register in a key of an etcd cluster, version 3.4 or
// later.
//
// # URL
//
//	etcd://host-1:2379,host-2:2379,host-3:2379/tenure/nightly?cafile=/etc/etcd/ca.crt
//
// Name all members that vote. The port is 2379 if there is none. The key is the
// path with its leading slash, here /tenure/nightly; siblings are keys that
// begin with it, such as /tenure/nightly.candidates/host-1.
//
//	tls           connections are encrypted and the server's certificate is
//	              checked; tls=off sends plain text, tls=unverified talks to
//	              whoever answers
//	cafile        certificates of the authorities that sign the servers';
//	              default the system's
//	servername    the name that the servers' certificates must have; default
//	              each endpoint's host
//	certfile,     the client's certificate and its key; with etcd's
//	keyfile       --client-cert-auth its common name is the user
//	user          whom to log in as; default the user of ETCDCTL_USER
//	passwordfile  holds the password; default ETCDCTL_PASSWORD, or for the user
//	              of ETCDCTL_USER what follows the colon there
//
// No password goes over a connection that is not verified, unless it stays on
// this machine: user with tls=off or tls=unverified is refused. Certificates
// are read for each new connection and the password file for each login, so
// both may be renewed under a running candidate. Proxies of the environment are
// not used.
//
// # Guarantees
//
// Linearizable. A write is a transaction that compares the key's create and
// modification revision (0: absent) and puts the value; a read is etcd's
// default, which asks the leader, never a serializable one. Value and
// version come from one answer, the version of a write from its own.
//
// A version is the cluster's ID and the two revisions. Revisions only grow,
// also over deletion, so that no version repeats as long as the cluster lives. A
// cluster restored from a backup begins again at the backup's revision. With a
// new --initial-cluster-token it has another ID, and what was read before is in
// conflict; with the old token and without --bump-revision a version can come
// to stand for two states, and a leader from before could renew the wrong one.
// So restore with "etcdutl snapshot restore --bump-revision 1000000000
// --mark-compacted", or with a new token; the record itself is then older than
// candidates have seen it, which they notice by its epoch.
//
// One write is sent once. It goes to another member only if it is certain that
// the first did not get it: it could not be connected, or refused it unseen
// because it has no leader, learns, or does not know the token any more. A write
// that was sent and not answered may have happened, and is an error that is no
// conflict. Members of two clusters in one URL are refused: each connection is
// asked for its cluster before it is used.
//
// Requests go to one member until it fails. A read that is not answered within
// a second, or half its time if that is less, is sent to the next member too,
// or to the only one over another connection, and the slow connection is given
// up; that is what notices dead connections, since gRPC's keepalive pings no
// sooner than after ten seconds. A term survives a dead member, the leading one
// included, as long as the other members elect within R; etcd's default
// takes them one to two seconds. Without a majority of the members nothing can
// be read or written and nobody leads.
//
// There is a watch, which ends when its member loses the leader. There is no
// clock: etcd has none that clients could see.
//
// The driver speaks to etcd over gRPC itself, with the protocol as etcd publishes
// it, and not through etcd's client package. That one makes a request again
// when a server, rather than the caller, says that its time is up, which for a
// write that was applied becomes a conflict with itself; spreads requests over
// all members, so that with one dead every third fails; and replaces the reason
// why no connection came about by the end of the context.
//
// # Permissions
//
// Read and write on the lock's key and all that begin with it:
//
//	etcdctl role add tenure-nightly
//	etcdctl role grant-permission tenure-nightly readwrite /tenure/nightly --prefix
//	etcdctl user add tenure
//	etcdctl user grant-role tenure tenure-nightly
//
// That covers .candidates/, .probe/ and .members/. To look at a lock, read is
// enough. Members, alarms and the size of the database are shown by "tenure
// doctor" as far as the user may see them: with etcd's own access control on,
// the state of each member takes the role root, which no candidate should have.
//
// # Cost
//
// No price per request. At D 10 s and P 2 s the leader makes one transaction
// per renewal, 43,200 a day, and the standby one read per poll, and for each
// change that its watch tells it of: 86,400 a day at most, some 400 bytes each.
// Each adds a revision of the record to the history: 43,200 a day, about 20 MB
// until etcd compacts them; turn --auto-compaction-retention on. A new connection
// takes one request more, a login another. Three members of the smallest size
// carry hundreds of locks.
package etcd

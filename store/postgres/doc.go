// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package postgres keeps registers in the rows of a PostgreSQL table, version
// 13 or later.
//
// # URL
//
//	postgres://host[:port]/database?key=NAME[&table=][&user=][&sslmode=][&sslrootcert=][&sslcert=][&sslkey=]
//
// The key names the lock: up to 256 bytes. The table is tenure_locks in the
// schema public unless table=, "name" or "schema.name", says otherwise; it is
// always written with its schema, so that no search_path can make two tables
// of it. tenure init makes it, and nothing else does:
//
//	tenure init --lock 'postgres://db.example.com/app?key=nightly&user=tenure'
//
// The user is user=, else PGUSER, else the name of the system's user. There is
// no password in a URL: it comes from the file that PGPASSFILE names (or
// ~/.pgpass), from PGPASSWORD, or a client certificate takes its place
// (sslcert= and sslkey=, or PGSSLCERT and PGSSLKEY). The files are read anew for
// each connection, so that credentials can be rotated under a leader.
//
// The sslmode is verify-full unless the URL or PGSSLMODE says verify-ca, require
// or disable. The modes allow and prefer are refused: they fall back to plain
// text when somebody in between wants them to, and who can answer for the store
// can make two leaders. The authorities are the system's, or those in the file
// sslrootcert= (or PGSSLROOTCERT).
//
// Several hosts, "a:5432,b:5432", are tried one after the other until one is the
// primary. All must be servers of one cluster whose failover keeps acknowledged
// writes; see below. Of the environment nothing else can lead to another
// database, table or row.
//
// # Guarantees
//
// Linearizable on one primary. A write is one statement in a transaction of its
// own, UPDATE … WHERE key = … AND version = …, or INSERT … ON CONFLICT DO
// NOTHING, sent in one round trip; the condition is checked under the row's
// lock. The statement sets synchronous_commit to on for its own transaction,
// whatever the role or the database has for a default, so that an acknowledged
// write survives a crash. A read asks in the same statement whether the server
// is a standby, and takes no answer from one.
//
// The version is a random UUID that the writing statement makes and returns,
// and the id of the transaction that wrote the row: it does not repeat when a
// row is deleted and made again, and it changes when a person edits the row.
//
// What breaks it: a failover to an asynchronous standby, or a restore of an old
// backup, while candidates run: writes that were acknowledged are gone, and the
// lock may be given away while its holder still leads. Use a synchronous standby
// (synchronous_standby_names), or storage that is replicated below the server.
// Two primaries at once, which only the cluster's own fencing prevents. And
// fsync = off. With a synchronous standby one case is left: the wait for it is
// cancelled by hand or cut by a crash, the row is seen, and a failover loses it.
// The driver never cancels that wait, and reports a write whose wait was
// cancelled as one without an answer.
//
// It keeps no session state, no prepared statement, no LISTEN, and so works
// behind a pooler in transaction mode. A register and its siblings share up to
// eight connections and keep at most two idle ones, whose end is noticed before
// they are used again. A connection on which a call's context ended is closed;
// nothing is sent to cancel the statement, which may still take effect.
//
// # Permissions
//
// The first tenure init needs CREATE on the schema, or a person runs it as the
// owner. Then, for whoever contends:
//
//	GRANT CONNECT ON DATABASE app TO tenure;
//	GRANT USAGE ON SCHEMA public TO tenure;
//	GRANT SELECT, INSERT, UPDATE ON public.tenure_locks TO tenure;
//
// To look at a lock SELECT is enough. Nobody needs DELETE. Siblings such as
// <key>.candidates/host-1 and <key>.probe/host-1 are rows of the same table, so
// these rights cover them. To keep the users of several locks apart give each a
// table of its own, with table=.
//
// # Cost
//
// One statement for each renewal and for each poll, by primary key, with one
// small flush of the log per write: at the defaults (D 10 s, P 2 s) a leader and
// a standby make 30 writes and 30 reads of the lock a minute, in a month of 730
// hours 1.3 million of each, and about a fifth more for candidates' entries.
// Servers are paid by the hour, not by the statement: 0 US dollars beside what
// the server costs. Each process holds one connection, sometimes two, of the
// server's max_connections.
//
// The rows are small and updated in place (the table has room for that in each
// page), so the table stays at a few pages and autovacuum has little to do; a
// transaction that stays open for hours keeps it from that, here as elsewhere.
//
// A candidate that vanishes from the network leaves its connection behind until
// the server notices: tcp_keepalives_idle is 2 h unless set lower.
package postgres

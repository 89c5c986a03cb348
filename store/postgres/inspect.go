// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"tenure.dev"
)

// facts are what one statement asks, each under its name, as text; NULL is
// empty. None of them needs rights.
var facts = []struct{ name, sql string }{
	{"version", `current_setting('server_version_num')`},
	{"recovery", `pg_is_in_recovery()`},
	{"fsync", `current_setting('fsync')`},
	{"full_page_writes", `current_setting('full_page_writes')`},
	{"synchronous_commit", `current_setting('synchronous_commit')`},
	{"standby_names", `current_setting('synchronous_standby_names')`},
	{"standbys", `(SELECT count(*) FROM pg_stat_replication)`},
	{"isolation", `current_setting('default_transaction_isolation')`},
	{"read_only", `current_setting('default_transaction_read_only')`},
	{"statement_timeout", `(SELECT setting FROM pg_settings WHERE name = 'statement_timeout')`}, // in ms
	{"max_connections", `current_setting('max_connections')`},
	{"connections", `(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')`},
	{"user", `current_user`},
	{"superuser", `current_setting('is_superuser')`},
	{"table", `c.oid`},
	{"kind", `c.relkind`},
	{"persistence", `c.relpersistence`},
	{"row_security", `c.relrowsecurity`},
	{"triggers", `(SELECT count(*) FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal)`},
	{"rules", `(SELECT count(*) FROM pg_rewrite WHERE ev_class = c.oid)`},
	{"key", `(SELECT count(*) FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
		WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indnatts = 1 AND i.indpred IS NULL AND a.attname = 'key')`},
	{"owner", `pg_get_userbyid(c.relowner)`},
	{"select", `has_table_privilege(c.oid, 'SELECT')`},
	{"insert", `has_table_privilege(c.oid, 'INSERT')`},
	{"update", `has_table_privilege(c.oid, 'UPDATE')`},
	{"delete", `has_table_privilege(c.oid, 'DELETE')`},
	{"truncate", `has_table_privilege(c.oid, 'TRUNCATE')`},
}

func (c *client) factsSQL() string {
	var b strings.Builder
	sep := "SELECT "
	for _, f := range facts {
		b.WriteString(sep + "(" + f.sql + ")::text")
		sep = ", "
	}
	return b.String() + fmt.Sprintf(` FROM (VALUES (1)) AS one LEFT JOIN pg_class AS c
		ON c.relname = '%s' AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = '%s')`, c.table, c.schema)
}

// Inspect implements [tenure.Inspector]. It blocks for one statement, and to
// connect if there is no connection, at most until ctx ends.
func (r *Register) Inspect(ctx context.Context) []tenure.Finding {
	found := map[string]string{}
	err := r.call(ctx, "inspect the server of", func(cn *conn) error {
		rows, err := cn.query(r.factsSQL(), nil)
		if err != nil {
			return err
		}
		for i, f := range facts {
			found[f.name] = string(rows[0][i])
		}
		return nil
	})
	if err != nil {
		return []tenure.Finding{r.inspectTLS(), {
			Check: "server", Level: tenure.FindingUnknown, Detail: err.Error(), Next: "make the server reachable, then look again",
		}}
	}
	var all []tenure.Finding
	all = append(all, inspectServer(found), inspectDurability(found), inspectReplication(found, len(r.hosts)), inspectSessions(found))
	all = append(all, r.inspectTable(found), r.inspectRights(found), inspectConnections(found), r.inspectTLS())
	return all
}

func ok(check, detail string) tenure.Finding {
	return tenure.Finding{Check: check, Level: tenure.FindingOK, Detail: detail}
}

func inspectServer(f map[string]string) tenure.Finding {
	n, _ := strconv.Atoi(f["version"]) // 0 is too old as well
	is := fmt.Sprintf("PostgreSQL %d.%d", n/10000, n%10000)
	switch {
	case f["recovery"] != "false":
		return tenure.Finding{Check: "server", Level: tenure.FindingUnsafe, Detail: is + ", a standby: its rows are those of some time ago",
			Next: "name the primary, or list all hosts of the cluster with commas"}
	case n < 130000:
		return tenure.Finding{Check: "server", Level: tenure.FindingUnsafe, Detail: is + ": writes need version 13 or later", Next: "upgrade the server"}
	}
	return ok("server", is+", the primary")
}

func inspectDurability(f map[string]string) tenure.Finding {
	const check = "durability"
	switch {
	case f["fsync"] != "on":
		return tenure.Finding{Check: check, Level: tenure.FindingUnsafe, Detail: "fsync is off: a crash of the machine loses acknowledged writes, or all",
			Next: "set fsync = on"}
	case f["full_page_writes"] != "on":
		return tenure.Finding{Check: check, Level: tenure.FindingWarning, Detail: "full_page_writes is off: a crash of the machine can damage the table",
			Next: "set full_page_writes = on, unless the file system cannot tear pages"}
	case f["synchronous_commit"] != "on" && f["synchronous_commit"] != "remote_apply":
		return tenure.Finding{Check: check, Level: tenure.FindingNote,
			Detail: "synchronous_commit is " + f["synchronous_commit"] + " for this user here; the driver's writes set it to on for themselves"}
	}
	return ok(check, "acknowledged writes are on disk")
}

func inspectReplication(f map[string]string, hosts int) tenure.Finding {
	const check = "replication"
	const next = "set synchronous_standby_names, or fail over only after all candidates have stopped"
	switch {
	case f["standby_names"] != "":
		return ok(check, "synchronous_standby_names is "+strconv.Quote(f["standby_names"])+": an acknowledged write survives a failover to such a standby, and to no other")
	case f["standbys"] != "0":
		return tenure.Finding{Check: check, Level: tenure.FindingWarning,
			Detail: f["standbys"] + " receivers of the log, and none is waited for: a failover to one loses the last acknowledged writes, and two may lead", Next: next}
	case hosts > 1:
		return tenure.Finding{Check: check, Level: tenure.FindingWarning,
			Detail: "the URL names several hosts, and no standby is waited for: a failover may lose the last acknowledged writes, and two may lead", Next: next}
	}
	return ok(check, "no standby is connected; the lock is available as long as this server is")
}

// inspectSessions looks at what the role or the database sets for every
// session.
func inspectSessions(f map[string]string) tenure.Finding {
	const check = "session"
	timeout, _ := strconv.Atoi(f["statement_timeout"]) // 0 is none
	switch {
	case f["read_only"] == "on":
		return tenure.Finding{Check: check, Level: tenure.FindingWarning, Detail: "default_transaction_read_only is on for this user: it can look at the lock, not contend",
			Next: "ALTER ROLE " + strconv.Quote(f["user"]) + " SET default_transaction_read_only = off, to contend"}
	case timeout > 0 && timeout < 1000:
		return tenure.Finding{Check: check, Level: tenure.FindingWarning, Detail: fmt.Sprintf("statement_timeout is %d ms: a slow moment fails a renewal", timeout),
			Next: "raise it for this user, or remove it: each request has a limit of its own"}
	case f["isolation"] != "read committed":
		return tenure.Finding{Check: check, Level: tenure.FindingNote,
			Detail: "default_transaction_isolation is " + f["isolation"] + ": writes that meet fail with an error instead of a conflict, which costs a read"}
	}
	return ok(check, "nothing that harms")
}

func (r *Register) inspectTable(f map[string]string) tenure.Finding {
	name := r.schema + "." + r.table
	find := func(level tenure.FindingLevel, detail, next string) tenure.Finding {
		return tenure.Finding{Check: "table", Level: level, Detail: name + " " + detail, Next: next}
	}
	switch {
	case f["table"] == "":
		return find(tenure.FindingWarning, "is not there", "run tenure init --lock URL, once, as a user who may create it")
	case f["kind"] != "r":
		return find(tenure.FindingUnsafe, "is not an ordinary table (kind "+f["kind"]+")", "name another with table=")
	case f["key"] == "0":
		return find(tenure.FindingUnsafe, "has no primary key on the column key: a lock could have two rows", "name another with table=, and let tenure init make it")
	case f["triggers"] != "0" || f["rules"] != "0" || f["row_security"] == "true":
		return find(tenure.FindingWarning, "has triggers, rules or row security, which can change what a write does", "remove them from it")
	case f["persistence"] != "p":
		return find(tenure.FindingWarning, "is not logged: a crash empties it, and a failover finds nothing", "ALTER TABLE "+name+" SET LOGGED")
	}
	return ok("table", name+" is an ordinary table with a primary key")
}

func (r *Register) inspectRights(f map[string]string) tenure.Finding {
	const check = "rights"
	name, user := r.schema+"."+r.table, strconv.Quote(f["user"])
	var missing []string
	for _, right := range []string{"select", "insert", "update"} {
		if f[right] != "true" {
			missing = append(missing, strings.ToUpper(right))
		}
	}
	switch {
	case f["table"] == "":
		return tenure.Finding{Check: check, Level: tenure.FindingUnknown, Detail: "there is no table to have rights on"}
	case len(missing) > 0:
		return tenure.Finding{Check: check, Level: tenure.FindingWarning, Detail: user + " lacks " + strings.Join(missing, ", ") + " on " + name + " and cannot contend",
			Next: "GRANT SELECT, INSERT, UPDATE ON " + name + " TO " + user}
	case f["superuser"] == "on":
		return tenure.Finding{Check: check, Level: tenure.FindingWarning, Detail: user + " is a superuser, and needs SELECT, INSERT and UPDATE on one table",
			Next: "use a role of its own"}
	case f["delete"] == "true" || f["truncate"] == "true":
		return tenure.Finding{Check: check, Level: tenure.FindingNote, Detail: user + " may also DELETE or TRUNCATE, or owns the table; the driver never does",
			Next: "let another role own the table, and grant SELECT, INSERT and UPDATE"}
	}
	return ok(check, user+" has what contending needs, and no more")
}

func inspectConnections(f map[string]string) tenure.Finding {
	const check = "connections"
	used, err1 := strconv.Atoi(f["connections"])
	most, err2 := strconv.Atoi(f["max_connections"])
	detail := fmt.Sprintf("%d of %d are in use", used, most)
	switch {
	case err1 != nil || err2 != nil:
		return tenure.Finding{Check: check, Level: tenure.FindingUnknown, Detail: "the server does not tell how many are in use"}
	case used*10 > most*9:
		return tenure.Finding{Check: check, Level: tenure.FindingWarning, Detail: detail + ": a candidate that has to connect anew may be turned away",
			Next: "raise max_connections, or go through a pooler"}
	}
	return ok(check, detail)
}

// inspectTLS looks at the way to the first server or pooler: what is behind a
// pooler cannot be seen from here.
func (r *Register) inspectTLS() tenure.Finding {
	const check = "encryption"
	const next = "use sslmode=verify-full"
	local := true
	for _, h := range r.hosts {
		name, _, _ := net.SplitHostPort(h) // withPort made it
		ip := net.ParseIP(name)
		local = local && (name == "localhost" || ip != nil && ip.IsLoopback())
	}
	switch {
	case r.sslMode == "disable" && local:
		return ok(check, "none, on this host")
	case r.sslMode == "disable":
		return tenure.Finding{Check: check, Level: tenure.FindingWarning, Detail: "none: who is on the way can read, and answer for the store", Next: next}
	case r.sslMode == "require" && r.sslRootCert == "":
		return tenure.Finding{Check: check, Level: tenure.FindingWarning, Detail: "the server's certificate is not checked: who is on the way can answer for the store", Next: next}
	case r.sslMode != "verify-full":
		return tenure.Finding{Check: check, Level: tenure.FindingNote, Detail: "the server's certificate is checked, its name is not", Next: next}
	}
	return ok(check, "TLS, and the server's certificate and name are checked")
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"strings"
	"testing"

	"tenure.dev"
	"tenure.dev/test/testbed"
)

func finding(t testing.TB, r *Register, check string) tenure.Finding {
	t.Helper()
	all := r.Inspect(t.Context())
	for _, f := range all {
		if f.Check == check {
			return f
		}
	}
	t.Fatalf("no finding on %s: %+v", check, all)
	return tenure.Finding{}
}

// TestInspect changes one thing after another on a server of its own, and
// looks whether it is found.
func TestInspect(t *testing.T) {
	t.Parallel()
	p := start(t, testbed.PostgresOptions{})
	sql(t, p, "ALTER TABLE tenure_locks OWNER TO postgres; GRANT SELECT, INSERT, UPDATE ON tenure_locks TO tenure")
	r := open(t, p.URL("x"))
	for _, f := range r.Inspect(t.Context()) {
		if f.Level != tenure.FindingOK || f.Detail == "" || f.Next != "" {
			t.Errorf("on a sound server: %+v", f)
		}
	}
	url := func(old, new string) string { return strings.Replace(p.URL("x"), old, new, 1) }
	for _, tt := range []struct {
		check    string
		do, undo string
		url      string
		level    tenure.FindingLevel
		says     string
	}{
		{"durability", "ALTER ROLE tenure SET synchronous_commit = off", "ALTER ROLE tenure RESET ALL", "", tenure.FindingNote, "synchronous_commit is off"},
		{"durability", "ALTER SYSTEM SET fsync = off", "ALTER SYSTEM RESET fsync", "", tenure.FindingUnsafe, "fsync is off"},
		{"durability", "ALTER SYSTEM SET full_page_writes = off", "ALTER SYSTEM RESET full_page_writes", "", tenure.FindingWarning, "full_page_writes is off"},
		{"replication", "", "", url(p.Host, p.Host+","+p.Host), tenure.FindingWarning, "several hosts"},
		{"replication", "ALTER SYSTEM SET synchronous_standby_names = 'b'", "ALTER SYSTEM RESET synchronous_standby_names", "", tenure.FindingOK, `synchronous_standby_names is "b"`},
		{"session", "ALTER ROLE tenure SET default_transaction_isolation = 'serializable'", "ALTER ROLE tenure RESET ALL", "", tenure.FindingNote, "serializable"},
		{"session", "ALTER ROLE tenure SET default_transaction_read_only = on", "ALTER ROLE tenure RESET ALL", "", tenure.FindingWarning, "cannot contend|not contend"},
		{"session", "ALTER ROLE tenure SET statement_timeout = '50ms'", "ALTER ROLE tenure RESET ALL", "", tenure.FindingWarning, "statement_timeout is 50 ms"},
		{"table", "", "", url("key=", "table=absent&key="), tenure.FindingWarning, "run tenure init|is not there"},
		{"rights", "", "", url("key=", "table=absent&key="), tenure.FindingUnknown, "no table"},
		{"table", "ALTER TABLE tenure_locks SET UNLOGGED", "ALTER TABLE tenure_locks SET LOGGED", "", tenure.FindingWarning, "not logged"},
		{"table", "ALTER TABLE tenure_locks DROP CONSTRAINT tenure_locks_pkey", "ALTER TABLE tenure_locks ADD PRIMARY KEY (key)", "", tenure.FindingUnsafe, "no primary key"},
		{"table", "ALTER TABLE tenure_locks ENABLE ROW LEVEL SECURITY", "ALTER TABLE tenure_locks DISABLE ROW LEVEL SECURITY", "", tenure.FindingWarning, "row security"},
		{"table", "CREATE VIEW seen AS SELECT * FROM tenure_locks", "DROP VIEW seen", url("key=", "table=seen&key="), tenure.FindingUnsafe, "not an ordinary table"},
		{"rights", "REVOKE UPDATE ON tenure_locks FROM tenure", "GRANT UPDATE ON tenure_locks TO tenure", "", tenure.FindingWarning, "lacks UPDATE"},
		{"rights", "GRANT DELETE ON tenure_locks TO tenure", "REVOKE DELETE ON tenure_locks FROM tenure", "", tenure.FindingNote, "may also DELETE"},
		{"rights", "", "", url("user=tenure", "user=postgres"), tenure.FindingWarning, "superuser"},
		{"encryption", "", "", url("127.0.0.1", "db.invalid"), tenure.FindingWarning, "none"},
		{"encryption", "", "", url("sslmode=disable", "sslmode=require"), tenure.FindingWarning, "not checked"},
		{"encryption", "", "", url("sslmode=disable", "sslmode=verify-ca"), tenure.FindingNote, "its name is not"},
		{"encryption", "", "", url("sslmode=disable", "sslmode=verify-full"), tenure.FindingOK, "checked"},
		{"server", "", "", url("sslmode=disable", "sslmode=require"), tenure.FindingUnknown, "has no TLS"},
	} {
		do := func(statement string) {
			t.Helper()
			if statement == "" {
				return
			}
			sql(t, p, statement)
			if strings.HasPrefix(statement, "ALTER SYSTEM") {
				p.Stop() // so that it is in force for certain
				if err := p.Start(); err != nil {
					t.Fatal(err)
				}
			}
		}
		do(tt.do)
		at := tt.url
		if at == "" {
			at = p.URL("x")
		}
		r := open(t, at)
		f := finding(t, r, tt.check)
		r.Close()
		found := false
		for says := range strings.SplitSeq(tt.says, "|") {
			found = found || strings.Contains(f.Detail+f.Next, says)
		}
		if f.Level != tt.level || !found || (f.Level == tenure.FindingUnsafe || f.Level == tenure.FindingWarning) && f.Next == "" {
			t.Errorf("%s: %+v, want %s that says %s", tt.do, f, tt.level, tt.says)
		}
		do(tt.undo)
	}
}

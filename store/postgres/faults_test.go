// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// soon is ample for what must happen at once.
const soon = 5 * time.Second

// TestLostAnswer: a write whose answer is lost has an unknown outcome, is sent
// once, and is found by the next read.
func TestLostAnswer(t *testing.T) {
	r, direct, p := proxied(t, server)
	v := mustWrite(t, r, "1", "")
	for i, fault := range []func(){p.DropAnswers, func() { p.CutAfter(0) }, func() { p.CutAfter(20) }} {
		value := fmt.Sprint("lost ", i)
		fault()
		_, err := r.Write(within(t, time.Second), []byte(value), v)
		mustSay(t, err, "postgres: write")
		p.Pass()
		got, now := mustRead(t, direct)
		for end := time.Now().Add(soon); now == v && time.Now().Before(end); got, now = mustRead(t, direct) { // it may still be on its way
			runtime.Gosched()
		}
		if got != value || now == v {
			t.Fatalf("fault %d: after the lost answer the record is %q at %q", i, got, now)
		}
		if got, same := mustRead(t, r); got != value || same != now {
			t.Errorf("fault %d: read %q at %q", i, got, same)
		}
		v = now
	}
}

// TestContext: a call ends with its context, whatever the server does, and
// leaves nothing behind.
func TestContext(t *testing.T) {
	r, _, p := proxied(t, server)
	v := mustWrite(t, r, "1", "")
	before := runtime.NumGoroutine()
	for _, connected := range []bool{true, false} {
		if !connected {
			p.Pass()
			r.Close()
		}
		p.BlackHole()
		for what, call := range map[string]func(context.Context) error{
			"read": func(ctx context.Context) error { _, _, err := r.Read(ctx); return err },
			"write": func(ctx context.Context) error {
				_, err := r.Write(ctx, make([]byte, tenure.MaxRecordSize), v)
				return err
			},
			"list": func(ctx context.Context) error { _, err := r.List(ctx, ""); return err },
		} {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			begin := time.Now()
			err := call(ctx)
			if took := time.Since(begin); !errors.Is(err, context.Canceled) || took > soon {
				t.Errorf("%s, connected: %v: %v after %v", what, connected, err, took)
			}
			mustSay(t, err, "it was given up")
			err = call(within(t, 50*time.Millisecond))
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, connected: %v: %v, want the deadline's error", what, connected, err)
			}
			mustSay(t, err, "no answer in time")
		}
	}
	p.Pass()
	mustRead(t, r)
	r.Close()
	p.Close()
	for end := time.Now().Add(soon); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// TestIdleEnds: what the server did to an idle connection costs no call.
func TestIdleEnds(t *testing.T) {
	r := fresh(t)
	v := mustWrite(t, r, "1", "")
	for range 5 {
		sql(t, server, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'tenure'")
		v = mustWrite(t, r, "1", v)
	}
}

// TestDurable: an acknowledged write survives a crash, though the role's default
// says that it need not. The server's own log writer sleeps so long that a plain
// write is lost for certain, which is tested too.
func TestDurable(t *testing.T) {
	t.Parallel()
	p := start(t, testbed.PostgresOptions{Settings: map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "0", "autovacuum": "off"}})
	sql(t, p, "ALTER DATABASE tenure SET synchronous_commit = off; CREATE TABLE plain (n int); CHECKPOINT")
	r := open(t, p.URL(newKey()))
	v := mustWrite(t, r, "created", "")
	crash := func() {
		t.Helper()
		p.Kill()
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
	}
	crash()
	if got, now := mustRead(t, r); got != "created" || now != v {
		t.Fatalf("after a crash the record is %q at %q, want the created one at %q", got, now, v)
	}
	v = mustWrite(t, r, "updated", v)
	crash()
	if got, now := mustRead(t, r); got != "updated" || now != v {
		t.Fatalf("after a crash the record is %q at %q, want the updated one at %q", got, now, v)
	}
	sql(t, p, "INSERT INTO plain VALUES (1)")
	crash()
	if n := sql(t, p, "SELECT count(*) FROM plain"); n != "0" {
		t.Errorf("a write without the driver's care survives as well: this test shows nothing")
	}
}

// TestSynchronousStandby: with a synchronous standby that is away, a write waits.
// It is not reported as done when the wait is cancelled, and the driver does not
// cancel it.
func TestSynchronousStandby(t *testing.T) {
	t.Parallel()
	p := start(t, testbed.PostgresOptions{})
	r := open(t, p.URL(newKey()))
	v := mustWrite(t, r, "1", "")
	sql(t, p, "ALTER SYSTEM SET synchronous_standby_names = 'away'")
	p.Stop()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
	await := func(n string) {
		t.Helper()
		for end := time.Now().Add(10 * soon); sql(t, p, waiting) != n; {
			if time.Now().After(end) {
				t.Fatalf("%s writes wait for a standby, want %s", sql(t, p, waiting), n)
			}
		}
	}
	_, err := r.Write(within(t, time.Second), []byte("2"), v)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a write without the standby: %v", err)
	}
	await("1") // nobody has cancelled it
	if got, now := mustRead(t, r); got != "1" || now != v {
		t.Errorf("what waits for the standby is seen: %q at %q", got, now)
	}
	other := mustWriteLater(t, open(t, p.URL(newKey())))
	await("2")
	sql(t, p, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	err = <-other
	mustSay(t, err, "may be lost in a failover")
	if got, _ := mustRead(t, r); got != "2" {
		t.Errorf("after the wait was cancelled the record is %q, want the late write", got)
	}
}

func mustWriteLater(t testing.TB, r *Register) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	ctx := within(t, time.Minute)
	go func() {
		_, err := r.Write(ctx, []byte("x"), "")
		done <- err
	}()
	return done
}

// TestHosts: a host that is dead, silent or a standby does not keep a call from
// the primary.
func TestHosts(t *testing.T) {
	silent, err := fault.NewTCP(server.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(silent.Close)
	silent.BlackHole()
	dead, err := testbed.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	hosts := fmt.Sprintf("127.0.0.1:%d,%s,%s", dead, silent.Addr(), server.Host)
	r := open(t, strings.Replace(server.URL(newKey()), server.Host, hosts, 1))
	if _, err := r.Write(within(t, 4*time.Second), []byte("1"), ""); err != nil {
		t.Fatalf("with a dead and a silent host before the primary: %v", err)
	}
	r.Close()
	begin := time.Now()
	mustRead(t, r)
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the next connection took %v: the host that was the primary should be first", took)
	}
}

// TestEnvironment: nothing in the environment leads to another row.
func TestEnvironment(t *testing.T) {
	r := fresh(t)
	mustWrite(t, r, "right", "")
	services := filepath.Join(t.TempDir(), "services")
	if err := os.WriteFile(services, []byte("[other]\nhost=db.invalid\ndbname=other\nsearch_path=other\nuser=other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"PGHOST": "db.invalid", "PGHOSTADDR": "192.0.2.1", "PGPORT": "1", "PGDATABASE": "other", "PGUSER": "other", "PGSSLMODE": "verify-full",
		"PGOPTIONS": "-c search_path=other -c default_transaction_read_only=on", "PGSERVICE": "other", "PGSERVICEFILE": services,
		"PGTARGETSESSIONATTRS": "standby", "PGTZ": "Asia/Kathmandu", "PGAPPNAME": "other",
	} {
		t.Setenv(name, value)
	}
	other := open(t, server.URL(r.key))
	if got, v := mustRead(t, other); got != "right" {
		t.Errorf("read %q", got)
	} else {
		mustWrite(t, other, "right", v)
	}
}

// TestErrors: what is wrong, where, and what to do, for mistakes in the set-up.
func TestErrors(t *testing.T) {
	key := newKey()
	url := func(old, new string) string { return strings.Replace(server.URL(key), old, new, 1) }
	web := webServer(t)
	closed, err := testbed.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	sql(t, server, `CREATE ROLE stranger LOGIN PASSWORD 'open-sesame'; CREATE ROLE reader LOGIN PASSWORD 'open-sesame'; GRANT SELECT ON tenure_locks TO reader;
		CREATE ROLE crowd LOGIN PASSWORD 'open-sesame' CONNECTION LIMIT 0; CREATE TABLE foreign_one (id int); GRANT ALL ON foreign_one TO tenure`)
	t.Cleanup(func() {
		sql(t, server, "DROP TABLE foreign_one; DROP OWNED BY stranger, reader, crowd; DROP ROLE stranger, reader, crowd")
	})
	passFile := filepath.Join(t.TempDir(), "passwords")
	if err := os.WriteFile(passFile, []byte("*:*:*:wrong:guess\n*:*:*:*:open-sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGPASSFILE", passFile)
	for _, tt := range []struct {
		name, url   string
		read, write []string
	}{
		{"no such user", url("user=tenure", "user=nobody"), []string{"password", "user=", "28P01"}, nil},
		{"wrong password", url("user=tenure", "user=wrong"), []string{"did not take the password", "PGPASSFILE"}, nil},
		{"no such database", url("/tenure?", "/absent?"), []string{`no database "absent"`, "3D000"}, nil},
		{"no such table", url("key=", "table=absent&key="), []string{"public.absent: run tenure init", "42P01"}, []string{"run tenure init"}},
		{"another's table", url("key=", "table=foreign_one&key="), []string{"not a table that tenure init made"}, []string{"not a table that tenure init made"}},
		{"no rights", url("user=tenure", "user=stranger"), []string{"rights do not suffice", "GRANT SELECT, INSERT, UPDATE", "42501"}, []string{"42501"}},
		{"may only read", url("user=tenure", "user=reader"), nil, []string{"rights do not suffice", "42501"}},
		{"no connection left", url("user=tenure", "user=crowd"), []string{"no connection left", "53300"}, nil},
		{"nobody listens", url(server.Host, fmt.Sprintf("127.0.0.1:%d", closed)), []string{"nobody listens there"}, nil},
		{"a web server", url(server.Host, web), []string{"does not speak PostgreSQL's protocol"}, nil},
		{"a web server, TLS", strings.Replace(url(server.Host, web), "disable", "require", 1), []string{"has no TLS"}, nil},
		{"no TLS", url("disable", "verify-full"), []string{"has no TLS", "sslmode=disable"}, nil},
		{"no such host", url("127.0.0.1", "db.invalid"), []string{"host's name is not known"}, nil},
		{"no such file", url("sslmode=disable", "sslmode=verify-full&sslrootcert=/absent.crt"), []string{"file", "sslrootcert"}, nil},
	} {
		r := open(t, tt.url)
		if tt.read != nil {
			_, _, err := r.Read(within(t, soon))
			mustSay(t, err, append(tt.read, "postgres: read the key", key)...)
		}
		if tt.write != nil {
			_, err := r.Write(within(t, soon), []byte("x"), "")
			mustSay(t, err, append(tt.write, "postgres: write the key", key)...)
		}
	}
}

// TestInitialize: who may make the table makes it, once; who may not is told,
// unless it is there.
func TestInitialize(t *testing.T) {
	t.Parallel()
	p := start(t, testbed.PostgresOptions{})
	sql(t, p, "CREATE SCHEMA ops AUTHORIZATION tenure")
	url := func(table string) string { return strings.Replace(p.URL("x"), "key=", "table="+table+"&key=", 1) }
	done := make(chan error)
	for range 8 {
		r := open(t, url("ops.locks"))
		go func() { done <- r.Initialize(t.Context()) }()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Errorf("made by eight at once: %v", err)
		}
	}
	r := open(t, url("ops.locks"))
	mustWrite(t, r, "1", "")
	if err := r.Initialize(t.Context()); err != nil {
		t.Errorf("made again: %v", err)
	}
	if got, _ := mustRead(t, r); got != "1" {
		t.Errorf("making the table again changed the record to %q", got)
	}
	sql(t, p, "ALTER TABLE ops.locks OWNER TO postgres; ALTER SCHEMA ops OWNER TO postgres; GRANT USAGE ON SCHEMA ops TO tenure; GRANT SELECT ON ops.locks TO tenure")
	if err := r.Initialize(t.Context()); err != nil {
		t.Errorf("without the right, and there: %v", err)
	}
	mustSay(t, open(t, url("ops.others")).Initialize(t.Context()), "make the table", "CREATE on the schema", "42501")
	mustSay(t, open(t, url("absent.locks")).Initialize(t.Context()), "no schema absent")
}

// TestSessions: what a role or a database may set for every session.
func TestSessions(t *testing.T) {
	r := fresh(t)
	key := r.key
	v := mustWrite(t, r, "1", "")
	t.Cleanup(func() { sql(t, server, "ALTER ROLE tenure RESET ALL") })
	set := func(what string) *Register {
		t.Helper()
		sql(t, server, "ALTER ROLE tenure RESET ALL; ALTER ROLE tenure SET "+what)
		return open(t, server.URL(key))
	}
	_, err := set("default_transaction_read_only = on").Write(t.Context(), []byte("2"), v)
	mustSay(t, err, "may only read", "25006")

	locked := hold(t, "SELECT 1 FROM tenure_locks WHERE key = '"+key+"' FOR UPDATE")
	_, err = set("statement_timeout = '50ms'").Write(t.Context(), []byte("2"), v)
	mustSay(t, err, "statement_timeout", "57014")
	_, err = set("lock_timeout = '50ms'").Write(t.Context(), []byte("2"), v)
	mustSay(t, err, "lock_timeout", "55P03")
	locked("COMMIT")

	// Serializable: who meets another's write is undone, and told so.
	locked = hold(t, "UPDATE tenure_locks SET version = 'theirs' WHERE key = '"+key+"'")
	done := make(chan error, 1)
	strict := set("default_transaction_isolation = 'serializable'")
	go func() {
		_, err := strict.Write(within(t, time.Minute), []byte("2"), v)
		done <- err
	}()
	for sql(t, server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "0" {
		runtime.Gosched()
	}
	locked("COMMIT")
	mustSay(t, <-done, "undid this one", "40001")
	if got, _ := mustRead(t, strict); got != "1" {
		t.Errorf("what was undone is there: %q", got)
	}
	_, now := mustRead(t, strict)
	mustWrite(t, strict, "3", now)
}

// hold runs a statement in a transaction that stays open until the function
// that it returns ends it.
func hold(t testing.TB, statement string) func(end string) {
	t.Helper()
	host, port, _ := net.SplitHostPort(server.Host)
	bin, err := testbed.PostgresBin("psql")
	if err != nil {
		t.Fatal(err)
	}
	return holdWith(t, bin, []string{"-X", "-q", "-A", "-t", "-h", host, "-p", port, "-U", "postgres", "-d", testbed.PostgresDatabase}, statement)
}

// webServer answers whatever it gets as a web server does, and returns its
// address.
func webServer(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 1024))
			c.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html><h1>Bad Request</h1></html>"))
			c.Close()
		}
	}()
	return l.Addr().String()
}

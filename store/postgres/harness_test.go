// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
	"tenure.dev/test/testbed"
)

// server is one real server for the tests of the package that leave it alone.
var server *testbed.Postgres

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	for _, env := range os.Environ() {
		if name, _, _ := strings.Cut(env, "="); strings.HasPrefix(name, "PG") {
			os.Unsetenv(name)
		}
	}
	dir, err := os.MkdirTemp("", "tenure-postgres-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Chmod(dir, 0o755) // the server runs as another user
	}
	if err == nil {
		server, err = testbed.StartPostgres(dir, testbed.PostgresOptions{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Close()
	name, value, _ := strings.Cut(server.Env[0], "=")
	os.Setenv(name, value)
	if err := makeTable(server); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func makeTable(p *testbed.Postgres) error {
	lock, err := tenure.Open(context.Background(), p.URL("init"), tenure.Vars{})
	if err != nil {
		return err
	}
	r := lock.Register.(*Register)
	defer r.Close()
	return r.Initialize(context.Background())
}

// folder is a folder that the server's user can enter.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tenure-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start starts a server for one test, with the table in it.
func start(t testing.TB, opt testbed.PostgresOptions) *testbed.Postgres {
	t.Helper()
	p, err := testbed.StartPostgres(folder(t), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if opt.CertFile == "" {
		if err := makeTable(p); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

var keys atomic.Int64

func newKey() string { return fmt.Sprintf("locks/%04d", keys.Add(1)) }

func open(t testing.TB, url string) *Register {
	t.Helper()
	lock, err := tenure.Open(context.Background(), url, tenure.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	r := lock.Register.(*Register)
	t.Cleanup(r.Close)
	return r
}

// fresh opens a lock that nobody else has, on the server of the package.
func fresh(t testing.TB) *Register {
	t.Helper()
	return open(t, server.URL(newKey()))
}

// proxied opens one lock twice: through a proxy, and directly.
func proxied(t testing.TB, p *testbed.Postgres) (*Register, *Register, *fault.TCP) {
	t.Helper()
	proxy, err := fault.NewTCP(p.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	url := p.URL(newKey())
	return open(t, strings.Replace(url, p.Host, proxy.Addr(), 1)), open(t, url), proxy
}

func sql(t testing.TB, p *testbed.Postgres, statements string) string {
	t.Helper()
	out, err := p.SQL(statements)
	if err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
	return out
}

// remove deletes the record behind the driver's back, put replaces it.
func remove(t testing.TB, p *testbed.Postgres, r *Register) {
	t.Helper()
	sql(t, p, fmt.Sprintf("DELETE FROM tenure_locks WHERE key = '%s'", r.key))
}

func put(t testing.TB, p *testbed.Postgres, r *Register, value []byte) {
	t.Helper()
	file := filepath.Join(folder(t), "value") // too long for a command line
	if err := os.WriteFile(file, []byte(hex.EncodeToString(value)), 0o644); err != nil {
		t.Fatal(err)
	}
	sql(t, p, fmt.Sprintf(`INSERT INTO tenure_locks VALUES ('%s', decode(pg_read_file('%s'), 'hex'), 'by hand', now())
		ON CONFLICT (key) DO UPDATE SET value = excluded.value`, r.key, file))
}

func mustWrite(t testing.TB, r tenure.Register, value string, old tenure.Version) tenure.Version {
	t.Helper()
	v, err := r.Write(t.Context(), []byte(value), old)
	if err != nil {
		t.Fatalf("write %q: %v", value, err)
	}
	return v
}

func mustRead(t testing.TB, r tenure.Register) (string, tenure.Version) {
	t.Helper()
	b, v, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(b), v
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// mustSay wants an error with all the texts in its message, in one line, and
// neither the password nor a sentinel.
func mustSay(t testing.TB, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that says %q", texts)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %q: %v", text, err)
		}
	}
	if strings.Contains(err.Error(), "\n") || strings.Contains(fmt.Sprintf("%v %+v", err, err), testbed.PostgresPassword) {
		t.Errorf("the error has several lines, or the password: %v", err)
	}
	for _, sentinel := range []error{tenure.ErrNotExist, tenure.ErrConflict, tenure.ErrValueTooLarge} {
		if errors.Is(err, sentinel) {
			t.Errorf("the error is %v: %v", sentinel, err)
		}
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// PostgresOptions say how a [Postgres] is set up.
type PostgresOptions struct {
	// CertFile and KeyFile are the server's certificate; without them clients
	// talk to it in plain text. ClientCAFile is by whose certificates the role
	// PostgresUser has to come then, instead of with a password.
	CertFile, KeyFile, ClientCAFile string
	// Settings go into the server's configuration.
	Settings map[string]string
}

// What every [Postgres] has: a role that may make tables in the public schema of
// a database, and its password.
const (
	PostgresDatabase = "tenure"
	PostgresUser     = "tenure"
	PostgresPassword = "open-sesame"
)

// A Postgres is a PostgreSQL server on the loopback interface, of the version
// that the system has. Its methods are safe for concurrent use.
type Postgres struct {
	// Host is its address, "127.0.0.1:port".
	Host string
	// Env names the file with the password, for a process' environment.
	Env []string

	dir      string
	port     int
	bin      string
	uid, gid int
	settings map[string]string

	mu      sync.Mutex
	process *Process
}

// PostgresBin returns the path of one of the programs of PostgreSQL's newest
// version on this system, which Debian keeps out of PATH.
func PostgresBin(name string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(found) == 0 {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
		return "", fmt.Errorf("testbed: PostgreSQL's %s is not installed: run make deps", name)
	}
	slices.SortFunc(found, func(a, b string) int { return postgresMajor(a) - postgresMajor(b) })
	return found[len(found)-1], nil
}

// postgresMajor returns the version in the path of a program.
func postgresMajor(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0 is older than all
	return n
}

// StartPostgres makes a database cluster in the folder dir/data, starts its
// server, and makes the role and the database.
func StartPostgres(dir string, opt PostgresOptions) (*Postgres, error) {
	p, err := newPostgres(dir)
	if err != nil {
		return nil, err
	}
	if err := p.initialize(opt); err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	for _, statement := range []string{
		fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", PostgresUser, PostgresPassword),
		fmt.Sprintf("CREATE DATABASE %s OWNER %s", PostgresDatabase, PostgresUser),
	} {
		if _, err := p.sql("postgres", statement); err != nil {
			p.Close()
			return nil, err
		}
	}
	return p, nil
}

func newPostgres(dir string) (*Postgres, error) {
	postgres, err := PostgresBin("postgres")
	if err != nil {
		return nil, err
	}
	p := &Postgres{dir: dir, bin: filepath.Dir(postgres), settings: map[string]string{}}
	if p.port, err = FreePort(); err != nil {
		return nil, err
	}
	if p.uid, p.gid, err = unprivileged(); err != nil {
		return nil, err
	}
	p.Host = fmt.Sprintf("127.0.0.1:%d", p.port)
	passFile := filepath.Join(dir, "passwords")
	p.Env = []string{"PGPASSFILE=" + passFile}
	return p, os.WriteFile(passFile, []byte("*:*:*:"+PostgresUser+":"+PostgresPassword+"\n"), 0o600)
}

// unprivileged returns whom a server runs as that refuses to run as root: zero
// for this process' user, if that is not root.
func unprivileged() (uid, gid int, err error) {
	if os.Getuid() != 0 {
		return 0, 0, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return 0, 0, fmt.Errorf("testbed: PostgreSQL does not run as root, and: %w", err)
	}
	uid, _ = strconv.Atoi(u.Uid) // on Unix they are numbers
	gid, _ = strconv.Atoi(u.Gid)
	return uid, gid, nil
}

// give hands a file or folder to the server's user.
func (p *Postgres) give(path string) error {
	if p.uid == 0 {
		return nil
	}
	return os.Chown(path, p.uid, p.gid)
}

func (p *Postgres) data(name string) string { return filepath.Join(p.dir, "data", name) }

// run runs one of PostgreSQL's programs to its end, as the server's user.
func (p *Postgres) run(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.Dir = p.dir
	cmd.SysProcAttr = deathSignal()
	if p.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.uid), Gid: uint32(p.gid)}
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("testbed: %s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

func (p *Postgres) initialize(opt PostgresOptions) error {
	if err := os.MkdirAll(p.data(""), 0o700); err != nil {
		return err
	}
	if err := p.give(p.data("")); err != nil {
		return err
	}
	if _, err := p.run("initdb", "--no-sync", "-D", p.data(""), "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8"); err != nil {
		return err
	}
	hba := "host all,replication postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
	if opt.CertFile != "" {
		p.settings["ssl"] = "on"
		if err := errors.Join(p.install(opt.CertFile, "server.crt"), p.install(opt.KeyFile, "server.key")); err != nil {
			return err
		}
	}
	if opt.ClientCAFile != "" {
		p.settings["ssl_ca_file"] = "clients.crt"
		hba = "host all,replication postgres 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 cert\n"
		if err := p.install(opt.ClientCAFile, "clients.crt"); err != nil {
			return err
		}
	}
	maps.Copy(p.settings, opt.Settings)
	return p.write("pg_hba.conf", []byte(hba))
}

// InstallCert replaces the certificate of a server that runs and has one.
// Connections that exist go on.
func (p *Postgres) InstallCert(certFile, keyFile string) error {
	if err := errors.Join(p.install(certFile, "server.crt"), p.install(keyFile, "server.key")); err != nil {
		return err
	}
	// New sessions have this time from the server's first process, which loads
	// the certificate as well.
	const loaded = "SELECT pg_conf_load_time()"
	before, err := p.sql("postgres", loaded)
	if err == nil {
		_, err = p.sql("postgres", "SELECT pg_reload_conf()")
	}
	if err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		now, err := p.sql("postgres", loaded)
		if err != nil || now != before {
			return err
		}
	}
	return errors.New("testbed: PostgreSQL does not load its certificate anew")
}

// install copies a file to where only the server's user may read it.
func (p *Postgres) install(from, name string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return p.write(name, b)
}

func (p *Postgres) write(name string, b []byte) error {
	if err := os.WriteFile(p.data(name), b, 0o600); err != nil {
		return err
	}
	return p.give(p.data(name))
}

// Start starts the server, and waits until it takes connections. It does
// nothing if it runs.
func (p *Postgres) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != nil && p.process.Err() == nil {
		return nil
	}
	args := []string{"-D", p.data(""), "-p", strconv.Itoa(p.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "shared_buffers=16MB"}
	for _, name := range slices.Sorted(maps.Keys(p.settings)) {
		args = append(args, "-c", name+"="+p.settings[name])
	}
	process, err := Start(Cmd{
		Path: filepath.Join(p.bin, "postgres"), Args: args, Dir: p.dir, Log: filepath.Join(p.dir, "postgres.log"),
		UID: uint32(p.uid), GID: uint32(p.gid),
	})
	if err != nil {
		return err
	}
	p.process = process
	return process.Ready(30*time.Second, func() error {
		_, err := p.sql("postgres", "SELECT 1")
		return err
	})
}

// Stop shuts the server down in order: it ends the sessions, and what was
// acknowledged is kept.
func (p *Postgres) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return
	}
	_ = p.process.Signal(syscall.SIGINT) // it may have ended
	select {
	case <-p.process.Done():
	case <-time.After(10 * time.Second):
		p.kill()
	}
}

// Kill kills all processes of the server at once, as a crash of the machine
// would, except that what was written to files is kept.
func (p *Postgres) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kill()
}

// Close is Kill.
func (p *Postgres) Close() { p.Kill() }

func (p *Postgres) kill() {
	if p.process == nil || p.process.Err() != nil {
		return
	}
	// One after the other they would see the others die, and act.
	_ = p.process.Pause() // it may have ended
	for _, pid := range children(p.process.PID()) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	p.process.Kill()
}

// children returns the processes that a process has started.
func children(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is sound
	for _, path := range stats {
		b, _ := os.ReadFile(path) // it may have ended
		// After the name, which is in parentheses: the state, and the parent.
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// SQL runs statements in the database as the superuser, and returns
// their rows, one a line.
func (p *Postgres) SQL(statements string) (string, error) { return p.sql(PostgresDatabase, statements) }

func (p *Postgres) sql(database, statements string) (string, error) {
	out, err := p.run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1",
		"-h", "127.0.0.1", "-p", strconv.Itoa(p.port), "-U", "postgres", "-d", database, "-c", statements)
	return strings.TrimSpace(string(out)), err
}

// URL returns the URL of a lock in the database, as the role and without TLS.
func (p *Postgres) URL(key string) string {
	return fmt.Sprintf("postgres://%s/%s?key=%s&user=%s&sslmode=disable", p.Host, PostgresDatabase, key, PostgresUser)
}

// Standby makes a copy of the server's data in the folder dir/data, and starts
// a server on it that follows this one, asynchronously unless the settings say
// otherwise.
func (p *Postgres) Standby(dir string) (*Postgres, error) {
	s, err := newPostgres(dir)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(s.data(""), 0o700); err != nil {
		return nil, err
	}
	if err := s.give(s.data("")); err != nil {
		return nil, err
	}
	_, err = s.run("pg_basebackup", "--no-sync", "-c", "fast", "-R", "-D", s.data(""), "-h", "127.0.0.1", "-p", strconv.Itoa(p.port), "-U", "postgres")
	if err != nil {
		return nil, err
	}
	if err := s.Start(); err != nil {
		return nil, err
	}
	return s, nil
}

// Promote makes a standby a primary, and waits until it is.
func (p *Postgres) Promote() error {
	_, err := p.sql("postgres", "SELECT pg_promote(true, 30)")
	return err
}

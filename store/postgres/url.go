// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"tenure.dev"
)

const (
	defaultTable = "tenure_locks"
	defaultPort  = "5432"
	// maxKey is far below what fits into an entry of an index.
	maxKey = 256
)

func init() {
	tenure.RegisterScheme("postgres", tenure.Driver{
		Open:   openURL,
		Params: []string{"key", "table", "user", "sslmode", "sslrootcert", "sslcert", "sslkey"},
		Price:  tenure.Price{Source: "no price per statement: servers are paid by the hour (list prices of the large clouds, 2026-11)"},
	})
}

// sslModes are those that cannot fall back to plain text.
var sslModes = []string{"verify-full", "verify-ca", "require", "disable"}

// Names are compared as they stand, in quotes: capitals would make another
// table than the one that a person gets who writes them in psql.
var nameForm = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// A place is where a row is, and how to get there; without credentials.
type place struct {
	hosts []string // host:port
	// database, schema, table and key name the row.
	database, schema, table, key string
	// user is empty for PGUSER or the system's user.
	user string
	// sslMode is one of sslModes; the files may be empty.
	sslMode, sslRootCert, sslCert, sslKey string
}

func openURL(_ context.Context, u *tenure.URL) (tenure.Register, error) {
	p, err := parse(u)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", tenure.ErrURL, err)
	}
	return &Register{client: newClient(p), key: p.key}, nil
}

func parse(u *tenure.URL) (*place, error) {
	p := &place{
		schema: "public", table: defaultTable, key: u.Params["key"], user: u.Params["user"],
		sslMode: u.Params["sslmode"], sslRootCert: u.Params["sslrootcert"], sslCert: u.Params["sslcert"], sslKey: u.Params["sslkey"],
	}
	if u.Host == "" {
		return nil, fmt.Errorf("it names no host: write postgres://HOST/DATABASE?key=NAME")
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		full, err := withPort(host)
		if err != nil {
			return nil, err
		}
		p.hosts = append(p.hosts, full)
	}
	p.database = strings.TrimPrefix(u.Path, "/")
	switch {
	case p.database == "":
		return nil, fmt.Errorf("it names no database: write postgres://%s/DATABASE?key=NAME", u.Host)
	case strings.Contains(p.database, "/"):
		return nil, fmt.Errorf("the path %q is more than the name of a database: the lock's name goes into key=", u.Path)
	case p.key == "":
		return nil, fmt.Errorf("it names no lock: add key=NAME")
	case len(p.key) > maxKey || !utf8.ValidString(p.key):
		return nil, fmt.Errorf("the key is longer than %d bytes, or not UTF-8: choose another", maxKey)
	}
	if name := u.Params["table"]; name != "" {
		parts := strings.Split(name, ".")
		if len(parts) == 1 {
			parts = []string{p.schema, name}
		}
		if len(parts) != 2 || !nameForm.MatchString(parts[0]) || !nameForm.MatchString(parts[1]) {
			return nil, fmt.Errorf("table=%q is not a name or schema.name of lower-case letters, digits and '_'", name)
		}
		p.schema, p.table = parts[0], parts[1]
	}
	return p, p.checkTLS()
}

func withPort(host string) (string, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil { // there is none; the core has seen to the form
		name, port = strings.Trim(host, "[]"), defaultPort
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("the port %s is not between 1 and 65535", port)
	}
	return net.JoinHostPort(name, port), nil
}

func (p *place) checkTLS() error {
	from := "sslmode"
	if p.sslMode == "" {
		p.sslMode, from = os.Getenv("PGSSLMODE"), "PGSSLMODE"
	}
	if p.sslMode == "" {
		p.sslMode = sslModes[0]
	}
	switch {
	case p.sslMode == "prefer" || p.sslMode == "allow":
		return fmt.Errorf("%s=%s goes on in plain text when the other side says so: choose %s", from, p.sslMode, strings.Join(sslModes, ", "))
	case !slices.Contains(sslModes, p.sslMode):
		return fmt.Errorf("%s=%q is not known: choose %s", from, p.sslMode, strings.Join(sslModes, ", "))
	case p.sslMode == "disable" && (p.sslRootCert != "" || p.sslCert != "" || p.sslKey != ""):
		return fmt.Errorf("%s=disable, and yet certificates: remove the one or the others", from)
	case (p.sslCert == "") != (p.sslKey == ""):
		return fmt.Errorf("sslcert and sslkey belong together: give both, or none")
	}
	return nil
}

// settings returns what the client library is told about one of the hosts, in
// its own notation. Each setting that could lead elsewhere is given, so that the
// environment's is not used.
func (p *place) settings(host string) string {
	name, port, _ := net.SplitHostPort(host) // withPort made it
	target := "any"                          // each read asks
	if len(p.hosts) > 1 {
		target = "primary"
	}
	all := [][2]string{
		{"host", name}, {"port", port}, {"dbname", p.database}, {"target_session_attrs", target}, {"user", p.user},
		{"sslmode", p.sslMode}, {"sslrootcert", p.sslRootCert}, {"sslcert", p.sslCert}, {"sslkey", p.sslKey},
	}
	var b strings.Builder
	for _, s := range all {
		if s[1] != "" {
			fmt.Fprintf(&b, "%s='%s' ", s[0], strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s[1]))
		}
	}
	return b.String()
}

// String says where the table is, for messages.
func (p *place) String() string {
	return fmt.Sprintf("%s.%s of postgres://%s/%s", p.schema, p.table, strings.Join(p.hosts, ","), p.database)
}

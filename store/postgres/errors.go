// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"tenure.dev"
)

var (
	errStandby      = errors.New("the server is a standby, whose rows are those of some time ago: name the primary, or list all hosts of the cluster with commas")
	errUnreplicated = errors.New("the server stopped waiting for its synchronous standby: the write is in the primary, but may be lost in a failover")
	errNoTable      = errors.New("there is no such table")
)

// An explained error says in its message what was being done, what is the
// matter and what to do; all that it wraps can be found in it.
type explained struct {
	text string
	errs []error
}

func (e *explained) Error() string   { return e.text }
func (e *explained) Unwrap() []error { return e.errs }

// explain makes the message for an error of a call.
func (c *client) explain(doing string, err error) error {
	if isOwn(err) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	e := &explained{errs: []error{err}}
	why := c.reason(err)
	if isCode(err, "42P01") {
		e.errs = append(e.errs, errNoTable)
	}
	details := strings.Join(strings.Fields(err.Error()), " ")
	if why != "" {
		details = why + ": " + details
	}
	e.text = doing + ": " + details
	return e
}

// isOwn: what says all by itself.
func isOwn(err error) bool {
	var refused *pgconn.PgError
	return !errors.As(err, &refused) && slices.ContainsFunc([]error{
		tenure.ErrNotExist, tenure.ErrConflict, tenure.ErrValueTooLarge, errStandby, errUnreplicated,
	}, func(own error) bool { return errors.Is(err, own) })
}

func isCode(err error, codes ...string) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && slices.Contains(codes, refused.Code)
}

// reason says what an error means here and what to do next; empty if nothing
// is known beyond its own words.
func (c *client) reason(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return c.refusal(refused)
	}
	if why := c.tlsReason(err); why != "" {
		return why
	}
	var setup *setupError
	var resolve *net.DNSError
	switch {
	case errors.Is(err, context.Canceled):
		return "it was given up"
	case errors.As(err, &resolve):
		return "the host's name is not known here: look at the URL and at this machine's DNS"
	case errors.As(err, &setup) && errors.Is(err, fs.ErrNotExist):
		return "a file that the URL or the environment names is not there (sslrootcert, sslcert, sslkey)"
	case errors.As(err, &setup):
		return "the settings cannot be used: look at the parameters ssl… of the URL and at the environment's PG…"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens there: is the server running, and is it the right port?"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time: the server, or the way to it, is slow or gone"
	case strings.Contains(err.Error(), "unknown message type"), strings.Contains(err.Error(), "body length"):
		return "what answers there does not speak PostgreSQL's protocol: look at host and port"
	}
	return ""
}

// tlsReason is the part of reason about TLS.
func (c *client) tlsReason(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
		alert   tls.AlertError
		header  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &unknown):
		return "the server's certificate is by an authority that is not trusted here: name its file with sslrootcert="
	case errors.As(err, &host):
		return "the server's certificate is for another host: use the name that is in it, or have it made for this one"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired or is not valid yet, or this machine's clock is wrong: renew it, or set the clock"
	case errors.As(err, &invalid):
		return "the server's certificate cannot be used"
	case errors.As(err, &alert):
		return "the server did not take our certificate, or wants one: look at sslcert= and sslkey="
	case errors.As(err, &header):
		return "what answers there does not speak TLS as PostgreSQL does: look at host and port"
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return "the server has no TLS: switch it on (ssl = on) or, on a network that nobody else can reach, add sslmode=disable"
	}
	return ""
}

// refusal says what an error of the server means; see the server's manual,
// "PostgreSQL Error Codes".
func (c *client) refusal(e *pgconn.PgError) string {
	switch e.Code {
	case "3F000":
		return fmt.Sprintf("there is no schema %s: CREATE SCHEMA it, or name another with table=schema.name", c.schema)
	case "42P01":
		return fmt.Sprintf("there is no table %s.%s: run tenure init --lock URL, once, as a user who may create it", c.schema, c.table)
	case "42703", "42804", "42883", "42P10", "42809":
		return fmt.Sprintf("%s.%s is not a table that tenure init made, or the server is older than version 13: name another with table=", c.schema, c.table)
	case "42501":
		return fmt.Sprintf("the user's rights do not suffice: GRANT USAGE ON SCHEMA %s, and GRANT SELECT, INSERT, UPDATE ON %s.%s; to make the table, CREATE on the schema",
			c.schema, c.schema, c.table)
	case "28P01":
		return "the server did not take the password, or there is none: look at PGPASSFILE (a line host:port:database:user:password), PGPASSWORD and user="
	case "28000":
		return "the server does not let this user in from here: look at user=, at pg_hba.conf, and whether it wants a certificate (sslcert=) or TLS"
	case "3D000":
		return fmt.Sprintf("there is no database %q on this server: look at the URL's path", c.database)
	case "53300":
		return "the server has no connection left: raise max_connections, or go through a pooler"
	case "53100", "53200", "53400":
		return "the server is out of disk, memory or another resource"
	case "25006":
		return "the server or this user may only read: it is a standby (name the primary), or default_transaction_read_only is on"
	case "40001", "40P01":
		return "another transaction came in between, and the server undid this one"
	case "57014":
		return "the server cancelled the statement: statement_timeout of the role or the database, or a person"
	case "55P03":
		return "somebody holds a lock on the row or the table for longer than lock_timeout allows: look at pg_locks"
	case "57P01", "57P02", "57P05":
		return "the server ended the connection"
	case "57P03":
		return "the server is starting, stopping or recovering"
	}
	return ""
}

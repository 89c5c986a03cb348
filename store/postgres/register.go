// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"tenure.dev"
)

var (
	_ tenure.Register    = (*Register)(nil)
	_ tenure.Siblinger   = (*Register)(nil)
	_ tenure.Lister      = (*Register)(nil)
	_ tenure.Clock       = (*Register)(nil)
	_ tenure.Dater       = (*Register)(nil)
	_ tenure.Initializer = (*Register)(nil)
	_ tenure.Inspector   = (*Register)(nil)
)

// A Register is a register in a row. Its methods are safe for concurrent use
// by any number of goroutines and processes. [tenure.Open] makes it.
type Register struct {
	*client
	key string
	// refused, if set, is what every call returns.
	refused error
}

// String returns the register's place as it may be printed.
func (r *Register) String() string { return fmt.Sprintf("the key %q in %v", r.key, &r.place) }

// Close closes the connections that are idle, which the register shares with
// its siblings. It does not block, and may be called again; a later call opens a
// connection anew.
func (r *Register) Close() { r.close() }

var suffixForm = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)

// Sibling implements [tenure.Siblinger]. It does not block. If suffix is not
// allowed, every call on the sibling says so.
func (r *Register) Sibling(suffix string) tenure.Register {
	s := &Register{client: r.client, key: r.key + suffix, refused: r.refused}
	switch {
	case s.refused != nil:
	case !suffixForm.MatchString(suffix):
		s.refused = fmt.Errorf("%q is no sibling's suffix: use letters, digits, '.', '-', '_' and '/'", suffix)
	case len(s.key) > 2*maxKey:
		s.refused = fmt.Errorf("the suffix is too long: the key would have %d bytes, and %d is the most", len(s.key), 2*maxKey)
	}
	return s
}

// call runs f with a connection and explains its error.
func (r *Register) call(ctx context.Context, op string, f func(*conn) error) error {
	err := r.refused
	if err == nil {
		err = r.do(ctx, f)
	}
	if err == nil {
		return nil
	}
	return r.explain(fmt.Sprintf("postgres: %s %v", op, r), err)
}

// The version is of use only in full: the UUID does not repeat, and the id of
// the transaction that wrote the row changes also when a person edits it. The
// server makes and returns both within the write.
const (
	version = `version || '-' || xmin::text`
	// durable puts off the answer until the write is safe, whatever the role's or
	// the database's default: it holds to the end of this transaction, and it is
	// the commit that looks.
	durable = `set_config('synchronous_commit', 'on', true)`
	micros  = `(extract(epoch FROM %s) * 1000000)::bigint`
)

// sql fills the table's name in. It is in quotes, of a form without quotes.
func (c *client) sql(statement string) string {
	return strings.ReplaceAll(statement, "{table}", fmt.Sprintf(`"%s"."%s"`, c.schema, c.table))
}

// readSQL has one row also if there is no such key, so that a standby cannot
// pass for an empty table.
var readSQL = `SELECT pg_is_in_recovery(), ` + fmt.Sprintf(micros, "clock_timestamp()") + `,
	l.version || '-' || l.xmin::text, CASE WHEN octet_length(l.value) <= ` + strconv.Itoa(tenure.MaxRecordSize) + ` THEN l.value END,
	octet_length(l.value), ` + fmt.Sprintf(micros, "l.written") + `
	FROM (VALUES (1)) AS one LEFT JOIN {table} AS l ON l.key = $1`

// Read implements [tenure.Register]. It blocks for one statement, and to connect
// if there is no connection, at most until ctx ends.
func (r *Register) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	d, err := r.ReadDated(ctx)
	return d.Value, d.Version, err
}

// ReadDated implements [tenure.Dater]. It blocks as Read does; the times are the
// server's, to the microsecond.
func (r *Register) ReadDated(ctx context.Context) (d tenure.DatedValue, err error) {
	err = r.call(ctx, "read", func(cn *conn) error {
		rows, err := cn.query(r.sql(readSQL), []int16{0, 0, 0, 1, 0, 0}, []byte(r.key))
		if err != nil {
			return err
		}
		if len(rows) != 1 || len(rows[0]) != 6 {
			return fmt.Errorf("the answer has %d rows instead of one: the table has no primary key, or something changes statements on the way", len(rows))
		}
		row := rows[0]
		if string(row[0]) != "f" {
			return errStandby
		}
		if d.Now, err = parseMicros(row[1]); err != nil {
			return err
		}
		if row[2] == nil {
			return tenure.ErrNotExist
		}
		if d.Written, err = parseMicros(row[5]); err != nil {
			return err
		}
		d.Version = tenure.Version(row[2])
		if row[3] == nil {
			return fmt.Errorf("%s bytes: %w", row[4], tenure.ErrValueTooLarge)
		}
		d.Value = row[3]
		return nil
	})
	return d, err
}

func parseMicros(b []byte) (time.Time, error) {
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("the server's time %q is not a number: %w", b, err)
	}
	return time.UnixMicro(n), nil
}

const (
	createSQL = `INSERT INTO {table} (key, value, version, written)
	VALUES ($1, $2, gen_random_uuid()::text, clock_timestamp())
	ON CONFLICT (key) DO NOTHING RETURNING ` + version + `, ` + durable
	updateSQL = `UPDATE {table} SET value = $2, version = gen_random_uuid()::text, written = clock_timestamp()
	WHERE key = $1 AND ` + version + ` = $3 RETURNING ` + version + `, ` + durable
)

// Write implements [tenure.Register]. It blocks for one statement, and to connect
// if there is no connection, at most until ctx ends. It waits for whoever else
// has locked the row.
func (r *Register) Write(ctx context.Context, value []byte, old tenure.Version) (v tenure.Version, err error) {
	err = r.call(ctx, "write", func(cn *conn) error {
		statement, params := createSQL, [][]byte{[]byte(r.key), append([]byte{}, value...)}
		if old != "" {
			statement, params = updateSQL, append(params, []byte(old))
		}
		rows, err := cn.query(r.sql(statement), nil, params...)
		switch {
		case err != nil:
			return err
		case len(rows) == 0:
			return tenure.ErrConflict
		case len(rows) != 1 || len(rows[0]) != 2 || len(rows[0][0]) == 0:
			return fmt.Errorf("%d rows were written instead of one: the table has no primary key, or something changes statements on the way", len(rows))
		case cn.unreplicated:
			return errUnreplicated
		}
		v = tenure.Version(rows[0][0])
		return nil
	})
	return v, err
}

// Now implements [tenure.Clock]. It blocks for one statement, and to connect if
// there is no connection, at most until ctx ends.
func (r *Register) Now(ctx context.Context) (now time.Time, err error) {
	err = r.call(ctx, "ask the time beside", func(cn *conn) error {
		rows, err := cn.query(`SELECT `+fmt.Sprintf(micros, "clock_timestamp()"), nil)
		if err == nil {
			now, err = parseMicros(rows[0][0])
		}
		return err
	})
	return now, err
}

const listSQL = `SELECT pg_is_in_recovery(), l.key FROM (VALUES (1)) AS one LEFT JOIN {table} AS l ON l.key LIKE $1`

// List implements [tenure.Lister]. It blocks for one statement, and to connect
// if there is no connection, at most until ctx ends.
func (r *Register) List(ctx context.Context, prefix string) (list []string, err error) {
	err = r.call(ctx, "list what is beside", func(cn *conn) error {
		pattern := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(r.key+prefix) + "%"
		rows, err := cn.query(r.sql(listSQL), nil, []byte(pattern))
		if err != nil {
			return err
		}
		for _, row := range rows {
			if string(row[0]) != "f" {
				return errStandby
			}
			suffix, ok := strings.CutPrefix(string(row[1]), r.key)
			if ok && suffix != "" {
				list = append(list, suffix)
			}
		}
		slices.Sort(list)
		return nil
	})
	return list, err
}

// tableSQL leaves room in each page for the next state of a row, so that
// renewals need not touch the index. The collation makes comparing keys the
// same everywhere.
const tableSQL = `CREATE TABLE IF NOT EXISTS {table} (
	key text COLLATE "C" PRIMARY KEY,
	value bytea NOT NULL,
	version text COLLATE "C" NOT NULL,
	written timestamptz NOT NULL
) WITH (fillfactor = 50)`

// Initialize implements [tenure.Initializer]: it makes the table, if there is
// none. It is idempotent, and blocks for a few statements, at most until ctx
// ends. Rights to make a table are needed only if there is none.
func (r *Register) Initialize(ctx context.Context) error {
	_, _, err := r.Read(ctx)
	if !errors.Is(err, errNoTable) {
		if errors.Is(err, tenure.ErrNotExist) || errors.Is(err, tenure.ErrValueTooLarge) {
			return nil
		}
		return err
	}
	return r.call(ctx, "make the table for", func(cn *conn) error {
		_, err := cn.query(r.sql(tableSQL), nil)
		if isCode(err, "23505", "42P07") { // somebody else was faster
			return nil
		}
		return err
	})
}

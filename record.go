// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A Record is what the lock store keeps for a lock: one JSON object of at most
// [MaxRecordSize] bytes with the field names of a Kubernetes LeaseSpec where
// those exist. Times are for people; nothing is decided by them.
type Record struct {
	// HolderIdentity is who holds the lock; empty in a released record.
	HolderIdentity string
	// Candidate is the process that holds it for the holder.
	Candidate string
	// LeaseDuration is D, in whole seconds, at least 2.
	LeaseDuration time.Duration
	// AcquireTime and RenewTime are the holder's wall clock.
	AcquireTime time.Time
	RenewTime   time.Time
	// LeaseTransitions counts the acquisitions.
	LeaseTransitions int64
	// PreferredHolder asks the leader to hand over to this identity
	// ([AnyHolder]: to whoever comes). On a released record it alone may take
	// the lock for one D.
	PreferredHolder string
	// Paused, when set, keeps everybody from taking the lock.
	Paused *Pause
	// Orders counts the orders given since the lock was taken, so that an order
	// and its opposite do not leave the same bytes.
	Orders int64
	// Epoch is the fencing token; it grows with each term.
	Epoch int64
	// Nonce is new for every attempt of the holder to write.
	Nonce string
	// Lineage is made when the record is created, and kept.
	Lineage string
	// ClusterUID tells holders of the same identity apart.
	ClusterUID string
	// Endpoint and CABundle are published for those who follow the leader.
	Endpoint string
	CABundle string

	unknown map[string]json.RawMessage
}

// A Pause keeps a lock from being taken, by anyone, until a time. The leader
// goes on.
type Pause struct {
	// By is who asked for it, Why the reason given.
	By  string `json:"by"`
	Why string `json:"why,omitempty"`
	// At is when it was asked for, Until when it ends by itself.
	At    time.Time `json:"at"`
	Until time.Time `json:"until"`
}

// AnyHolder as a preferred holder asks the leader to release to whoever comes.
const AnyHolder = "*"

// Prefixes of the holder in a stopper: a record that nobody leads by, and that
// everybody waits out like a stranger's. Identities must not begin with them.
const (
	stopperRelease = "release/"
	stopperCreate  = "create/"
)

// MaxPlausibleEpoch is the highest epoch that is believed: 2^53, up to which
// every JSON reader keeps integers exact.
const MaxPlausibleEpoch = 1 << 53

// maxLeaseSeconds bounds what is read as a lease duration, so that arithmetic
// on it cannot overflow; it is about 68 years.
const maxLeaseSeconds = 1<<31 - 1

// errForeign marks a record of a known format that is not ours.
var errForeign = errors.New("tenure: a record of another elector")

// recordFields are the names of all known fields, in the order in which they
// are written.
var recordFields = []string{
	"holderIdentity", "candidate", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions",
	"preferredHolder", "paused", "orders", "epoch", "nonce", "lineage", "clusterUID", "endpoint", "caBundle",
}

// leaseFields are those of a stock LeaseSpec, and of the older
// MultiClusterLease record, which has three of them.
var leaseFields = []string{
	"holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions", "strategy", "preferredHolder",
}

// keptFields are those of ours that outlive a stranger's acquisition where the
// store keeps them apart from its fields, as the annotations of a Lease: the
// driver gives the epoch that the stranger's term has.
var keptFields = []string{"epoch", "lineage", "paused"}

// ParseRecord reads a record strictly: one JSON object in UTF-8, exact field
// names, none twice, each of its type, nothing behind it. Unknown fields are
// kept. The error says what is wrong and where. A record that parses may still
// be unusable in its context; the elector decides that.
func ParseRecord(value []byte) (*Record, error) {
	fields, err := recordObject(value)
	if err != nil {
		return nil, err
	}
	var r Record
	var errs []error
	text := func(name string, to *string) { errs = append(errs, fieldText(fields, name, to)) }
	number := func(name string, to *int64) { errs = append(errs, fieldNumber(fields, name, to)) }
	stamp := func(name string, to *time.Time) { errs = append(errs, fieldTime(fields, name, to)) }
	var seconds int64
	text("holderIdentity", &r.HolderIdentity)
	text("candidate", &r.Candidate)
	number("leaseDurationSeconds", &seconds)
	stamp("acquireTime", &r.AcquireTime)
	stamp("renewTime", &r.RenewTime)
	number("leaseTransitions", &r.LeaseTransitions)
	text("preferredHolder", &r.PreferredHolder)
	number("orders", &r.Orders)
	number("epoch", &r.Epoch)
	text("nonce", &r.Nonce)
	text("lineage", &r.Lineage)
	text("clusterUID", &r.ClusterUID)
	text("endpoint", &r.Endpoint)
	text("caBundle", &r.CABundle)
	errs = append(errs, fieldPause(fields, &r.Paused))
	if seconds > maxLeaseSeconds {
		errs = append(errs, fmt.Errorf("field leaseDurationSeconds: %d is not a duration", seconds))
	}
	r.LeaseDuration = time.Duration(min(seconds, maxLeaseSeconds)) * time.Second
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("tenure: reading the record: %w", err)
	}
	if foreign(fields) {
		return &r, errForeign
	}
	for _, need := range []string{"holderIdentity", "leaseDurationSeconds", "epoch", "nonce"} {
		if _, ok := fields[need]; !ok {
			return nil, fmt.Errorf("tenure: reading the record: field %s is missing", need)
		}
	}
	switch {
	case r.Epoch < 1:
		return nil, errors.New("tenure: reading the record: field epoch is below 1")
	case r.Nonce == "":
		return nil, errors.New("tenure: reading the record: field nonce is empty")
	case seconds < 2:
		return nil, errors.New("tenure: reading the record: field leaseDurationSeconds is below 2")
	}
	for _, name := range recordFields {
		delete(fields, name)
	}
	if len(fields) > 0 {
		r.unknown = fields
	}
	return &r, nil
}

// foreign reports whether the fields are those of a stock Lease or of the older
// MultiClusterLease: a holder and a renew time, either of which may be empty, and
// nothing that those lack but what a driver has kept; above all no nonce.
func foreign(fields map[string]json.RawMessage) bool {
	if fields["holderIdentity"] == nil || fields["renewTime"] == nil {
		return false
	}
	for name := range fields {
		if !slices.Contains(leaseFields, name) && !slices.Contains(keptFields, name) {
			return false
		}
	}
	return true
}

// recordObject splits one JSON object into its fields.
func recordObject(value []byte) (map[string]json.RawMessage, error) {
	fail := func(what string) error { return fmt.Errorf("tenure: reading the record: %s", what) }
	switch {
	case len(value) > MaxRecordSize:
		return nil, fmt.Errorf("tenure: reading the record: it has %d bytes, more than %d", len(value), MaxRecordSize)
	case len(bytes.TrimSpace(value)) == 0:
		return nil, fail("it is empty")
	case !utf8.Valid(value):
		return nil, fail("it is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(value))
	open, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("tenure: reading the record: %w", err)
	}
	if open != json.Delim('{') {
		return nil, fail("it is not a JSON object")
	}
	fields := make(map[string]json.RawMessage)
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("tenure: reading the record: %w", err)
		}
		name, ok := key.(string)
		if !ok {
			return nil, fail("a field has no name")
		}
		if _, twice := fields[name]; twice {
			return nil, fail("field " + strconv.Quote(name) + " is there twice")
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, fmt.Errorf("tenure: reading the record: field %q: %w", name, err)
		}
		fields[name] = raw
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("tenure: reading the record: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fail("something follows the object")
	}
	return fields, nil
}

func fieldText(fields map[string]json.RawMessage, name string, to *string) error {
	raw, ok := fields[name]
	if !ok {
		return nil
	}
	if len(raw) == 0 || raw[0] != '"' {
		return fmt.Errorf("field %s is not a string", name)
	}
	if err := json.Unmarshal(raw, to); err != nil {
		return fmt.Errorf("field %s: %w", name, err)
	}
	return nil
}

func fieldNumber(fields map[string]json.RawMessage, name string, to *int64) error {
	raw, ok := fields[name]
	if !ok {
		return nil
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("field %s is not a whole number from 0 to 2^63-1", name)
	}
	*to = n
	return nil
}

func fieldTime(fields map[string]json.RawMessage, name string, to *time.Time) error {
	var text string
	if err := fieldText(fields, name, &text); err != nil || text == "" {
		return err
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("field %s is not an RFC 3339 time", name)
	}
	*to = t
	return nil
}

func fieldPause(fields map[string]json.RawMessage, to **Pause) error {
	raw, ok := fields["paused"]
	if !ok || string(raw) == "null" {
		return nil
	}
	var p Pause
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return fmt.Errorf("field paused: %w", err)
	}
	if p.Until.IsZero() {
		return errors.New("field paused has no until")
	}
	*to = &p
	return nil
}

// Marshal writes the record as JSON. The error says which limit it exceeds.
func (r *Record) Marshal() ([]byte, error) {
	w := recordWriter{buf: make([]byte, 0, 512)}
	w.field("holderIdentity", r.HolderIdentity)
	w.text("candidate", r.Candidate)
	w.field("leaseDurationSeconds", int64(r.LeaseDuration/time.Second))
	w.stamp("acquireTime", r.AcquireTime)
	w.stamp("renewTime", r.RenewTime)
	w.field("leaseTransitions", r.LeaseTransitions)
	w.text("preferredHolder", r.PreferredHolder)
	if r.Paused != nil {
		w.field("paused", r.Paused)
	}
	if r.Orders != 0 {
		w.field("orders", r.Orders)
	}
	w.field("epoch", r.Epoch)
	w.field("nonce", r.Nonce)
	w.text("lineage", r.Lineage)
	w.text("clusterUID", r.ClusterUID)
	w.text("endpoint", r.Endpoint)
	w.text("caBundle", r.CABundle)
	names := make([]string, 0, len(r.unknown))
	for name := range r.unknown {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		w.field(name, r.unknown[name])
	}
	w.buf = append(w.buf, '}', '\n')
	switch {
	case w.err != nil:
		return nil, fmt.Errorf("tenure: writing the record: %w", w.err)
	case len(w.buf) > MaxRecordSize:
		return nil, fmt.Errorf("tenure: writing the record: it would have %d bytes, more than %d", len(w.buf), MaxRecordSize)
	}
	return w.buf, nil
}

type recordWriter struct {
	buf []byte
	err error
}

func (w *recordWriter) field(name string, value any) {
	raw, err := json.Marshal(value)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("field %s: %w", name, err)
	}
	sep := byte(',')
	if len(w.buf) == 0 {
		sep = '{'
	}
	w.buf = append(w.buf, sep)
	key, err := json.Marshal(name)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.buf = append(append(append(w.buf, key...), ':'), raw...)
}

func (w *recordWriter) text(name, value string) {
	if value != "" {
		w.field(name, value)
	}
}

func (w *recordWriter) stamp(name string, t time.Time) {
	if !t.IsZero() {
		w.field(name, t.UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
	}
}

// Released reports whether the record says that the lock was given up: no
// holder, an epoch, a nonce. ParseRecord has checked the rest.
func (r *Record) Released() bool { return r.HolderIdentity == "" }

// Stopper reports whether the record was written to stop a holder, or to begin
// a lock, and so leads nobody.
func (r *Record) Stopper() bool {
	return strings.HasPrefix(r.HolderIdentity, stopperRelease) || strings.HasPrefix(r.HolderIdentity, stopperCreate)
}

// clone returns a copy that can be changed.
func (r *Record) clone() *Record {
	c := *r
	if r.Paused != nil {
		p := *r.Paused
		c.Paused = &p
	}
	return &c
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	"errors"
	"time"
)

// Version names one state of a register. It is opaque: the core compares
// versions for equality and passes them back, nothing else. The zero Version
// stands for "does not exist". A register never gives two states the same
// version, also when the bytes are the same.
type Version string

var (
	// ErrNotExist is returned by [Register.Read] when the register holds nothing.
	ErrNotExist = errors.New("tenure: the register is empty")

	// ErrConflict is returned by [Register.Write] when the register has another
	// version than the one the write named. The write did not happen and will
	// not happen.
	ErrConflict = errors.New("tenure: the register has another version")

	// ErrValueTooLarge is returned by [Register.Read] instead of a value that
	// exceeds [MaxRecordSize]. The version is still that of the value, so that
	// the record can be replaced.
	ErrValueTooLarge = errors.New("tenure: the value is larger than a record may be")
)

// MaxRecordSize is the largest record, in bytes. A larger value is unreadable.
const MaxRecordSize = 64 << 10

// A Register is a linearizable compare-and-swap cell: all that Tenure needs
// from a lock store. Drivers implement it; package tenure.dev/storetest tests
// them.
//
// Both methods block until the store has answered or ctx ends, are safe for
// concurrent use by any number of goroutines and processes, make one request,
// and never retry a write. Their errors wrap the sentinels above where these
// apply, and whatever the store's own client returned.
type Register interface {
	// Read returns the value and its version, both from the same answer.
	// The error is ErrNotExist if there is none, and ErrValueTooLarge, with
	// the version, if there is more than MaxRecordSize of it. Read is
	// linearizable: it never returns a state older than the newest one that
	// any finished Read or Write has seen.
	Read(ctx context.Context) ([]byte, Version, error)

	// Write replaces the value if it still has version old; the zero Version
	// means "must not exist". It returns the new version, taken from the
	// answer to this write. The error is ErrConflict if the register has
	// another version; that includes a value that is gone. After any other
	// error the write may or may not have happened, now or later, at most once.
	Write(ctx context.Context, value []byte, old Version) (Version, error)
}

// A Watcher is a [Register] that can tell when it changes.
type Watcher interface {
	// Watch blocks until the register may have another version than old, and
	// returns nil then; it may return early, but not without end. It returns
	// ctx's error when ctx ends and the store's when it fails.
	Watch(ctx context.Context, old Version) error
}

// A Clock is a [Register] whose store has a clock of its own.
type Clock interface {
	// Now returns the store's time, to the second or better. It makes at most
	// one request.
	Now(ctx context.Context) (time.Time, error)
}

// A Dater is a [Register] whose store stamps what it keeps with its own clock,
// and tells that clock with it. With [TakeoverStoreClock] a candidate that has
// just started takes a lock whose holder is long dead without waiting.
type Dater interface {
	// ReadDated reads as [Register.Read] does, with the same errors and in one
	// request, and returns the store's times too. Neither may come from this
	// machine's clock. An answer without them has zero times, and no error.
	ReadDated(ctx context.Context) (DatedValue, error)
}

// A DatedValue is what a register held when it answered, and when that was.
type DatedValue struct {
	// Value and Version are as [Register.Read] returns them.
	Value   []byte
	Version Version
	// Written is when the value was written, by the store's clock, to the second
	// or better: the stamp that the store gave to the write.
	Written time.Time
	// Now is what the store's clock read when it made this answer.
	Now time.Time
}

// A WriteLimiter is a [Register] whose store allows only so many writes of one
// key.
type WriteLimiter interface {
	// MinWriteInterval is the time that must lie between two writes of one key,
	// if they go on and on; single ones may follow each other sooner.
	MinWriteInterval() time.Duration
}

// A StoreNamer is a [Register] that can tell which store it talks to, so that
// what was once found out about that store need not be found out again.
type StoreNamer interface {
	// StoreName names the store in one line, for people too: the endpoint as it
	// was resolved, also if it came from the environment, and the bucket, table
	// or cluster. Two stores that may behave differently have different names. It
	// makes no request and holds no credentials.
	StoreName() string
}

// A Siblinger is a [Register] that can open others beside it, in the same
// store and with the same rights: for probes, candidates and members.
type Siblinger interface {
	// Sibling returns the register whose name is this one's followed by
	// suffix, for example ".candidates/host-1". Suffixes are made of letters,
	// digits, '.', '-', '_' and '/'. It makes no request.
	Sibling(suffix string) Register
}

// A Lister is a [Register] that can list its siblings.
type Lister interface {
	// List returns the suffixes of the existing siblings whose suffix begins
	// with prefix, sorted.
	List(ctx context.Context, prefix string) ([]string, error)
}

// StockElectors is implemented by a [Register] that electors which know
// nothing of Tenure may write too, such as a Kubernetes Lease. Such electors do
// not allow for the drift of clocks, so a term there ends earlier by another
// ρ of its lease duration.
type StockElectors interface {
	// StockElectors reports whether they may write this register.
	StockElectors() bool
}

// A RetryAfterer is an error of a store that asked to be left alone for a
// while. The elector waits at least that long, but never longer than its
// period.
type RetryAfterer interface {
	error
	// RetryAfter returns the time to wait.
	RetryAfter() time.Duration
}

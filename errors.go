// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"errors"
	"fmt"
)

// Causes for which a term's context ends; see [context.Cause].
var (
	// ErrRenewDeadline says that the lock was not renewed for the renew deadline R. The
	// term runs on until its own deadline, for the work to drain.
	ErrRenewDeadline = errors.New("tenure: the lock could not be renewed within the renew deadline")
	// ErrHandover says that an order asked the leader to hand over or to release.
	ErrHandover = errors.New("tenure: an order asked for the lock")
	// ErrStopped says that the context that was given to Run has ended.
	ErrStopped = errors.New("tenure: the elector was asked to stop")
	// ErrWorkEnded says that the work returned by itself, and Run will too.
	ErrWorkEnded = errors.New("tenure: the work has ended")
	// ErrTermOver says that the term has ended.
	ErrTermOver = errors.New("tenure: the term is over")
)

var (
	// ErrDuplicateIdentity says that another live candidate uses the same identity.
	// Each candidate must have its own.
	ErrDuplicateIdentity = errors.New("tenure: another live candidate has the same identity")
	// ErrSettingsDiffer says that candidates of one lock were given different settings
	// that must agree.
	ErrSettingsDiffer = errors.New("tenure: the candidates' settings differ")
	// ErrImplausibleEpoch says that the record's epoch is above 2^53, which no run of
	// terms reaches. Nobody takes such a lock; a person decides.
	ErrImplausibleEpoch = errors.New("tenure: the record's epoch is implausible")
	// ErrNoLeader says that the lock exists and nobody holds it.
	ErrNoLeader = errors.New("tenure: nobody holds the lock")
)

// A LostError says that a term ended because the record is no longer this
// candidate's, and what is there instead.
type LostError struct {
	// Epoch is that of the lost term.
	Epoch int64
	// Holder is who holds the lock now, where the record names anyone.
	Holder string
	// Err says what was found.
	Err error
}

func (e *LostError) Error() string {
	if e.Holder != "" {
		return fmt.Sprintf("tenure: the term of epoch %d was lost to %q: %v", e.Epoch, e.Holder, e.Err)
	}
	return fmt.Sprintf("tenure: the term of epoch %d was lost: %v", e.Epoch, e.Err)
}

func (e *LostError) Unwrap() error { return e.Err }

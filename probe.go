// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// ErrCannotProbe is wrapped by the errors of [Probe] that say nothing about the
// store: it did not answer, or others kept writing. Probing again may work.
var ErrCannotProbe = errors.New("tenure: cannot probe the store")

// An UnsafeStoreError says that a store broke a promise that the election
// stands on. Such a store must not be used for a lock: it would have two
// leaders.
type UnsafeStoreError struct {
	// Check is the promise that was broken, such as "a stale write conflicts".
	Check string
	// Detail is what the store did.
	Detail string
}

func (e *UnsafeStoreError) Error() string {
	return fmt.Sprintf("tenure: this store must not be used for a lock, it could have two leaders: it failed the check %q: %s;"+
		" use another store, or one that honours conditional writes", e.Check, e.Detail)
}

const (
	probeRounds      = 12
	probeFirstWait   = 20 * time.Millisecond
	probeLongestWait = 2 * time.Second
)

// Probe finds out whether a store keeps the promises of [Register] as far as
// one caller can see: a create over an existing value conflicts, a stale write
// conflicts, a write with the right version succeeds and makes a new version,
// also of the same bytes, a read returns what was written with the version of the
// write, and a write at a version creates no key. It writes to reg, which must be
// a sibling of the lock and not the lock; what an earlier probe left there is
// overwritten. Only a store that fails the last check keeps a key of it.
//
// It returns nil, an [*UnsafeStoreError], or an error that wraps
// [ErrCannotProbe] and the cause. A request whose outcome is unknown is never
// held against the store, nor are the writes of another probe on the same key.
//
// Probe blocks for about a dozen requests, at most until ctx ends, and waits pause
// before each write but the first, for stores that limit their rate. It is safe
// for concurrent use.
func Probe(ctx context.Context, reg Register, pause time.Duration) error {
	p := &probe{ctx: ctx, reg: reg, pause: pause, old: map[Version]bool{}, refused: map[string]bool{}}
	wait := probeFirstWait
	for range probeRounds {
		err := p.round()
		if !errors.Is(err, errInterfered) {
			return err
		}
		if err := p.sleep(wait/2 + rand.N(wait) + pause); err != nil {
			return err
		}
		wait = min(2*wait, probeLongestWait)
	}
	return fmt.Errorf("%w: in %d tries the probe's key was changed by somebody else, or the store refused writes with the right version; try again,"+
		" and look for who else writes it", ErrCannotProbe, probeRounds)
}

// errInterfered ends a round in which somebody else wrote, as far as can be
// told.
var errInterfered = errors.New("tenure: another process wrote the probe's key")

type probe struct {
	ctx   context.Context
	reg   Register
	pause time.Duration

	wrote   bool
	current Version          // the newest version known
	old     map[Version]bool // versions known to be over
	refused map[string]bool  // nonces of writes that must not have happened
}

type probeValue struct {
	Probe string `json:"probe"`
}

// value returns a value that nobody else writes, and its nonce.
func (p *probe) value() (b []byte, nonce string) {
	nonce = crand.Text()
	b, err := json.Marshal(probeValue{nonce})
	if err != nil {
		panic(err) // a struct of one string
	}
	return b, nonce
}

// round makes all checks once, as far as nobody interferes.
func (p *probe) round() error {
	a, nonceA := p.value()
	b, nonceB := p.value()
	if err := p.look(); err != nil {
		return err
	}
	if err := p.write("a write with the right version", a, p.current); err != nil {
		return err
	}
	first := p.current
	if err := p.read(nonceA); err != nil {
		return err
	}
	if err := p.mustConflict("a create over an existing value conflicts", ""); err != nil {
		return err
	}
	// Again, to see that what was refused did not happen.
	if err := p.read(nonceA); err != nil {
		return err
	}
	if err := p.write("a write of the same bytes with the right version", a, first); err != nil {
		return err
	}
	second := p.current
	if err := p.mustConflict("a stale write conflicts, also if the bytes were the same", first); err != nil {
		return err
	}
	if err := p.write("a second write with the right version", b, second); err != nil {
		return err
	}
	if err := p.mustConflict("a stale write conflicts", second); err != nil {
		return err
	}
	if err := p.read(nonceB); err != nil {
		return err
	}
	return p.mustNotCreate()
}

// look finds the version to start from.
func (p *probe) look() error {
	value, v, err := p.reg.Read(p.ctx)
	switch {
	case errors.Is(err, ErrNotExist) && p.current == "":
		return nil
	case errors.Is(err, ErrNotExist):
		return unsafeStore("a read sees finished writes", "a value that had been written was not there")
	case err != nil && !errors.Is(err, ErrValueTooLarge):
		return cannotProbe("read", err)
	}
	return p.saw(value, v)
}

// saw judges what a read has returned, and takes its version as the newest.
func (p *probe) saw(value []byte, v Version) error {
	switch {
	case v == "":
		return unsafeStore("a value has a version", "a read returned a value with the version of an absent one")
	case p.refused[nonceOf(value)]:
		return unsafeStore("a write that conflicts does not happen", "a write was answered with a conflict, and was there later")
	case p.old[v]:
		return unsafeStore("a read sees finished writes", fmt.Sprintf("a read returned version %q, which was over", v))
	}
	p.supersede(v)
	return nil
}

func (p *probe) supersede(v Version) {
	if p.current != v && p.current != "" {
		p.old[p.current] = true
	}
	p.current = v
}

func nonceOf(value []byte) string {
	var v probeValue
	if json.Unmarshal(value, &v) != nil {
		return ""
	}
	return v.Probe
}

// read checks that the value is the one just written, with the version that
// the write returned.
func (p *probe) read(nonce string) error {
	value, v, err := p.reg.Read(p.ctx)
	switch {
	case errors.Is(err, ErrNotExist):
		return unsafeStore("a read sees finished writes", "a value that had just been written was not there")
	case errors.Is(err, ErrValueTooLarge):
		return errInterfered // what we write is small
	case err != nil:
		return cannotProbe("read", err)
	case nonceOf(value) == nonce && v != p.current && !p.old[v]:
		return unsafeStore("a write returns the version that it makes",
			fmt.Sprintf("the write returned version %q, a read of the same value %q", p.current, v))
	case nonceOf(value) != nonce && v == p.current:
		return unsafeStore("a read returns what was written", fmt.Sprintf("a read returned another value with version %q", v))
	}
	if err := p.saw(value, v); err != nil {
		return err
	}
	if nonceOf(value) != nonce {
		return errInterfered
	}
	return nil
}

// write makes a write that succeeds unless somebody interferes, and checks that
// its version is new.
func (p *probe) write(what string, value []byte, old Version) error {
	if err := p.space(); err != nil {
		return err
	}
	v, err := p.reg.Write(p.ctx, value, old)
	switch {
	case errors.Is(err, ErrConflict):
		return errInterfered
	case err != nil:
		return cannotProbe(what, err)
	case v == "":
		return unsafeStore("a write returns its version", what+" returned the version of an absent value")
	case v == p.current || p.old[v]:
		return unsafeStore("a version never repeats", fmt.Sprintf("%s returned version %q again", what, v))
	}
	p.supersede(v)
	return nil
}

// mustConflict makes a write with a version that is over. No write of others
// makes that version right again, so success is the store's fault.
func (p *probe) mustConflict(check string, old Version) error {
	if err := p.space(); err != nil {
		return err
	}
	value, nonce := p.value()
	v, err := p.reg.Write(p.ctx, value, old)
	switch {
	case err == nil:
		return unsafeStore(check, fmt.Sprintf("the write was answered with success and version %q", v))
	case !errors.Is(err, ErrConflict):
		return cannotProbe("a write that must conflict", err)
	}
	p.refused[nonce] = true
	return nil
}

// mustNotCreate writes a key that has never been, at a version. Only success
// says something: it may be a key that the caller has no right to.
func (p *probe) mustNotCreate() error {
	beside, ok := p.reg.(Siblinger)
	if !ok {
		return nil
	}
	if err := p.space(); err != nil {
		return err
	}
	value, _ := p.value()
	if _, err := beside.Sibling(".absent-"+strings.ToLower(crand.Text())).Write(p.ctx, value, p.current); err == nil {
		return unsafeStore("a write at a version creates no key", "a write at a version created a key that did not exist")
	}
	return nil
}

// space keeps the pause between two writes.
func (p *probe) space() error {
	if !p.wrote {
		p.wrote = true
		return nil
	}
	return p.sleep(p.pause)
}

func (p *probe) sleep(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-p.ctx.Done():
		return cannotProbe("wait", p.ctx.Err())
	}
}

func unsafeStore(check, detail string) error {
	return &UnsafeStoreError{Check: check, Detail: detail}
}

func cannotProbe(doing string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrCannotProbe, doing, err)
}

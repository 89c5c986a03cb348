// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"tenure.dev"
)

const (
	raceWriters = 20
	raceRounds  = 25
	// raceMisses is how many rounds may come to nothing in a row: somebody else
	// writes the key, or nobody's write is let through.
	raceMisses = 5
	// raceAdds is how often each writer adds one, at most.
	raceAdds = 5
)

// raceValue is what the writers write.
type raceValue struct {
	Probe string `json:"probe"` // of this write alone
	Count int    `json:"count"`
}

func newNonce() string { return rand.Text() }

func raceBody(nonce string, count int) []byte {
	b, err := json.Marshal(raceValue{nonce, count})
	if err != nil {
		panic(err) // a struct of a string and a number
	}
	return b
}

// A race has many writers at one key, half of them by another instance of the
// driver, since one instance may keep its own callers apart.
type race struct {
	regs  [2]tenure.Register
	pause time.Duration

	refused  map[string]bool // nonces of writes that were answered with a conflict
	rounds   int
	doubts   int // requests that were answered with another error
	lastErr  error
	increase int // updates made by adding
}

// raceFault is a promise that the store broke before our eyes.
type raceFault struct{ check, detail string }

func (f *raceFault) Error() string { return f.check + ": " + f.detail }

// writers has 20 writers write at once, each conditional on the same version,
// round after round, and then has them count together.
func (d *doctor) writers(ctx context.Context) outcome {
	a, b := d.beside()
	r := &race{regs: [2]tenure.Register{a, b}, pause: writeInterval(a), refused: make(map[string]bool)}
	err := r.run(ctx, d.timeout)
	var fault *raceFault
	switch {
	case errors.As(err, &fault):
		return found(tenure.FindingUnsafe, "use another store", "it failed the check %q: %s; it could have two leaders", fault.check, fault.detail)
	case err != nil:
		return unreached("writing from several writers at once", err)
	}
	text := fmt.Sprintf("%d at once: exactly one won in each of %d rounds", raceWriters, r.rounds)
	if r.increase > 0 {
		text += fmt.Sprintf("; of %d concurrent updates none was lost", r.increase)
	}
	if r.doubts > 0 {
		text += fmt.Sprintf("; %d requests failed, such as: %s", r.doubts, message(r.lastErr))
	}
	return found(tenure.FindingOK, "", "%s", text)
}

// run makes rounds for half of the time, and counts for a quarter; where few
// writes are allowed it makes rounds for nearly all of it.
func (r *race) run(ctx context.Context, d time.Duration) error {
	begin := time.Now()
	for i := range r.regs {
		if err := r.cross(ctx, r.regs[i], r.regs[1-i]); err != nil {
			return err
		}
	}
	share := d / 2
	if r.pause > 0 {
		share = d * 85 / 100
	}
	misses := 0
	for r.rounds < raceRounds && (r.rounds == 0 || time.Since(begin)+r.pause < share) {
		if err := pause(ctx, r.pause); err != nil {
			return err
		}
		won, err := r.round(ctx)
		if err != nil {
			return err
		}
		if won {
			misses = 0
			r.rounds++
		} else if misses++; misses >= raceMisses {
			return fmt.Errorf("in %d rounds nobody's write was let through, or somebody else wrote the key%w", misses, r.why())
		}
	}
	if r.pause > 0 {
		return nil // too few writes are allowed for more
	}
	return r.count(ctx, time.Now().Add(d/4))
}

// cross has one instance write what the other has just read, and must see. What
// fails, or was written by somebody else, says nothing.
func (r *race) cross(ctx context.Context, writer, reader tenure.Register) error {
	if err := pause(ctx, r.pause); err != nil {
		return err
	}
	_, base, err := reader.Read(ctx)
	if err != nil {
		r.failed(err)
		return ctx.Err()
	}
	if _, err = writer.Write(ctx, raceBody(newNonce(), 0), base); err != nil {
		r.failed(err)
		return ctx.Err()
	}
	if _, version, err := reader.Read(ctx); err == nil && version == base {
		return &raceFault{"a read sees finished writes", "a read returned the version that another instance of the driver had replaced"}
	}
	return nil
}

// why is the last error of a write, to go behind a message.
func (r *race) why() error {
	if r.lastErr == nil {
		return errors.New("")
	}
	return fmt.Errorf(": %w", r.lastErr)
}

// failed notes a request that failed without saying anything about the store.
func (r *race) failed(err error) {
	r.doubts++
	r.lastErr = err
}

// raceAttempt is one writer's write, and what it read after a refusal.
type raceAttempt struct {
	nonce   string
	version tenure.Version
	err     error
	seen    tenure.Version // read after a conflict
	seenErr error
}

// round has all write at once. It reports whether exactly one won and the store
// shows it; false without an error if nothing can be said.
func (r *race) round(ctx context.Context) (bool, error) {
	_, base, err := r.regs[0].Read(ctx)
	if orAbsent(err) != nil {
		r.failed(err)
		return false, ctx.Err()
	}
	attempts := r.all(func(i int, reg tenure.Register) raceAttempt {
		a := raceAttempt{nonce: newNonce()}
		if a.version, a.err = reg.Write(ctx, raceBody(a.nonce, 0), base); errors.Is(a.err, tenure.ErrConflict) {
			_, a.seen, a.seenErr = reg.Read(ctx)
		}
		return a
	})
	var winners []raceAttempt
	for _, a := range attempts {
		switch {
		case a.err == nil:
			winners = append(winners, a)
		case errors.Is(a.err, tenure.ErrConflict):
			r.refused[a.nonce] = true
			if a.seenErr == nil && a.seen == base {
				return false, &raceFault{"a conflict means that the version is over", "a read after a conflict returned the version that was refused"}
			}
		default:
			r.failed(a.err)
		}
	}
	if n := len(winners); n > 1 {
		return false, &raceFault{"of concurrent conditional writes one wins", fmt.Sprintf("%d of %d writes at one version succeeded, %d updates were lost", n, raceWriters, n-1)}
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return r.settled(ctx, base, winners)
}

// settled compares what the store shows after a round with who won.
func (r *race) settled(ctx context.Context, base tenure.Version, winners []raceAttempt) (bool, error) {
	won := false
	for _, reg := range r.regs {
		value, version, err := reg.Read(ctx)
		if err != nil {
			r.failed(err)
			return false, ctx.Err()
		}
		var v raceValue
		_ = json.Unmarshal(value, &v) // else it is somebody else's
		if won, err = r.shows(v, version, base, winners); err != nil {
			return false, err
		}
	}
	return won, nil
}

// shows judges what one instance shows after a round.
func (r *race) shows(v raceValue, version, base tenure.Version, winners []raceAttempt) (bool, error) {
	switch {
	case r.refused[v.Probe]:
		return false, &raceFault{"a write that conflicts does not happen", "a write was answered with a conflict, and was there later"}
	case len(winners) == 0:
		return false, nil
	case version == base:
		return false, &raceFault{"a read sees finished writes", "a read returned the version that a finished write had replaced"}
	case version == winners[0].version && v.Probe != winners[0].nonce:
		return false, &raceFault{"a read returns what was written", "a read returned another value with the version of the write that won"}
	case v.Probe == winners[0].nonce && version != winners[0].version:
		return false, &raceFault{"a write returns the version that it makes", "a read of the value that won returned another version"}
	}
	return v.Probe == winners[0].nonce, nil
}

// count has all add to one counter, until a time: what succeeded must be there.
func (r *race) count(ctx context.Context, until time.Time) error {
	start, err := r.counter(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	done, doubts, foreign := 0, 0, false
	versions := make(map[tenure.Version]bool)
	repeated := false
	r.all(func(i int, reg tenure.Register) raceAttempt {
		for added := 0; added < raceAdds && time.Now().Before(until) && ctx.Err() == nil; {
			value, version, err := reg.Read(ctx)
			var v raceValue
			if err != nil || json.Unmarshal(value, &v) != nil || v.Probe == "" {
				mu.Lock()
				foreign = foreign || err == nil
				mu.Unlock()
				return raceAttempt{}
			}
			version, err = reg.Write(ctx, raceBody(newNonce(), v.Count+1), version)
			mu.Lock()
			switch {
			case err == nil:
				repeated = repeated || versions[version]
				versions[version] = true
				done++
				added++
			case !errors.Is(err, tenure.ErrConflict):
				doubts++
				r.lastErr = err
				added++
			}
			mu.Unlock()
		}
		return raceAttempt{}
	})
	r.doubts += doubts
	if repeated {
		return &raceFault{"a write returns the version that it makes", "two writes returned the same version"}
	}
	end, err := r.counter(ctx)
	if err != nil || foreign {
		return err // somebody else wrote: nothing can be said
	}
	if got := end - start; got < done || got > done+doubts {
		return &raceFault{"no update is lost", fmt.Sprintf("%d updates succeeded, the counter grew by %d", done, got)}
	}
	r.increase = done
	return nil
}

func (r *race) counter(ctx context.Context) (int, error) {
	value, _, err := r.regs[0].Read(ctx)
	var v raceValue
	if err == nil {
		_ = json.Unmarshal(value, &v)
	}
	return v.Count, err
}

// all runs f in every writer at once.
func (r *race) all(f func(i int, reg tenure.Register) raceAttempt) []raceAttempt {
	out := make([]raceAttempt, raceWriters)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() {
			<-start
			out[i] = f(i, r.regs[i%2])
		})
	}
	close(start)
	wg.Wait()
	return out
}

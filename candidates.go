// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// candidatesPrefix is the suffix of the registers in which candidates make
// themselves known, one per host or cluster.
const candidatesPrefix = ".candidates/"

const (
	// announceEvery is how often an entry that says nothing new is written.
	announceEvery = time.Minute
	// announceRetry is how soon a failed announcement is tried again, and
	// something new announced: some stores allow one write a second.
	announceRetry = time.Second
	// entryFresh is how old a live candidate's entry may be, by any clock.
	entryFresh = 3 * time.Minute
)

// A Candidate is what a process that wants to lead says of itself, beside the
// lock.
type Candidate struct {
	// Identity is the holder's identity, ClusterUID what tells it from others
	// of that name.
	Identity   string `json:"identity"`
	ClusterUID string `json:"clusterUID"`
	// Candidate is the process.
	Candidate string `json:"candidate,omitempty"`
	// Host is the host or cluster under which it is listed.
	Host string `json:"host"`
	// State is its state when it wrote this, Ready whether it would contend.
	State State `json:"state"`
	Ready bool  `json:"ready"`
	// LeaseDurationSeconds is its D, MaxLeaseDurationSeconds what it believes
	// at most.
	LeaseDurationSeconds    int64 `json:"leaseDurationSeconds"`
	MaxLeaseDurationSeconds int64 `json:"maxLeaseDurationSeconds"`
	// Epoch is the highest that it has seen.
	Epoch int64 `json:"epoch"`
	// Time is its wall clock when it wrote this.
	Time time.Time `json:"time"`
}

// hostEntry is one register's content: the candidates of one host or cluster.
type hostEntry struct {
	Candidates []Candidate `json:"candidates"`
}

// Candidates lists the candidates that have made themselves known, also those
// that have died since; their Time tells. It makes one request to list and one
// per host, and blocks until all are answered or ctx ends. Entries that cannot
// be read are left out. Registers that cannot list have none.
func Candidates(ctx context.Context, reg Register) ([]Candidate, error) {
	lister, ok := reg.(Lister)
	siblings, ok2 := reg.(Siblinger)
	if !ok || !ok2 {
		return nil, nil
	}
	keys, err := lister.List(ctx, candidatesPrefix)
	if err != nil {
		return nil, fmt.Errorf("tenure: listing the candidates: %w", err)
	}
	var all []Candidate
	for _, key := range keys {
		value, _, err := siblings.Sibling(key).Read(ctx)
		if errors.Is(err, ErrNotExist) || errors.Is(err, ErrValueTooLarge) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("tenure: reading the candidates in %q: %w", key, err)
		}
		all = append(all, parseEntry(value).Candidates...)
	}
	return all, nil
}

func parseEntry(value []byte) hostEntry {
	var entry hostEntry
	if json.Unmarshal(value, &entry) != nil {
		return hostEntry{} // nothing is decided by an entry alone; the next one replaces it
	}
	return entry
}

// hostKey makes a host name safe as a key.
func hostKey(host string) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '-'
	}, host)
	return candidatesPrefix + "h." + safe
}

// announcer makes one candidate known, and tells the loop of the others. The
// loop owns it; only announce runs beside the loop.
type announcer struct {
	e     *Elector
	busy  bool
	knows bool
	next  time.Duration // when to announce again, on the monotonic clock
	last  time.Duration
	state State
	epoch int64
}

// proceed announces what is new, and every minute, at most once a second.
func (a *announcer) proceed(ctx context.Context, now time.Duration, status Status) {
	if a.busy {
		return
	}
	if status.State != a.state || status.Epoch != a.epoch {
		a.next = min(a.next, a.last+announceRetry)
	}
	if now < a.next {
		return
	}
	a.busy, a.last, a.state, a.epoch = true, now, status.State, status.Epoch
	go a.announce(ctx, status)
}

// announce writes this candidate's entry, then reads everybody's.
func (a *announcer) announce(ctx context.Context, status Status) {
	bounded, cancel := context.WithTimeout(ctx, a.e.set.d)
	defer cancel()
	ev := event{kind: evPeers}
	all, err := a.exchange(bounded, status)
	if ev.err = err; err == nil {
		ev.peers = a.compare(all)
	}
	a.e.send(ctx, ev)
}

// announced takes the outcome. A candidate that has never seen the others'
// settings does not contend; later failures change nothing.
func (a *announcer) announced(now time.Duration, ev *event) {
	a.busy = false
	if ev.err == nil {
		a.knows = true
		a.next = now + announceEvery
		return
	}
	a.next = now + announceRetry
	a.e.logger.Debug("announcing the candidate failed", "error", ev.err)
	if a.knows {
		*ev = event{kind: evTick}
		return
	}
	ev.peers.conflict = fmt.Errorf("tenure: the other candidates' settings are not known yet: %w", ev.err)
}

func (a *announcer) exchange(ctx context.Context, status Status) ([]Candidate, error) {
	if err := a.record(ctx, status); err != nil {
		return nil, err
	}
	return Candidates(ctx, a.e.opt.Register)
}

// withdraw takes this candidate's entry back when Run ends. If that fails, the
// entry grows old.
func (a *announcer) withdraw() {
	if !a.knows {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.e.set.timeout())
	defer cancel()
	if err := a.record(ctx, Status{State: StateEnded}); err != nil {
		a.e.logger.Debug("withdrawing the candidate failed", "error", err)
	}
}

// record writes this candidate's entry, or takes it out when it has ended.
func (a *announcer) record(ctx context.Context, status Status) error {
	reg := a.e.opt.Register.(Siblinger).Sibling(hostKey(a.e.opt.Host))
	const tries = 5
	for try := range tries {
		value, version, err := reg.Read(ctx)
		if err != nil && !errors.Is(err, ErrNotExist) && !errors.Is(err, ErrValueTooLarge) {
			return fmt.Errorf("tenure: reading the candidates of %q: %w", a.e.opt.Host, err)
		}
		entry := a.merge(parseEntry(value), status)
		out, err := json.Marshal(entry)
		if err != nil {
			return fmt.Errorf("tenure: writing the candidates of %q: %w", a.e.opt.Host, err)
		}
		if _, err = reg.Write(ctx, append(out, '\n'), version); err == nil {
			return nil
		}
		if !errors.Is(err, ErrConflict) || try == tries-1 {
			return fmt.Errorf("tenure: writing the candidates of %q: %w", a.e.opt.Host, err)
		}
	}
	return nil // not reached
}

// merge puts this candidate into its host's entry and drops those that have
// not been heard of for long, by the host's own clock.
func (a *announcer) merge(entry hostEntry, status Status) hostEntry {
	e := a.e
	_, wall := e.clock.Quick()
	now := time.Unix(0, wall).UTC()
	mine := Candidate{
		Identity: e.set.identity, Candidate: e.set.candidate, ClusterUID: e.set.clusterUID, Host: e.opt.Host,
		State: status.State, Ready: status.Refused == nil,
		LeaseDurationSeconds:    int64(status.Durations.LeaseDuration / time.Second),
		MaxLeaseDurationSeconds: int64(e.set.maxD / time.Second),
		Epoch:                   status.Epoch, Time: now,
	}
	kept := []Candidate{mine}
	if status.State == StateEnded {
		kept = kept[:0]
	}
	for _, c := range entry.Candidates {
		if (c.Identity != mine.Identity || c.ClusterUID != mine.ClusterUID) && now.Sub(c.Time).Abs() < entryFresh && len(kept) < 100 {
			kept = append(kept, c)
		}
	}
	return hostEntry{Candidates: kept}
}

// compare finds what the others' entries mean for this candidate.
func (a *announcer) compare(all []Candidate) peers {
	e := a.e
	_, wall := e.clock.Quick()
	now := time.Unix(0, wall)
	var p peers
	for _, c := range all {
		if c.Identity == e.set.identity && c.ClusterUID == e.set.clusterUID {
			continue
		}
		if c.LeaseDurationSeconds > 0 && c.LeaseDurationSeconds <= maxLeaseSeconds {
			p.longest = max(p.longest, time.Duration(c.LeaseDurationSeconds)*time.Second)
		}
		if c.Epoch < MaxPlausibleEpoch/2 { // what anybody may write there must not use the epochs up
			p.epoch = max(p.epoch, c.Epoch)
		}
		p.newest = max(p.newest, c.Time.UnixNano())
		if c.Live(now) && c.MaxLeaseDurationSeconds != int64(e.set.maxD/time.Second) {
			p.conflict = fmt.Errorf("%w: %q believes lease durations up to %ds (maxttl), this candidate up to %v; give all the same",
				ErrSettingsDiffer, c.Identity, c.MaxLeaseDurationSeconds, e.set.maxD)
		}
	}
	return p
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"

	"tenure.dev/internal/clock"
)

// Defaults of [Options]. The other durations follow the lease duration:
// R = 0.65 D, P = 0.2 D, the largest believed duration max(60 s, D).
const (
	DefaultLeaseDuration = 10 * time.Second
	DefaultDrift         = 0.01
	DefaultDrain         = 30 * time.Second
)

// margin is taken from the end of each term and added to each wait: for what
// lies between reading a clock and acting.
const margin = 50 * time.Millisecond

// Options configure an [Elector]. Only Register is required.
type Options struct {
	// Register is the lock.
	Register Register
	// Lock names the lock in messages. It must not contain secrets.
	Lock string

	// Identity is the holder's identity, unique among the candidates; default
	// the host name and 8 random characters.
	Identity string
	// Candidate names this process where several share an identity; default
	// Identity.
	Candidate string
	// ClusterUID tells holders apart that were given the same identity by
	// mistake; default a random one for this process.
	ClusterUID string
	// Host is the name under which this candidate makes itself known beside
	// the lock; default the host name.
	Host string

	// LeaseDuration D is how long the lock lasts without a renewal: whole
	// seconds, at least 2.
	LeaseDuration time.Duration
	// RenewDeadline R is how long after the sending of the last successful
	// renewal the work goes on.
	RenewDeadline time.Duration
	// Period P is how often the leader renews and a standby polls.
	Period time.Duration
	// MaxLeaseDuration caps what is believed of a record's lease duration. It
	// must be the same for all candidates of a lock.
	MaxLeaseDuration time.Duration
	// Drift ρ is how far the rate of a machine's clock may be from true time,
	// as a fraction from 0 to 0.1; 0 is the default, 1 %.
	Drift float64
	// Drain is how long the term goes on being renewed, at most, after an
	// order or the end of Run's context, while the work ends.
	Drain time.Duration

	// Endpoint and CABundle are published in the record while leading.
	Endpoint string
	CABundle string

	// Takeover says how a candidate that has just started learns that the holder
	// is dead; default [TakeoverWait].
	Takeover Takeover

	// Seen is what was known of the lock before this process began.
	Seen Seen
	// Standing, when set, is asked by the elector's goroutine, before each
	// decision and with the record last read (nil if there is none that
	// parses), what this process may do. It must not block.
	Standing func(*Record) Standing
	// BeforeWrite, when set, is called before each conditional write to the
	// lock is sent, with the nonce that it carries, in a goroutine of its own. The
	// write is not sent unless it returns nil; its time counts as the write's.
	BeforeWrite func(ctx context.Context, nonce string) error

	// Once makes Run return a *LostError, or an error that wraps
	// ErrRenewDeadline, when a term ends early, instead of contending again.
	Once bool

	// Logger receives one line per transition, and failures; default none.
	Logger *slog.Logger
	// Observe, when set, is called with each [Event], in order, by the
	// elector's goroutine. It must not block.
	Observe func(Event)

	sub clock.Substitutes
}

func init() {
	clock.Substitute = func(options any, s clock.Substitutes) { options.(*Options).sub = s }
}

// settings are checked options, as the state machine uses them.
type settings struct {
	identity   string
	candidate  string
	clusterUID string
	durations
	maxD     time.Duration
	drift    float64
	stock    bool
	drain    time.Duration
	endpoint string
	caBundle string
	once     bool
	// replicas: Standing is asked.
	replicas bool
	// storeClock: a lock that the store says is long dead need not be waited for.
	storeClock bool
	// hasClock, hasPeers: the register is a Clock; a Siblinger and a Lister.
	hasClock bool
	hasPeers bool
}

// durations are those that can change from term to term.
type durations struct {
	d, r, p time.Duration
}

// timeout bounds each request, so that three attempts fit into R.
func (d durations) timeout() time.Duration { return d.r / 3 }

// valid is how long a term lasts from the sending of its last renewal.
func (s *settings) valid(d time.Duration) time.Duration {
	if mutated(driftIgnored) {
		return d - margin
	}
	drift := s.drift
	if s.stock {
		drift *= 2
	}
	return d - time.Duration(float64(d)*drift) - margin
}

// wait is how long a standby watches an unchanged record before it takes over.
func (s *settings) wait(d time.Duration) time.Duration {
	if mutated(driftIgnored) {
		return d + margin
	}
	return d + time.Duration(float64(d)*s.drift) + margin
}

// longWait is the wait for what does not say how long it may still be held by
// our rules: a stranger's record, a stopper, an unreadable one.
func (s *settings) longWait(d time.Duration) time.Duration { return d + d/2 + margin }

// fill sets the defaults.
func (o *Options) fill() error {
	host, err := os.Hostname()
	if err != nil && (o.Identity == "" || o.Host == "") {
		return fmt.Errorf("tenure: no host name to make an identity from (set Options.Identity and Options.Host): %w", err)
	}
	if o.Identity == "" {
		o.Identity = host + "-" + strings.ToLower(rand.Text()[:8])
	}
	o.Candidate = either(o.Candidate, o.Identity)
	o.ClusterUID = either(o.ClusterUID, strings.ToLower(rand.Text()))
	o.Host = either(o.Host, host)
	o.Lock = either(o.Lock, "the lock")
	o.LeaseDuration = either(o.LeaseDuration, DefaultLeaseDuration)
	o.RenewDeadline = either(o.RenewDeadline, o.LeaseDuration*65/100)
	o.Period = either(o.Period, o.LeaseDuration/5)
	o.MaxLeaseDuration = either(o.MaxLeaseDuration, max(time.Minute, o.LeaseDuration))
	o.Drift = either(o.Drift, DefaultDrift)
	o.Drain = either(o.Drain, DefaultDrain)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observe == nil {
		o.Observe = func(Event) {}
	}
	if o.sub.Clock == nil {
		o.sub.Clock = clock.System()
	}
	return nil
}

func either[T comparable](a, b T) T {
	var zero T
	if a != zero {
		return a
	}
	return b
}

// check returns the settings that the options stand for, or an error that
// names every field that does not fit, with the arithmetic.
func (o *Options) check() (settings, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("tenure: Options."+format, args...))
	}
	if o.Register == nil {
		bad("Register is required")
	}
	if why := badIdentity(o.Identity); why != "" {
		bad("Identity %q %s", o.Identity, why)
	}
	if why := badIdentity(o.Candidate); why != "" {
		bad("Candidate %q %s", o.Candidate, why)
	}
	if n := len(o.Endpoint) + len(o.CABundle); n > MaxRecordSize/2 {
		bad("Endpoint and CABundle have %d bytes together, more than the %d that leave room in a record", n, MaxRecordSize/2)
	}
	if o.Drift < 0 || o.Drift > 0.1 {
		bad("Drift is %v; a fraction from 0 to 0.1 is needed", o.Drift)
	}
	if o.Drain < 0 {
		bad("Drain is %v; it cannot be negative", o.Drain)
	}
	s := settings{
		identity: o.Identity, candidate: o.Candidate, clusterUID: o.ClusterUID,
		durations: durations{o.LeaseDuration, o.RenewDeadline, o.Period},
		maxD:      o.MaxLeaseDuration, drift: o.Drift, drain: o.Drain,
		endpoint: o.Endpoint, caBundle: o.CABundle, once: o.Once, replicas: o.Standing != nil,
	}
	if o.Seen.Epoch < 0 || o.Seen.Epoch > MaxPlausibleEpoch {
		bad("Seen.Epoch is %d; it must be from 0 to 2^53", o.Seen.Epoch)
	}
	if m, ok := o.Register.(StockElectors); ok {
		s.stock = m.StockElectors()
	}
	switch _, dates := o.Register.(Dater); {
	case o.Takeover == "" || o.Takeover == TakeoverWait:
	case o.Takeover != TakeoverStoreClock:
		bad("Takeover (takeover) is %q; it must be %q or %q", o.Takeover, TakeoverWait, TakeoverStoreClock)
	case !dates:
		bad("Takeover (takeover) is %q, and this store does not say when it was written; leave it out", o.Takeover)
	default:
		s.storeClock = true
	}
	_, s.hasClock = o.Register.(Clock)
	_, siblings := o.Register.(Siblinger)
	_, lists := o.Register.(Lister)
	s.hasPeers = siblings && lists
	errs = append(errs, s.fit(s.durations))
	return s, errors.Join(errs...)
}

// fit checks D, R and P against each other.
func (s *settings) fit(d durations) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("tenure: "+format, args...))
	}
	if d.d < 2*time.Second || d.d%time.Second != 0 {
		bad("the lease duration D (ttl) is %v; whole seconds are needed, at least 2s", d.d)
	}
	if d.d > s.maxD {
		bad("the lease duration D (ttl) is %v, above the %v that candidates believe (maxttl); lower ttl, or raise maxttl for every candidate", d.d, s.maxD)
	}
	if s.maxD > maxLeaseSeconds*time.Second {
		bad("the largest believed lease duration (maxttl) is %v; at most %v is possible", s.maxD, time.Duration(maxLeaseSeconds)*time.Second)
	}
	if d.r <= 0 || d.p <= 0 {
		bad("the renew deadline R (deadline) is %v and the period P (renew) is %v; both must be positive", d.r, d.p)
		return errors.Join(errs...)
	}
	valid, timeout := s.valid(d.d), d.timeout()
	if d.r+timeout > valid {
		bad("R + R/3 = %v + %v = %v is more than the %v for which a renewal counts (D(1-ρ) - %v = %v(1-%v) - %v): no time would be left to stop the work; lower deadline or raise ttl",
			d.r, timeout, d.r+timeout, valid, margin, d.d, s.drift, margin)
	}
	if d.p > d.r/3 {
		bad("P = %v is more than R/3 = %v, so three attempts to renew do not fit into the renew deadline; lower renew or raise deadline", d.p, d.r/3)
	}
	if d.p < 20*time.Millisecond {
		bad("P = %v is below 20ms", d.p)
	}
	return errors.Join(errs...)
}

// badIdentity returns what is wrong with an identity, or "".
func badIdentity(s string) string {
	switch {
	case s == "":
		return "is empty; each candidate needs one of its own"
	case len(s) > 253:
		return fmt.Sprintf("has %d bytes; at most 253 are allowed", len(s))
	case s == AnyHolder:
		return "means any holder and cannot be one"
	case strings.HasPrefix(s, stopperRelease), strings.HasPrefix(s, stopperCreate):
		return "begins like a stopper (" + stopperRelease + " or " + stopperCreate + "); choose another"
	case strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar }):
		return "contains a space or an unprintable character"
	}
	return ""
}

// Options returns options for the lock, with what its URL says about the
// election.
func (l *Lock) Options() Options {
	return Options{
		Register: l.Register, Lock: l.Name, Identity: l.Settings.Identity,
		LeaseDuration: l.Settings.LeaseDuration, RenewDeadline: l.Settings.RenewDeadline,
		Period: l.Settings.Period, MaxLeaseDuration: l.Settings.MaxLeaseDuration, Takeover: l.Settings.Takeover,
	}
}

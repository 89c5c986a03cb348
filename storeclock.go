// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import "time"

const (
	// longDeadAge and longDeadTimes D is how old a record must be, by the store's
	// clock, for its holder to be long dead.
	longDeadAge   = 5 * time.Minute
	longDeadTimes = 10
	// clocksAgree is how far the clocks that bear witness may be apart.
	clocksAgree = time.Minute
)

// judgeAge decides, from the first look at the lock, whether its holder is long
// dead. The age is the difference of two readings of the store's clock, so that
// of all clock errors only a step of that clock between them could mislead. Two
// others bear witness that there was none: when the record was written, the
// holder's, which is in it; now, our own. Nothing but a holder's sound record is
// judged: what other records mean is not known so well.
func (m *machine) judgeAge() {
	s := &m.sight
	if s.kind != held || s.rec.Stopper() || s.d > m.set.maxD || m.ev.written.IsZero() || m.ev.storeNow.IsZero() {
		return
	}
	age := m.ev.storeNow.Sub(m.ev.written)
	least := max(longDeadAge, longDeadTimes*max(s.d, min(m.longest, m.set.maxD)))
	if mutated(youngIsLongDead) {
		least = s.d / 10
	}
	agree := m.ev.written.Sub(s.rec.RenewTime).Abs() <= clocksAgree &&
		m.ev.storeNow.Sub(time.Unix(0, m.now.Wall)).Abs() <= clocksAgree
	if mutated(storeClockAlone) {
		agree = true
	}
	if age > least && agree {
		m.longDead = s.version
	}
}

// knownDead reports whether the record is still the one whose holder is long
// dead. Taking it is conditional on its version, like all takeovers.
func (m *machine) knownDead() bool {
	return m.longDead != "" && m.sight.kind == held && m.sight.version == m.longDead
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

// A mutation is a mistake that somebody could make in the election. Built with
// the tag mutant, one of them can be switched on, and the simulator must catch
// it; in every other build the constant below removes them.
type mutation uint8

const (
	noMutation mutation = iota
	deadlineFromAnswer
	driftIgnored
	waitFromReadStart
	expiryByRecordTimes
	absentAtOnce
	emptyObjectReleased
	durationShrunkInTerm
	epochRestarts
	lostAnswerIsLoss
	orderIsLoss
	waitResetByOrders
	identityShortensWait
	ownNonceAfterD
	nonceWithoutHolder
	stopperIsOrder
	lateAnswerBegins
	releaseBeforeDrain
	leadingFromRead
	absentWaitedOut
	youngIsLongDead
	storeClockAlone
	// seatAlone is a mistake in internal/replica: a sibling goes on with a term
	// although it has only seen it in the seat.
	seatAlone
)

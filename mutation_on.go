// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build mutant

package tenure

import (
	"maps"
	"os"
	"slices"
)

// mutationNames are the names by which the tests switch them on.
var mutationNames = map[string]mutation{
	"deadline-from-answer":    deadlineFromAnswer,
	"drift-ignored":           driftIgnored,
	"wait-from-read-start":    waitFromReadStart,
	"expiry-by-record-times":  expiryByRecordTimes,
	"absent-at-once":          absentAtOnce,
	"empty-object-released":   emptyObjectReleased,
	"duration-shrunk-in-term": durationShrunkInTerm,
	"epoch-restarts":          epochRestarts,
	"lost-answer-is-loss":     lostAnswerIsLoss,
	"order-is-loss":           orderIsLoss,
	"wait-reset-by-orders":    waitResetByOrders,
	"identity-shortens-wait":  identityShortensWait,
	"own-nonce-after-d":       ownNonceAfterD,
	"nonce-without-holder":    nonceWithoutHolder,
	"stopper-is-order":        stopperIsOrder,
	"late-answer-begins":      lateAnswerBegins,
	"release-before-drain":    releaseBeforeDrain,
	"leading-from-read":       leadingFromRead,
	"absent-waited-out":       absentWaitedOut,
	"young-is-long-dead":      youngIsLongDead,
	"store-clock-alone":       storeClockAlone,
	"seat-alone":              seatAlone,
}

// activeMutation begins with the one that the environment names, so that any test
// can be run against a mistake.
var activeMutation = mutationNames[os.Getenv("TENURE_MUTANT")]

func mutated(m mutation) bool { return activeMutation == m }

// Mutate switches the named mistake on, in this process, and reports whether
// there is one of that name; "" switches all off. It exists only in builds with
// the tag mutant. It is not safe while an elector runs.
func Mutate(name string) bool {
	m, ok := mutationNames[name]
	activeMutation = m
	return ok || name == ""
}

// Mutations returns the names of all mistakes, sorted.
func Mutations() []string { return slices.Sorted(maps.Keys(mutationNames)) }

// Mutated reports whether the named mistake is switched on, for packages beside
// this one.
func Mutated(name string) bool {
	return mutated(mutationNames[name]) && mutationNames[name] != noMutation
}

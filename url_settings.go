// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"tenure.dev/internal/nearest"
)

// Settings are the common parameters of a lock URL, as they were given: a zero
// field was not. Nothing is derived from another here, nor checked against it;
// the elector does that.
type Settings struct {
	// LeaseDuration is ttl, or timeout, its other name.
	LeaseDuration time.Duration
	// RenewDeadline is deadline.
	RenewDeadline time.Duration
	// Period is renew.
	Period time.Duration
	// MaxLeaseDuration is maxttl.
	MaxLeaseDuration time.Duration
	// Identity is identity, its templates filled in.
	Identity string
	// Namespace is namespace.
	Namespace string
	// Takeover is takeover.
	Takeover Takeover
}

// Takeover says how a candidate that has just started learns that a lock's
// holder is dead.
type Takeover string

const (
	// TakeoverWait watches the record for as long as the holder's term may last. It
	// is the default, and so is the empty string.
	TakeoverWait Takeover = "wait"
	// TakeoverStoreClock also takes a lock at once whose record the store itself
	// says was last written so long ago that no clock error explains it. It needs
	// a [Dater].
	TakeoverStoreClock Takeover = "storeclock"
)

var commonParams = []string{"deadline", "identity", "maxttl", "namespace", "renew", "takeover", "timeout", "ttl"}

func parseSettings(common map[string]string) (Settings, error) {
	var s Settings
	_, hasTTL := common["ttl"]
	_, hasTimeout := common["timeout"]
	if hasTTL && hasTimeout {
		return s, fmt.Errorf("the parameters \"ttl\" and \"timeout\" are two names of the lease duration: keep one")
	}
	for _, key := range slices.Sorted(maps.Keys(common)) {
		value := common[key]
		if value == "" {
			return s, fmt.Errorf("the parameter %q is empty: give it a value or leave it out", key)
		}
		var err error
		switch key {
		case "ttl", "timeout":
			s.LeaseDuration, err = parseDuration(key, value)
		case "deadline":
			s.RenewDeadline, err = parseDuration(key, value)
		case "renew":
			s.Period, err = parseDuration(key, value)
		case "maxttl":
			s.MaxLeaseDuration, err = parseDuration(key, value)
		case "identity":
			s.Identity = value
		case "namespace":
			s.Namespace = value
		case "takeover":
			s.Takeover, err = parseTakeover(value)
		}
		if err != nil {
			return Settings{}, err
		}
	}
	return s, nil
}

func parseTakeover(value string) (Takeover, error) {
	switch t := Takeover(value); t {
	case TakeoverWait, TakeoverStoreClock:
		return t, nil
	}
	return "", fmt.Errorf("the parameter \"takeover\" is neither %s nor %s: write one of them, or leave it out for %s",
		TakeoverWait, TakeoverStoreClock, TakeoverWait)
}

var numberForm = regexp.MustCompile(`^[0-9]{1,9}$`)

// parseDuration quotes the value only if it is a duration or a number: a
// mistyped URL may have anything there.
func parseDuration(key, value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	switch {
	case numberForm.MatchString(value) && strings.Trim(value, "0") != "":
		return 0, fmt.Errorf("the parameter %q is %s, without a unit: write %s=%ss for seconds", key, value, key, value)
	case err != nil:
		return 0, fmt.Errorf("the parameter %q is not a duration: write one such as %s=5s, 1m30s or 500ms", key, key)
	case d <= 0:
		return 0, fmt.Errorf("the parameter %q is %v: it must be longer than nothing, such as %s=5s", key, d, key)
	}
	return d, nil
}

// each calls add for every setting that was given, in a fixed order.
func (s Settings) each(add func(key, value string)) {
	for _, p := range []struct {
		key   string
		value time.Duration
	}{{"deadline", s.RenewDeadline}, {"maxttl", s.MaxLeaseDuration}, {"renew", s.Period}, {"ttl", s.LeaseDuration}} {
		if p.value != 0 {
			add(p.key, p.value.String())
		}
	}
	if s.Identity != "" {
		add("identity", s.Identity)
	}
	if s.Namespace != "" {
		add("namespace", s.Namespace)
	}
	if s.Takeover != "" {
		add("takeover", string(s.Takeover))
	}
}

// schemeImports are the packages that bring the drivers of this project.
var schemeImports = map[string]string{
	"azblob":   "tenure.dev/store/azblob",
	"etcd":     "tenure.dev/store/etcd",
	"file":     "tenure.dev/store/file",
	"gs":       "tenure.dev/store/gcs",
	"k8s":      "tenure.dev/kube",
	"mem":      "tenure.dev/store/mem",
	"postgres": "tenure.dev/store/postgres",
	"s3":       "tenure.dev/store/s3",
}

func findDriver(scheme string) (Driver, error) {
	d, ok, imported := lookupDriver(scheme)
	if ok {
		return d, nil
	}
	have := "no driver is imported"
	if len(imported) > 0 {
		have = "imported are: " + strings.Join(imported, ", ")
	}
	if pkg, ours := schemeImports[scheme]; ours {
		return Driver{}, fmt.Errorf("the driver for the scheme %q is not in this program: add import _ %q to it; %s", scheme, pkg, have)
	}
	var others []string
	for _, s := range slices.Sorted(maps.Keys(schemeImports)) {
		if !slices.Contains(imported, s) {
			others = append(others, fmt.Sprintf("%s (import _ %q)", s, schemeImports[s]))
		}
	}
	msg := fmt.Sprintf("the scheme %q is not known", scheme)
	if near := nearest.Word(scheme, append(slices.Collect(maps.Keys(schemeImports)), imported...)); near != "" {
		msg += fmt.Sprintf("; the nearest is %q", near)
	}
	msg += "; " + have
	if len(others) > 0 {
		msg += "; others need an import: " + strings.Join(others, ", ")
	}
	return Driver{}, fmt.Errorf("%s", msg)
}

func unknownParam(scheme, key string, known []string) error {
	list := strings.Join(known, ", ")
	if !paramForm.MatchString(key) {
		return fmt.Errorf("a parameter is not known, and does not look like one; for the scheme %q known are: %s", scheme, list)
	}
	hint := ""
	if near := nearest.Word(strings.ToLower(key), known); near != "" {
		hint = fmt.Sprintf("; the nearest is %q", near)
	}
	return fmt.Errorf("the parameter %q is not known%s; for the scheme %q known are: %s", key, hint, scheme, list)
}

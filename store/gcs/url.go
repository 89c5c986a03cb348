// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"tenure.dev"
	"tenure.dev/internal/rest"
)

// minWriteInterval is how often the service lets one object be written, if it
// goes on and on.
const minWriteInterval = time.Second

const (
	// maxObjectName is the service's limit in bytes; maxLockName leaves room for
	// the siblings' suffixes.
	maxObjectName = 1024
	maxLockName   = 768
)

// A place is where a lock is.
type place struct {
	bucket, object string
	// endpoint has a scheme and a host only.
	endpoint *url.URL
	// custom reports whether the URL names the endpoint.
	custom bool
	// anonymous: requests carry no credentials.
	anonymous bool
}

var defaultEndpoint = &url.URL{Scheme: "https", Host: "storage.googleapis.com"}

var bucketForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*[a-z0-9]$`)

func parsePlace(u *tenure.URL) (place, error) {
	p := place{bucket: u.Host, object: strings.TrimPrefix(u.Path, "/"), endpoint: defaultEndpoint}
	const form = "gs://bucket/path"
	switch {
	case p.bucket == "":
		return p, errors.New("it names no bucket: write " + form)
	case strings.ContainsAny(p.bucket, ":,"):
		return p, fmt.Errorf("%q is no bucket's name: it has neither port nor commas; a host belongs into endpoint=", p.bucket)
	case strings.HasSuffix(p.bucket, "googleapis.com"):
		return p, errors.New("where the bucket belongs there is the service's host: write " + form)
	case !bucketForm.MatchString(p.bucket) || len(p.bucket) < 3 || len(p.bucket) > 222:
		return p, fmt.Errorf("%q is no bucket's name: these have 3 to 63 lower-case letters, digits, '-', '_' and '.'", p.bucket)
	case p.object == "":
		return p, errors.New("it names no object: write " + form)
	case len(p.object) > maxLockName:
		return p, fmt.Errorf("the path has %d bytes; at most %d leave room for what is kept beside it: choose a shorter one", len(p.object), maxLockName)
	}
	if err := checkObjectName(p.object); err != nil {
		return p, fmt.Errorf("the path is no object's name: %w", err)
	}
	return p, p.parseParams(u.Params)
}

// checkObjectName refuses what the service, or something on the way there,
// would refuse or take for another name.
func checkObjectName(name string) error {
	switch {
	case len(name) > maxObjectName:
		return fmt.Errorf("it has %d bytes, at most %d are allowed", len(name), maxObjectName)
	case !utf8.ValidString(name):
		return errors.New("it is not UTF-8")
	case strings.HasPrefix(name, ".well-known/acme-challenge/"):
		return errors.New("the service keeps .well-known/acme-challenge/ to itself: choose another")
	}
	for s := range strings.SplitSeq(name, "/") {
		switch s {
		case "":
			return errors.New("it begins or ends with a slash, or has two in a row: remove one")
		case ".", "..":
			return fmt.Errorf("a part of it is %q, which programs on the way resolve: choose another", s)
		}
	}
	return nil
}

func (p *place) parseParams(params map[string]string) error {
	switch params["anonymous"] {
	case "true":
		p.anonymous = true
	case "", "false":
	default:
		return errors.New("the parameter \"anonymous\" is neither true nor false: write one of them, or leave it out for false")
	}
	raw, given := params["endpoint"]
	if !given {
		if p.anonymous {
			return errors.New("anonymous=true is for emulators and needs endpoint=: nobody may write a bucket of Cloud Storage without credentials," +
				" and nobody should")
		}
		return nil
	}
	const form = "endpoint=https://storage.example.com"
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("the parameter \"endpoint\" is no URL: write it as in " + form)
	case u.User != nil:
		return errors.New("the parameter \"endpoint\" holds credentials: remove them, they come from the environment")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("the parameter \"endpoint\" has more than scheme and host: write it as in " + form)
	}
	p.endpoint, p.custom = &url.URL{Scheme: u.Scheme, Host: u.Host}, true
	if u.Scheme == "http" && !p.anonymous && !rest.IsLoopback(u.Hostname()) {
		return fmt.Errorf("the parameter \"endpoint\": a token would go to %s in the clear: use https, or anonymous=true for an emulator", u.Host)
	}
	return nil
}

// checkPeriod refuses a period that the service would soon answer with 429. One
// that is not given follows from the lease duration.
func checkPeriod(s tenure.Settings) error {
	const limit = "Cloud Storage takes one write a second of an object"
	switch p := s.LeaseDuration / 5; {
	case s.Period >= minWriteInterval:
		return nil
	case s.Period != 0:
		return fmt.Errorf("the parameter \"renew\" is %v, but %s: write renew=1s or longer, or use another store", s.Period, limit)
	case s.LeaseDuration != 0 && p < minWriteInterval:
		return fmt.Errorf("the parameter \"ttl\" is %v, so P is %[1]v / 5 = %v, but %s: write ttl=%v or longer, or renew=1s as well",
			s.LeaseDuration, p, limit, 5*minWriteInterval)
	}
	return nil
}

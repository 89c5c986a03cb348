// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// ErrURL is wrapped by every error that says a lock URL is wrong: nothing has
// been opened or asked.
var ErrURL = errors.New("tenure: wrong lock URL")

// Vars are the values of the templates {namespace}, {name} and {cluster} in a
// lock URL. One that is empty may not be used by the URL.
type Vars struct {
	// Namespace and Name are those of the object or program that the lock is
	// for.
	Namespace, Name string
	// Cluster is the cluster identity. It may stand in the parameter identity
	// only: in any other place every cluster would get its own lock.
	Cluster string
}

// A URL is a lock URL after its templates are filled in and all of it has been
// checked, except what only the driver knows. It never holds credentials.
type URL struct {
	// Scheme names the driver.
	Scheme string
	// Host is what stands between "://" and the path: a host, a bucket, several
	// comma-separated host:port; empty if there is none.
	Host string
	// Path is the decoded path. It is empty or begins with a slash.
	Path string
	// Params are the decoded parameters that the driver has declared, each
	// given once. The common parameters are in Settings.
	Params map[string]string
	// Settings are the common parameters.
	Settings Settings
}

// A Driver opens the registers of one URL scheme.
type Driver struct {
	// Open returns the register that u names. It may look at local state and
	// make requests, bounded by ctx, but changes nothing. An error that the URL
	// itself causes should wrap [ErrURL].
	Open func(ctx context.Context, u *URL) (Register, error)
	// Params are the names of the driver's own parameters. Their values may be
	// printed: none may be a credential.
	Params []string
	// Price is what the store's requests cost, for those that have a list
	// price; the zero value means that requests cost nothing by themselves.
	Price Price
}

// A Lock is what a lock URL stands for.
type Lock struct {
	// Register is the lock's register.
	Register Register
	// Name is the URL as it may be printed, logged and passed on.
	Name string
	// Settings are what the URL says about the election.
	Settings Settings
	// Price is what the store's requests cost, as its driver knows it.
	Price Price
}

var (
	driversMu sync.RWMutex
	drivers   = map[string]Driver{}
)

// RegisterScheme makes a driver known under a URL scheme. Drivers call it from
// init, which is why importing them is all that a program has to do. It panics
// if the scheme is taken, or the driver has no Open or claims a common
// parameter. It is safe for concurrent use.
func RegisterScheme(name string, d Driver) {
	driversMu.Lock()
	defer driversMu.Unlock()
	switch _, taken := drivers[name]; {
	case taken:
		panic(fmt.Sprintf("tenure: RegisterScheme: the scheme %q is registered twice", name))
	case !schemeForm.MatchString(name):
		panic(fmt.Sprintf("tenure: RegisterScheme: %q is not a URL scheme", name))
	case d.Open == nil:
		panic(fmt.Sprintf("tenure: RegisterScheme: the driver for %q has no Open", name))
	}
	for _, p := range d.Params {
		if slices.Contains(commonParams, p) {
			panic(fmt.Sprintf("tenure: RegisterScheme: %q claims the common parameter %q", name, p))
		}
	}
	drivers[name] = d
}

func lookupDriver(scheme string) (d Driver, ok bool, imported []string) {
	driversMu.RLock()
	defer driversMu.RUnlock()
	d, ok = drivers[scheme]
	return d, ok, slices.Sorted(maps.Keys(drivers))
}

// Open parses a lock URL and opens its register. It blocks for as long as the
// driver does, at most until ctx ends. Errors about the URL wrap [ErrURL];
// others are the driver's.
func Open(ctx context.Context, raw string, vars Vars) (*Lock, error) {
	u, err := ParseURL(raw, vars)
	if err != nil {
		return nil, err
	}
	d, _, _ := lookupDriver(u.Scheme)
	reg, err := d.Open(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("open lock %v: %w", u, err)
	}
	return &Lock{Register: reg, Name: u.String(), Settings: u.Settings, Price: d.Price}, nil
}

var (
	schemeForm = regexp.MustCompile(`^[a-z][a-z0-9+.-]{0,31}$`)
	portForm   = regexp.MustCompile(`^(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:[0-9]{1,5})?$`)
	// A parameter is named in an error only if it looks like a name: a URL
	// that went wrong may have anything there.
	paramForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,39}$`)
)

// ParseURL checks a lock URL and fills in its templates. It does not block and
// is safe for concurrent use. Its errors wrap [ErrURL]; they quote no part of
// the URL that could be a credential.
func ParseURL(raw string, vars Vars) (*URL, error) {
	u, err := parseURL(raw, vars)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	return u, nil
}

func parseURL(raw string, vars Vars) (*URL, error) {
	scheme, rest, err := splitScheme(raw)
	if err != nil {
		return nil, err
	}
	d, err := findDriver(scheme)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(rest, "#") {
		return nil, fmt.Errorf("a %s URL has no fragment: remove '#' and what follows, or write %%23 if it belongs to a name", scheme)
	}
	u := &URL{Scheme: scheme, Params: map[string]string{}}
	beforeQuery, query, hasQuery := strings.Cut(rest, "?")
	host, path := beforeQuery, ""
	if i := strings.IndexByte(beforeQuery, '/'); i >= 0 {
		host, path = beforeQuery[:i], beforeQuery[i:]
	}
	if u.Host, err = parseHost(host, vars); err != nil {
		return nil, err
	}
	if path, err = vars.fill(path, "the path", url.PathEscape); err != nil {
		return nil, err
	}
	if u.Path, err = url.PathUnescape(path); err != nil {
		return nil, errors.New("the path has a wrong percent-encoding: write %25 for a percent sign")
	}
	if hasControl(u.Path) {
		return nil, errors.New("the path has control characters: remove them")
	}
	if !hasQuery {
		return u, nil
	}
	return u, u.parseQuery(query, d, vars)
}

// splitScheme returns the parts before and after "://". What it cannot be sure
// of it does not quote: a URL without scheme may be anything, passwords
// included.
func splitScheme(raw string) (scheme, rest string, err error) {
	switch {
	case strings.TrimSpace(raw) == "":
		return "", "", errors.New("it is empty: write one such as file:///var/lib/tenure/nightly.lock")
	case strings.Contains(raw, "@"):
		return "", "", errors.New("it contains '@': credentials do not belong in a lock URL, the driver takes them from its environment;" +
			" if the '@' is part of a name, write %40")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if ok && schemeForm.MatchString(strings.ToLower(scheme)) {
		return strings.ToLower(scheme), rest, nil
	}
	path := raw
	if i := strings.IndexAny(raw, "?#"); i >= 0 {
		path = raw[:i]
	}
	path = strings.TrimPrefix(path, "file:")
	if strings.HasPrefix(path, "/") && !hasControl(path) {
		return "", "", fmt.Errorf("it has no scheme: for a file, write file://%s", path)
	}
	return "", "", errors.New("it has no scheme: a lock URL is written scheme://…, such as file:///var/lib/tenure/nightly.lock")
}

func parseHost(host string, vars Vars) (string, error) {
	host, err := vars.fill(host, "the host", func(s string) string { return s })
	if err != nil || host == "" {
		return "", err
	}
	for _, r := range host {
		if r <= ' ' || r == 0x7f || strings.ContainsRune(`%\"<>|^?#`+"`", r) {
			return "", errors.New("the host has characters that no host or bucket has: is a slash missing?")
		}
	}
	for part := range strings.SplitSeq(host, ",") {
		if !portForm.MatchString(part) {
			return "", errors.New("the host is not host or host:port, or a list of these with commas: the port is a number")
		}
	}
	return host, nil
}

func (u *URL) parseQuery(query string, d Driver, vars Vars) error {
	known := slices.Sorted(slices.Values(append(slices.Clone(commonParams), d.Params...)))
	common := map[string]string{}
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		key, raw, hasValue := strings.Cut(pair, "=")
		if !slices.Contains(known, key) {
			return unknownParam(u.Scheme, key, known)
		}
		into := u.Params
		if slices.Contains(commonParams, key) {
			into = common
		}
		if _, twice := into[key]; twice {
			return fmt.Errorf("the parameter %q is given twice: keep one", key)
		}
		if !hasValue {
			return fmt.Errorf("the parameter %q has no value: write %s=…", key, key)
		}
		value, err := vars.fill(raw, key, url.QueryEscape)
		if err == nil {
			value, err = decodeValue(key, value)
		}
		if err != nil {
			return err
		}
		into[key] = value
	}
	var err error
	u.Settings, err = parseSettings(common)
	return err
}

func decodeValue(key, escaped string) (string, error) {
	value, err := url.QueryUnescape(escaped)
	if err != nil {
		return "", fmt.Errorf("the parameter %q has a wrong percent-encoding: write %%25 for a percent sign", key)
	}
	if hasControl(value) {
		return "", fmt.Errorf("the parameter %q has control characters: remove them", key)
	}
	if _, rest, ok := strings.Cut(value, "://"); ok && strings.Contains(rest, "@") {
		return "", fmt.Errorf("the parameter %q holds a URL with credentials: they do not belong in a lock URL,"+
			" the driver takes them from its environment", key)
	}
	return value, nil
}

// String returns the URL as it may be printed: it has only what the driver has
// declared and the common parameters, in a fixed order.
func (u *URL) String() string {
	var b strings.Builder
	b.WriteString(u.Scheme + "://" + u.Host)
	b.WriteString(strings.ReplaceAll((&url.URL{Path: u.Path}).EscapedPath(), "@", "%40"))
	sep := "?"
	add := func(k, v string) {
		b.WriteString(sep + k + "=" + url.QueryEscape(v))
		sep = "&"
	}
	for _, k := range slices.Sorted(maps.Keys(u.Params)) {
		add(k, u.Params[k])
	}
	u.Settings.each(add)
	return b.String()
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd })
}

var (
	templateForm = regexp.MustCompile(`\{[^{}]*\}`)
	// A value must not be able to become two path elements, "..", or a port.
	varForm = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`)
)

// fill replaces the templates in one raw component of a URL; where is its name
// or that of the parameter. Values go in escaped, so that none can grow into
// another component.
func (v Vars) fill(raw, where string, escape func(string) string) (string, error) {
	var first error
	filled := templateForm.ReplaceAllStringFunc(raw, func(t string) string {
		value, err := v.value(t, where)
		if err != nil && first == nil {
			first = err
		}
		return escape(value)
	})
	if first != nil {
		return "", first
	}
	if strings.ContainsAny(templateForm.ReplaceAllString(raw, ""), "{}") {
		return "", fmt.Errorf("%s has a brace without its partner: templates are {namespace}, {name} and {cluster}", place(where))
	}
	return filled, nil
}

func (v Vars) value(template, where string) (string, error) {
	var value, setting string
	switch template {
	case "{namespace}":
		value, setting = v.Namespace, "--namespace (Vars.Namespace)"
	case "{name}":
		value, setting = v.Name, "--name (Vars.Name)"
	case "{cluster}":
		if where != "identity" {
			return "", fmt.Errorf("{cluster} in %s: every cluster would get its own lock, and every one would lead;"+
				" {cluster} may stand in identity=… only", place(where))
		}
		value, setting = v.Cluster, "--cluster (Vars.Cluster)"
	default:
		name := "a template"
		if paramForm.MatchString(strings.Trim(template, "{}")) {
			name = template
		}
		return "", fmt.Errorf("%s in %s is not known; known are {namespace}, {name} and, in identity=… only, {cluster}", name, place(where))
	}
	switch {
	case value == "":
		return "", fmt.Errorf("%s in %s has no value: set %s, or write it out in the URL", template, place(where), setting)
	case hasControl(value) || template != "{cluster}" && !varForm.MatchString(value):
		return "", fmt.Errorf("the value of %s in %s is %s: there it could name something else; use letters, digits, '.', '-' and '_' in %s",
			template, place(where), strconv.Quote(value), setting)
	}
	return value, nil
}

func place(where string) string {
	if strings.HasPrefix(where, "the ") {
		return where
	}
	return fmt.Sprintf("the parameter %q", where)
}

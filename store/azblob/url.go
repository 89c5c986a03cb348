// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"

	"tenure.dev"
	"tenure.dev/internal/rest"
)

// A place is where a lock is.
type place struct {
	account, container, blob string
	// endpoint is the blob endpoint, without a slash at its end.
	endpoint *url.URL
}

var (
	accountForm   = regexp.MustCompile(`^[a-z0-9]{3,24}$`)
	containerForm = regexp.MustCompile(`^[a-z0-9](-?[a-z0-9])+$`)
)

func parsePlace(u *tenure.URL) (place, error) {
	p := place{account: u.Params["account"], container: u.Host, blob: strings.TrimPrefix(u.Path, "/")}
	const form = "azblob://container/path?account=name"
	switch {
	case p.container == "":
		return p, errors.New("it names no container: write " + form)
	case strings.Contains(p.container, ".blob."):
		return p, errors.New("where the container belongs there is an account's host: write " + form)
	case !containerForm.MatchString(p.container) || len(p.container) < 3 || len(p.container) > 63:
		return p, fmt.Errorf("%q is no container's name: these have 3 to 63 lower-case letters, digits and single hyphens between them", p.container)
	case p.blob == "":
		return p, errors.New("it names no blob: write " + form)
	}
	if err := checkBlobName(p.blob); err != nil {
		return p, fmt.Errorf("the path is no blob's name: %w", err)
	}
	if err := p.parseEndpoint(u.Params["endpoint"]); err != nil {
		return p, fmt.Errorf("the parameter \"endpoint\": %w", err)
	}
	switch {
	case p.account == "":
		return p, errors.New("it names no storage account: add account=name; the environment does not decide it," +
			" or two clusters could use two locks under one URL")
	case strings.HasSuffix(p.account, "-secondary") || strings.HasSuffix(strings.SplitN(p.endpoint.Hostname(), ".", 2)[0], "-secondary"):
		return p, errors.New("it names an account's secondary, which lags behind the primary and cannot be written: remove \"-secondary\"")
	case !accountForm.MatchString(p.account):
		return p, fmt.Errorf("the parameter \"account\": %q is no storage account's name: these have 3 to 24 lower-case letters and digits", p.account)
	}
	if p.endpoint.Host == "" {
		p.endpoint = &url.URL{Scheme: "https", Host: p.account + ".blob.core.windows.net"}
	}
	return p, nil
}

// checkBlobName refuses what Azure, or something on the way there, would take
// for another name.
func checkBlobName(name string) error {
	segments := strings.Split(name, "/")
	switch {
	case len(name) > 1024:
		return fmt.Errorf("it has %d bytes, at most 1024 are allowed", len(name))
	case len(segments) > 254:
		return fmt.Errorf("it has %d parts between slashes, at most 254 are allowed", len(segments))
	case strings.Contains(name, `\`):
		return errors.New(`it has a '\', which Azure turns into '/': use '/'`)
	}
	for _, s := range segments {
		switch {
		case s == "":
			return errors.New("it begins or ends with a slash, or has two in a row: remove one")
		case strings.HasSuffix(s, "."):
			return errors.New("no part of it may end with a dot: some clients drop it")
		}
	}
	return nil
}

// parseEndpoint sets the endpoint, which stays empty if raw is, and takes the
// account from it if that was not given.
func (p *place) parseEndpoint(raw string) error {
	p.endpoint = &url.URL{}
	if raw == "" {
		return nil
	}
	const form = "https://ACCOUNT.blob.core.windows.net or http://127.0.0.1:10000/ACCOUNT"
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("it is no URL of a blob endpoint: write it as in " + form)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("it has more than scheme, host and account: remove '?' or '#' and what follows;" +
			" a shared access signature belongs into AZURE_STORAGE_SAS_TOKEN")
	case u.User != nil:
		return errors.New("it holds credentials: remove them, they come from the environment")
	}
	inPath := strings.Trim(u.Path, "/")
	label, rest, _ := strings.Cut(u.Hostname(), ".")
	named := ""
	switch {
	case strings.Contains(inPath, "/"):
		return errors.New("its path is more than an account: the container belongs behind azblob://")
	case inPath != "":
		named = inPath
	case net.ParseIP(u.Hostname()) != nil || u.Hostname() == "localhost":
		inPath = p.account // a host that cannot stand for an account
	case strings.HasPrefix(rest, "blob.") || strings.Contains(rest, ".blob."):
		named = label
	}
	if p.account == "" {
		p.account = named
	}
	if named != "" && named != p.account && named != p.account+"-secondary" {
		return fmt.Errorf("it is that of the account %q, and account= says %q: which one?", named, p.account)
	}
	p.endpoint = &url.URL{Scheme: u.Scheme, Host: u.Host}
	if inPath != "" {
		p.endpoint.Path = "/" + inPath
	}
	return nil
}

// isLoopback reports whether requests to the endpoint stay on this machine.
func (p *place) isLoopback() bool {
	return rest.IsLoopback(p.endpoint.Hostname())
}

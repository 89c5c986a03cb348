// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"tenure.dev"
)

func init() {
	tenure.RegisterScheme("s3", tenure.Driver{
		Open:   open,
		Params: []string{"account", "cafile", "endpoint", "pathstyle", "profile", "region"},
		Price: tenure.Price{
			ReadsPer10k: 0.004, WritesPer10k: 0.05,
			Source: "Amazon S3 Standard, us-east-1, list price as of 2025-06",
		},
	})
}

// A place is what a lock URL says about where the record is.
type place struct {
	bucket, key string
	region      string
	endpoint    string
	pathStyle   string // "", "true" or "false"
	caFile      string
	profile     string
	account     string
}

var (
	bucketForm  = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	regionForm  = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	accountForm = regexp.MustCompile(`^[0-9]{12}$`)
)

// longestKey leaves room for the suffixes of siblings in the 1024 bytes that a
// key may have.
const longestKey = 800

func open(ctx context.Context, u *tenure.URL) (tenure.Register, error) {
	p, err := parsePlace(u)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", tenure.ErrURL, err)
	}
	s, err := newStore(ctx, p)
	if err != nil {
		return nil, err
	}
	return &Register{store: s, key: p.key}, nil
}

func parsePlace(u *tenure.URL) (*place, error) {
	p := &place{
		bucket: u.Host, key: strings.TrimPrefix(u.Path, "/"),
		region: u.Params["region"], endpoint: u.Params["endpoint"], pathStyle: u.Params["pathstyle"],
		caFile: u.Params["cafile"], profile: u.Params["profile"], account: u.Params["account"],
	}
	switch {
	case p.bucket == "":
		return nil, fmt.Errorf("there is no bucket: write s3://bucket/path")
	case strings.Contains(p.bucket, ":"):
		return nil, fmt.Errorf("%q is a bucket with a port: the server's address goes into endpoint=https://host:port", p.bucket)
	case !bucketForm.MatchString(p.bucket):
		return nil, fmt.Errorf("%q is not a bucket's name: that has 3 to 63 lower-case letters, digits, '-' and '.'", p.bucket)
	case p.region != "" && !regionForm.MatchString(p.region):
		return nil, fmt.Errorf("region=%q is not a region's name, such as eu-west-1", p.region)
	case !slices.Contains([]string{"", "true", "false"}, p.pathStyle):
		return nil, fmt.Errorf("pathstyle=%q: write true or false", p.pathStyle)
	case p.account != "" && !accountForm.MatchString(p.account):
		return nil, fmt.Errorf("account=%q is not an AWS account, which has 12 digits", p.account)
	}
	if err := checkKey(p.key); err != nil {
		return nil, err
	}
	return p, checkEndpoint(p.endpoint)
}

func checkKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("there is no path: write s3://bucket/path, such as s3://bucket/locks/nightly")
	case len(key) > longestKey:
		return fmt.Errorf("the path has %d bytes, at most %d leave room for the candidates' keys", len(key), longestKey)
	case !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("the path has characters that cannot be printed: remove them")
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." {
			return fmt.Errorf("the path has an empty element, '.' or '..', which servers read differently: remove it")
		}
	}
	return nil
}

func checkEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.User != nil:
		return fmt.Errorf("endpoint is not https://host or https://host:port (or http)")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("endpoint=%s://%s has more than a host: the bucket goes into s3://bucket/path", u.Scheme, u.Host)
	}
	return nil
}

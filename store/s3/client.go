// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"tenure.dev"
	"tenure.dev/internal/rest"
)

// A store is a bucket and a client for it, shared by a lock's siblings.
type store struct {
	client   *s3.Client
	keys     *credentials
	bucket   string
	owner    *string // the account that must own the bucket, nil for any
	region   string
	endpoint string // empty for Amazon's own
}

func newStore(ctx context.Context, p *place) (*store, error) {
	build := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.TLSHandshakeTimeout = 5 * time.Second
		t.IdleConnTimeout = 30 * time.Second
		t.MaxIdleConnsPerHost = 16
		// One request on a connection: a dead one costs one request, not all.
		t.ForceAttemptHTTP2 = false
		t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	})
	load := func(ctx context.Context) (aws.Config, error) {
		options := []func(*config.LoadOptions) error{config.WithHTTPClient(build), config.WithAppID("tenure")}
		if p.region != "" {
			options = append(options, config.WithRegion(p.region))
		}
		if p.profile != "" {
			options = append(options, config.WithSharedConfigProfile(p.profile))
		}
		return config.LoadDefaultConfig(ctx, options...)
	}
	cfg, err := load(ctx)
	if err != nil {
		return nil, fmt.Errorf("s3: the AWS configuration cannot be read: look at AWS_* variables and ~/.aws/config: %w", err)
	}
	s := &store{bucket: p.bucket, region: cfg.Region, endpoint: p.endpoint, keys: newCredentials(cfg.Credentials, load)}
	if p.account != "" {
		s.owner = &p.account
	}
	switch {
	case s.region != "":
	case s.endpoint != "":
		s.region = "us-east-1" // what servers that have no regions go by
	default:
		return nil, fmt.Errorf("%w: s3: no region: add region=…, or set AWS_REGION, to where the bucket is", tenure.ErrURL)
	}
	httpClient, err := newHTTPClient(cfg.HTTPClient, p.caFile)
	if err != nil {
		return nil, err
	}
	s.client = s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.Region, o.Credentials, o.HTTPClient = s.region, s.keys.cache, httpClient
		o.HTTPSignerV4 = s.keys
		o.Retryer = aws.NopRetryer{} // a write that is sent twice can conflict with itself
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.UsePathStyle = p.pathStyle == "true" || p.pathStyle == "" && s.endpoint != ""
		if p.endpoint != "" {
			o.BaseEndpoint = &p.endpoint
		}
	})
	// The URL alone says which store it is: with the environment's word for it,
	// two candidates could have two locks.
	if other := s.client.Options().BaseEndpoint; other != nil && p.endpoint == "" {
		return nil, fmt.Errorf("%w: s3: the environment (AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3 or the profile) sets an endpoint:"+
			" write endpoint=https://host into the URL, so that all candidates ask the same store", tenure.ErrURL)
	}
	return s, nil
}

// newHTTPClient returns a client with the transport of from, which also trusts
// the authorities in caFile.
func newHTTPClient(from aws.HTTPClient, caFile string) (*httpClient, error) {
	t := &http.Transport{}
	if b, ok := from.(interface{ GetTransport() *http.Transport }); ok {
		t = b.GetTransport()
	}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("s3: cafile: %w: name a file with PEM certificates", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: s3: cafile=%s holds no PEM certificate", tenure.ErrURL, caFile)
		}
		if t.TLSClientConfig == nil {
			t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return &httpClient{transport: t, client: &http.Client{
		Transport: t,
		// A redirect would make a second request, with a signature for another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// An httpClient looks at answers before the SDK does: whether they are the
// store's at all.
type httpClient struct {
	client    *http.Client
	transport *http.Transport
}

// Do sends a request, once.
func (c *httpClient) Do(req *http.Request) (*http.Response, error) {
	resp, err := c.client.Do(req)
	if err != nil {
		// The connections beside one that has died are most likely dead too.
		c.transport.CloseIdleConnections()
		return nil, rest.WithoutURL(err) // which may be a signed one
	}
	if err := inspectAnswer(req, resp); err != nil {
		resp.Body.Close()
		return nil, err
	}
	if resp.StatusCode >= 300 && !isStore(resp.Header) {
		resp.Header.Del("Date") // the SDK would sign by that clock from now on
	}
	return resp, nil
}

// longestError is how much of an error answer is looked at, in bytes.
const longestError = 16 << 10

// inspectAnswer returns a *foreignError for an answer that the store cannot
// have given, and adds to the header of an error what only its body says.
func inspectAnswer(req *http.Request, resp *http.Response) error {
	foreign := func(what string) error {
		return &foreignError{what: what, status: resp.StatusCode, header: resp.Header}
	}
	if age := resp.Header.Get("Age"); age != "" && age != "0" {
		return foreign("the answer of a cache")
	}
	html := strings.Contains(resp.Header.Get("Content-Type"), "html")
	if resp.StatusCode == http.StatusOK && (req.Method == http.MethodGet || req.Method == http.MethodHead) {
		if html && !isStore(resp.Header) {
			return foreign("a web page")
		}
		return nil
	}
	if req.Method == http.MethodHead || resp.StatusCode == http.StatusNotModified {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, longestError))
	if err != nil {
		return err
	}
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if len(bytes.TrimSpace(body)) == 0 {
		if s := resp.StatusCode; s == http.StatusNotFound || s == http.StatusPreconditionFailed {
			return foreign("nothing that says what is missing or refused") // the SDK would take the status for it
		}
		return nil
	}
	var e struct {
		XMLName          xml.Name
		Code, Region     string
		Endpoint, Bucket string
	}
	isError := xml.Unmarshal(body, &e) == nil && e.XMLName.Local == "Error" && e.Code != ""
	switch {
	case resp.StatusCode < 300 && isError:
		return foreign("success with the error " + e.Code)
	case resp.StatusCode < 300:
		return foreign("success with a page that no store sends")
	case !isError && html:
		return foreign("a web page")
	case !isError:
		return foreign("an error that is not in a store's form")
	}
	if e.Region != "" && resp.Header.Get(regionHeader) == "" {
		resp.Header.Set(regionHeader, e.Region)
	}
	return nil
}

const regionHeader = "X-Amz-Bucket-Region"

// isStore reports whether an answer has what S3 servers put into each.
func isStore(h http.Header) bool { return h.Get("X-Amz-Request-Id") != "" }

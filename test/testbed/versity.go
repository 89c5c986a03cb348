// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The root account of every Versity, and its region. They are no secrets.
const (
	VersityAccess = "tenuretest"
	VersitySecret = "tenuretestsecret"
	VersityRegion = "us-east-1"
)

// A Versity is an S3 server that keeps objects in a folder.
type Versity struct {
	*Process
	// URL is its address, "http://127.0.0.1:port".
	URL string
	// Env are the root account's credentials and the server's region, for a
	// process' environment.
	Env []string
}

// StartVersity starts an S3 server on a free loopback port, with its data and
// its log in dir, and waits until it answers. It has no bucket yet; buckets may
// have versions. Close ends it.
func StartVersity(dir string) (*Versity, error) {
	bin, err := Bin("versitygw")
	if err != nil {
		return nil, err
	}
	data, versions := filepath.Join(dir, "data"), filepath.Join(dir, "versions")
	for _, d := range []string{data, versions} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("testbed: start versitygw: %w", err)
		}
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	p, err := Start(Cmd{
		Path: bin, Dir: dir, Log: filepath.Join(dir, "versitygw.log"),
		Args: []string{"--port", addr, "--access", VersityAccess, "--secret", VersitySecret, "--region", VersityRegion,
			"--keep-alive", "--quiet", "--iam-dir", dir, "posix", "--versioning-dir", versions, data},
	})
	if err != nil {
		return nil, err
	}
	v := &Versity{Process: p, URL: "http://" + addr, Env: []string{
		"AWS_ACCESS_KEY_ID=" + VersityAccess, "AWS_SECRET_ACCESS_KEY=" + VersitySecret, "AWS_REGION=" + VersityRegion,
	}}
	if err := p.Ready(20*time.Second, v.ready); err != nil {
		p.Kill()
		return nil, err
	}
	return v, nil
}

// ready is a check that what listens is this server.
func (v *Versity) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := v.Do(ctx, http.MethodGet, "/", "", nil)
	return err
}

// Close ends it. It may be called again.
func (v *Versity) Close() { v.Kill() }

// Lock returns the lock URL of a key; extra are more parameters, such as
// "ttl=6s". Endpoint is the server's URL, or that of a proxy before it.
func (v *Versity) Lock(endpoint, bucket, key string, extra ...string) string {
	params := append([]string{"region=" + VersityRegion, "endpoint=" + endpoint}, extra...)
	return "s3://" + bucket + "/" + key + "?" + strings.Join(params, "&")
}

// MakeBucket makes a bucket. Names have three letters or more.
func (v *Versity) MakeBucket(ctx context.Context, bucket string) error {
	_, err := v.Do(ctx, http.MethodPut, "/"+bucket, "", nil)
	return err
}

// Put writes an object whatever is there, as somebody who knows nothing of
// Tenure would.
func (v *Versity) Put(ctx context.Context, bucket, key string, body []byte) error {
	_, err := v.Do(ctx, http.MethodPut, "/"+bucket+"/"+key, "", body)
	return err
}

// Get reads an object as it is in the bucket.
func (v *Versity) Get(ctx context.Context, bucket, key string) ([]byte, error) {
	return v.Do(ctx, http.MethodGet, "/"+bucket+"/"+key, "", nil)
}

// Delete deletes an object.
func (v *Versity) Delete(ctx context.Context, bucket, key string) error {
	_, err := v.Do(ctx, http.MethodDelete, "/"+bucket+"/"+key, "", nil)
	return err
}

// EnableVersioning has a bucket keep the old versions of its objects.
func (v *Versity) EnableVersioning(ctx context.Context, bucket string) error {
	_, err := v.Do(ctx, http.MethodPut, "/"+bucket, "versioning=", []byte(
		`<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>`))
	return err
}

// Do sends one request, signed by the root account, and returns the body of the
// answer. The path's elements need no escaping; the query is in its canonical
// form. An answer of 300 or more is an error.
func (v *Versity) Do(ctx context.Context, method, path, query string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, v.URL+path+"?"+query, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	sign(req, hash(body), time.Now().UTC())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("testbed: %s %s: %s: %s", method, path, resp.Status, answer)
	}
	return answer, err
}

// Resign signs a request anew, for a proxy that changed it: as the root account,
// for the host in its URL. The query must be in its canonical form.
func (v *Versity) Resign(req *http.Request) {
	req.Host = ""
	sign(req, req.Header.Get("X-Amz-Content-Sha256"), time.Now().UTC())
}

func hash(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// sign adds a signature of version 4 over the host, the hash of the body and the
// time.
func sign(req *http.Request, payload string, now time.Time) {
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	const headers = "host;x-amz-content-sha256;x-amz-date"
	stamp := now.Format("20060102T150405Z")
	scope := stamp[:8] + "/" + VersityRegion + "/s3/aws4_request"
	canonical := strings.Join([]string{
		req.Method, req.URL.EscapedPath(), req.URL.RawQuery,
		"host:" + req.URL.Host, "x-amz-content-sha256:" + payload, "x-amz-date:" + stamp, "",
		headers, payload,
	}, "\n")
	key := mac([]byte("AWS4"+VersitySecret), stamp[:8])
	for _, part := range []string{VersityRegion, "s3", "aws4_request"} {
		key = mac(key, part)
	}
	signature := mac(key, "AWS4-HMAC-SHA256\n"+stamp+"\n"+scope+"\n"+hash([]byte(canonical)))
	req.Header.Set("X-Amz-Content-Sha256", payload)
	req.Header.Set("X-Amz-Date", stamp)
	req.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%x",
		VersityAccess, scope, headers, signature))
}

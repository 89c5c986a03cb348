// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// credentials are what the SDK's chain finds. When the store refuses them the
// chain is walked again, so that a key that was rotated in a file is taken up
// without a restart.
type credentials struct {
	cache *aws.CredentialsCache
	load  func(context.Context) (aws.Config, error)

	mu      sync.Mutex
	current aws.CredentialsProvider // nil after they were refused
	signer  *v4.Signer              // remembers what it made of a secret, by the key's id alone
}

// errNoCredentials is wrapped by errors of the chain.
var errNoCredentials = errors.New("no valid credentials found")

func newCredentials(first aws.CredentialsProvider, load func(context.Context) (aws.Config, error)) *credentials {
	c := &credentials{current: first, load: load, signer: newSigner()}
	c.cache = aws.NewCredentialsCache(c)
	return c
}

// Retrieve is called by the cache.
func (c *credentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c.mu.Lock()
	current := c.current
	c.mu.Unlock()
	if current == nil {
		cfg, err := c.load(ctx)
		if err != nil {
			return aws.Credentials{}, fmt.Errorf("%w: %w", errNoCredentials, err)
		}
		current = cfg.Credentials
		c.mu.Lock()
		c.current = current
		c.mu.Unlock()
	}
	found, err := current.Retrieve(ctx)
	if err != nil {
		return found, fmt.Errorf("%w: %w", errNoCredentials, err)
	}
	return found, nil
}

// newSigner returns a signer that escapes a path once, as S3 wants it.
func newSigner() *v4.Signer {
	return v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
}

// SignHTTP is called by the client.
func (c *credentials) SignHTTP(ctx context.Context, keys aws.Credentials, r *http.Request, payload, service, region string, now time.Time, options ...func(*v4.SignerOptions)) error {
	c.mu.Lock()
	signer := c.signer
	c.mu.Unlock()
	return signer.SignHTTP(ctx, keys, r, payload, service, region, now, options...)
}

// refused has the next request look for credentials anew.
func (c *credentials) refused() {
	c.mu.Lock()
	c.current, c.signer = nil, newSigner()
	c.mu.Unlock()
	c.cache.Invalidate()
}

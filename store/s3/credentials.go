// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// credentials are what the SDK's chain finds. When the store refuses them the
// chain is walked again, so that a key that was rotated in a file is taken up
// without a restart.
type credentials struct {
	cache *aws.CredentialsCache
	load  func(context.Context) (aws.Config, error)

	mu      sync.Mutex
	current aws.CredentialsProvider // nil after they were refused
}

// errNoCredentials is wrapped by errors of the chain.
var errNoCredentials = errors.New("no valid credentials found")

func newCredentials(first aws.CredentialsProvider, load func(context.Context) (aws.Config, error)) *credentials {
	c := &credentials{current: first, load: load}
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

// refused has the next request look for credentials anew.
func (c *credentials) refused() {
	c.mu.Lock()
	c.current = nil
	c.mu.Unlock()
	c.cache.Invalidate()
}

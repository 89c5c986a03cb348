// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
)

const (
	// tokenScope is the audience of every storage account in every cloud.
	tokenScope = "https://storage.azure.com/.default"
	// tokenTimeout bounds the fetching of a token.
	tokenTimeout = 30 * time.Second
	// tokenEarly is how long before its end a token is fetched anew, if the
	// issuer does not say; tokenReserve how long before it is not used any more.
	tokenEarly   = 5 * time.Minute
	tokenReserve = 30 * time.Second
	// tokenAgain is how soon a failed fetch is tried again while there is still
	// a token that serves.
	tokenAgain = 10 * time.Second
)

// tokens signs requests with tokens of Microsoft Entra ID. Fetching one can take
// longer than a request may (a command line is started, an endpoint probed), so
// it goes on when the request that wanted it has ended, for tokenTimeout at
// most, and serves the next one.
type tokens struct {
	cred azcore.TokenCredential
	now  func() time.Time

	mu     sync.Mutex
	token  azcore.AccessToken
	fetch  *fetch
	failed time.Time
}

// A fetch is one that is under way; done is closed when it has ended.
type fetch struct {
	done  chan struct{}
	token azcore.AccessToken
	err   error
}

func newTokens(cred azcore.TokenCredential) *tokens {
	return &tokens{cred: cred, now: time.Now}
}

func (t *tokens) sign(ctx context.Context, r *http.Request) error {
	token, err := t.get(ctx)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	return nil
}

// get returns a token that serves. It waits for one only if there is none.
func (t *tokens) get(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	t.mu.Lock()
	now := t.now()
	serves := t.token.Token != "" && now.Before(t.token.ExpiresOn.Add(-tokenReserve))
	early := t.token.RefreshOn
	if early.IsZero() {
		early = t.token.ExpiresOn.Add(-tokenEarly)
	}
	if t.fetch == nil && (!serves || now.After(early) && now.Sub(t.failed) > tokenAgain) {
		t.fetch = &fetch{done: make(chan struct{})}
		go t.run(t.fetch)
	}
	token, f := t.token.Token, t.fetch
	t.mu.Unlock()
	if serves {
		return token, nil
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return "", fmt.Errorf("%w while the identity's token was being fetched: that goes on, and the next request may find it", ctx.Err())
	}
	if f.err != nil {
		return "", fmt.Errorf("no token for this identity: sign in (az login), or look at the workload or managed identity: %w", oneLine(f.err))
	}
	return f.token.Token, nil
}

func (t *tokens) run(f *fetch) {
	ctx, cancel := context.WithTimeout(context.Background(), tokenTimeout)
	defer cancel()
	f.token, f.err = t.cred.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{tokenScope}})
	if f.err == nil && f.token.Token == "" {
		f.err = errors.New("the token is empty")
	}
	t.mu.Lock()
	if f.err == nil {
		t.token = f.token
	} else {
		t.failed = t.now()
	}
	t.fetch = nil
	t.mu.Unlock()
	close(f.done)
}

// refused drops the token that the store did not accept, if it is still in use:
// the identity may have got another, or other rights.
func (t *tokens) refused(r *http.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Header.Get("Authorization") == "Bearer "+t.token.Token {
		t.token = azcore.AccessToken{}
	}
}

func (*tokens) rights(time.Time) rights { return rights{kind: "token"} }

// lineError is an error whose message is one line, for logs; what it wraps
// stays reachable.
type lineError struct {
	line string
	err  error
}

func (e *lineError) Error() string { return e.line }
func (e *lineError) Unwrap() error { return e.err }

// oneLine shortens the messages of azidentity, which are pages with answers of
// the issuer in them.
func oneLine(err error) error {
	const most = 600
	line := strings.Join(strings.Fields(err.Error()), " ")
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "…"
	}
	return &lineError{line, err}
}

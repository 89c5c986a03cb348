// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

const (
	envCredentials = "GOOGLE_APPLICATION_CREDENTIALS"
	// scope of the tokens: what the rights on the bucket allow, but no change of
	// its policy.
	scope = "https://www.googleapis.com/auth/devstorage.read_write"
	// tokenTimeout bounds each request of the fetching of a token.
	tokenTimeout = 15 * time.Second
	// tokenEarly is how long before its end a token is fetched anew; tokenReserve
	// how long before it is not used any more. The metadata server hands out a new
	// one for the last four minutes only.
	tokenEarly   = 3*time.Minute + 30*time.Second
	tokenReserve = 20 * time.Second
	// tokenAgain is how soon a failed fetch is tried again while there is still
	// a token that serves.
	tokenAgain = 10 * time.Second
)

// checkCredentialsFile finds out at once what would come out at the first
// request: whether the file that the environment names can be used.
func checkCredentialsFile() error {
	name := os.Getenv(envCredentials)
	if name == "" {
		return nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("%s names a file that cannot be read: correct it, or unset it to use the machine's own identity: %w", envCredentials, err)
	}
	var f struct{ Type string }
	if json.Unmarshal(b, &f) != nil || f.Type == "" { // not its error: it could quote a key
		return fmt.Errorf("%s names %s, which is no credentials file: these are JSON with a \"type\"; make it anew", envCredentials, name)
	}
	return nil
}

// tokens keeps the token that requests are made with. Fetching one can take
// longer than a request may (keys are exchanged, other clouds asked), so it goes
// on when the request that wanted it has ended, for some tokenTimeout at most,
// and serves the next one. Each fetch looks for the credentials anew, so that a
// file that was replaced needs no restart.
type tokens struct {
	source func() (*oauth2.Token, error)
	now    func() time.Time

	mu     sync.Mutex
	token  *oauth2.Token
	fetch  *fetch
	failed time.Time
}

// A fetch is one that is under way; done is closed when it has ended.
type fetch struct {
	done  chan struct{}
	token *oauth2.Token
	err   error
}

func newTokens(p place) *tokens {
	return &tokens{source: func() (*oauth2.Token, error) { return fetchToken(p) }, now: time.Now}
}

// fetchToken goes through the usual chain. The client's timeout ends it.
func fetchToken(p place) (*oauth2.Token, error) {
	if err := checkCredentialsFile(); err != nil {
		return nil, err
	}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Timeout: tokenTimeout})
	creds, err := google.FindDefaultCredentialsWithParams(ctx, google.CredentialsParams{
		Scopes: []string{scope}, EarlyTokenRefresh: tokenEarly,
	})
	if err != nil {
		return nil, err
	}
	if creds.JSON != nil && !p.custom { // without a file it would ask the metadata server
		domain, err := creds.GetUniverseDomain()
		if err != nil {
			return nil, err
		}
		if domain != "googleapis.com" {
			return nil, fmt.Errorf("the credentials are for the cloud %s, but the lock URL is in googleapis.com: add endpoint=https://storage.%[1]s", domain)
		}
	}
	return creds.TokenSource.Token()
}

// get returns a token that serves. It waits for one only if there is none, at
// most until ctx ends.
func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	now := t.now()
	serves := t.token != nil && (t.token.Expiry.IsZero() || now.Before(t.token.Expiry.Add(-tokenReserve)))
	due := !serves || !t.token.Expiry.IsZero() && now.After(t.token.Expiry.Add(-tokenEarly)) && now.Sub(t.failed) > tokenAgain
	if due && t.fetch == nil {
		t.fetch = &fetch{done: make(chan struct{})}
		go t.run(t.fetch)
	}
	token, f := t.token, t.fetch
	t.mu.Unlock()
	if serves {
		return token.AccessToken, nil
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return "", fmt.Errorf("%w while this identity's token was being fetched: that goes on, and the next request may find it", ctx.Err())
	}
	if f.err != nil {
		return "", explainToken(f.err, t.now())
	}
	return f.token.AccessToken, nil
}

func (t *tokens) run(f *fetch) {
	f.token, f.err = t.source()
	if f.err == nil && f.token.AccessToken == "" {
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

// refused drops the token that the store did not accept, if it is still in use.
func (t *tokens) refused(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != nil && t.token.AccessToken == token {
		t.token = nil
	}
}

// A tokenError says in one line why there is no token; what it wraps stays
// reachable, but is not printed whole: it may be a page.
type tokenError struct {
	line string
	err  error
}

// Error implements error.
func (e *tokenError) Error() string { return e.line }

// Unwrap returns the cause.
func (e *tokenError) Unwrap() error { return e.err }

func explainToken(err error, now time.Time) error {
	said := oneLine(withoutURL(err).Error())
	hint := "look at the credentials: " + envCredentials + ", gcloud auth application-default login, or the identity of this machine"
	var r *oauth2.RetrieveError
	if errors.As(err, &r) && r.Response != nil {
		said = fmt.Sprintf("%s says %d %s", r.Response.Request.URL.Host, r.Response.StatusCode, http.StatusText(r.Response.StatusCode))
		var m struct {
			Error       string
			Description string `json:"error_description"`
		}
		if json.Unmarshal(r.Body, &m) == nil && m.Error != "" {
			said += oneLine(fmt.Sprintf(", %s, %q", m.Error, m.Description))
		}
		if there, err := http.ParseTime(r.Response.Header.Get("Date")); err == nil {
			if h := clockHint(now, there); h != "" {
				hint = h
			}
		}
	}
	return &tokenError{"no token for this identity: " + hint + " (" + said + ")", err}
}

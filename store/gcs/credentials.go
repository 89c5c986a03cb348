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
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"tenure.dev/internal/rest"
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

// newTokens returns a keeper of tokens. Each fetch looks for the credentials anew, so
// that a file that was replaced needs no restart.
func newTokens(p place, now func() time.Time) *rest.Tokens {
	return rest.NewTokens(rest.TokenOptions{
		Fetch: func() (rest.Token, error) {
			t, err := fetchToken(p)
			switch {
			case err != nil:
				return rest.Token{}, err
			case t.Expiry.IsZero(): // it does not end
				never := now().AddDate(100, 0, 0)
				return rest.Token{Value: t.AccessToken, Early: never, Expires: never}, nil
			}
			return rest.Token{Value: t.AccessToken, Early: t.Expiry.Add(-tokenEarly), Expires: t.Expiry}, nil
		},
		Explain: func(err error) error { return explainToken(err, now()) },
		Reserve: tokenReserve, Again: tokenAgain, Now: now,
	})
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

func explainToken(err error, now time.Time) error {
	said := oneLine(rest.WithoutURL(err).Error())
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
	return rest.Said("no token for this identity: "+hint+" ("+said+")", err)
}

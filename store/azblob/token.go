// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"tenure.dev/internal/rest"
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

// tokens signs requests with tokens of Microsoft Entra ID.
type tokens struct{ *rest.Tokens }

func newTokens(cred azcore.TokenCredential) tokens {
	return tokens{rest.NewTokens(rest.TokenOptions{
		Fetch: func() (rest.Token, error) {
			ctx, cancel := context.WithTimeout(context.Background(), tokenTimeout)
			defer cancel()
			t, err := cred.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{tokenScope}})
			early := t.RefreshOn
			if early.IsZero() {
				early = t.ExpiresOn.Add(-tokenEarly)
			}
			return rest.Token{Value: t.Token, Early: early, Expires: t.ExpiresOn}, err
		},
		Explain: func(err error) error {
			return fmt.Errorf("no token for this identity: sign in (az login), or look at the workload or managed identity: %w", oneLine(err))
		},
		Reserve: tokenReserve, Again: tokenAgain, Now: time.Now,
	})}
}

func (t tokens) sign(ctx context.Context, r *http.Request) error {
	token, err := t.Get(ctx)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", bearer+token)
	return nil
}

const bearer = "Bearer "

func (t tokens) refused(r *http.Request) {
	t.Refused(strings.TrimPrefix(r.Header.Get("Authorization"), bearer))
}

func (tokens) rights(time.Time) rights { return rights{kind: "token"} }

// oneLine shortens the messages of azidentity, which are pages with answers of
// the issuer in them.
func oneLine(err error) error { return rest.Said(rest.OneLine(err.Error(), 600), err) }

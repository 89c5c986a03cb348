// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
)

// TestTokens follows one through its life: requests wait for the first, never
// for the others.
func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cred := &fakeCredential{give: func(_ context.Context, n int64) (azcore.AccessToken, error) {
			time.Sleep(10 * time.Second) // a command line that starts slowly
			if n == 3 {
				return azcore.AccessToken{}, errors.New("the issuer\n\n is down")
			}
			return azcore.AccessToken{Token: fmt.Sprint("token-", n), ExpiresOn: time.Now().Add(time.Hour)}, nil
		}}
		tokens := newTokens(cred)
		get := func(timeout time.Duration) (string, time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			start := time.Now()
			token, err := tokens.Get(ctx)
			return token, time.Since(start), err
		}
		want := func(token string, took time.Duration) {
			t.Helper()
			got, d, err := get(20 * time.Second)
			if err != nil || got != token || d != took {
				t.Errorf("token %q after %v, %v; want %q after %v", got, d, err, token, took)
			}
		}
		// The first request ends before there is a token, which the next one finds.
		if _, d, err := get(2 * time.Second); !errors.Is(err, context.DeadlineExceeded) || d != 2*time.Second {
			t.Errorf("after %v: %v, want DeadlineExceeded after 2 s", d, err)
		}
		want("token-1", 8*time.Second)
		want("token-1", 0)
		time.Sleep(56 * time.Minute) // less than 5 minutes are left
		want("token-1", 0)           // and it is fetched beside that
		time.Sleep(11 * time.Second)
		want("token-2", 0)
		time.Sleep(56 * time.Minute)
		want("token-2", 0) // this fetch fails
		time.Sleep(11 * time.Second)
		want("token-2", 0) // too soon to try again
		if n := cred.calls.Load(); n != 3 {
			t.Errorf("%d fetches, want 3", n)
		}
		time.Sleep(11 * time.Second)
		want("token-2", 0)
		time.Sleep(11 * time.Second)
		want("token-4", 0)

		tokens = newTokens(&fakeCredential{give: func(context.Context, int64) (azcore.AccessToken, error) {
			return azcore.AccessToken{}, errors.New(strings.Repeat("a page of text\n", 1000))
		}})
		_, _, err := get(time.Second)
		mustSay(t, err, "no token", "az login", "a page of text a page")
		if len(err.Error()) > 1000 {
			t.Errorf("the message has %d bytes", len(err.Error()))
		}
		// One that never answers is given up, and does not hold up the next.
		tokens = newTokens(&fakeCredential{give: func(ctx context.Context, n int64) (azcore.AccessToken, error) {
			if n == 1 {
				<-ctx.Done()
				return azcore.AccessToken{}, ctx.Err()
			}
			return azcore.AccessToken{Token: "late", ExpiresOn: time.Now().Add(time.Hour)}, nil
		}})
		if _, d, err := get(time.Hour); err == nil || d != tokenTimeout {
			t.Errorf("it hung for %v: %v", d, err)
		}
		want("late", 0)
	})
}

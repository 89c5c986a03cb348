// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
)

// A signer adds a credential to a request. None of its errors holds one.
type signer interface {
	// sign blocks for as long as it takes to get a token, at most until ctx
	// ends.
	sign(ctx context.Context, r *http.Request) error
	// refused is told that the store did not accept the credential of r.
	refused(r *http.Request)
	// rights says what kind of credential it is, for [Register.Inspect], now
	// being the time.
	rights(now time.Time) rights
}

const (
	envConnection = "AZURE_STORAGE_CONNECTION_STRING"
	envAccount    = "AZURE_STORAGE_ACCOUNT"
	envKey        = "AZURE_STORAGE_KEY"
	envSAS        = "AZURE_STORAGE_SAS_TOKEN"
)

// findSigner looks for credentials where the package's documentation says.
func findSigner(p place) (signer, error) {
	if s := os.Getenv(envConnection); s != "" {
		sign, err := fromConnectionString(p, s)
		if err != nil {
			return nil, fmt.Errorf("azblob: %s: %w", envConnection, err)
		}
		return sign, nil
	}
	for _, env := range []string{envKey, envSAS} {
		secret := strings.TrimSpace(os.Getenv(env))
		if secret == "" {
			continue
		}
		if account := os.Getenv(envAccount); account != "" && account != p.account {
			return nil, fmt.Errorf("azblob: %s belongs to the account %q, says %s, but the lock URL is in the account %q: set both for that one, or unset both",
				env, account, envAccount, p.account)
		}
		sign, err := fromSecret(p, env == envKey, secret)
		if err != nil {
			return nil, fmt.Errorf("azblob: %s: %w", env, err)
		}
		return sign, nil
	}
	if err := checkPrivate(p, "a token"); err != nil {
		return nil, fmt.Errorf("azblob: %s: %w", p.account, err)
	}
	cred, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, fmt.Errorf("azblob: no credentials for the account %s: set %s or sign in (az login, workload or managed identity): %w", p.account, envKey, oneLine(err))
	}
	return newTokens(cred), nil
}

func fromSecret(p place, isKey bool, secret string) (signer, error) {
	if !isKey {
		return newSAS(p, secret)
	}
	key, err := base64.StdEncoding.DecodeString(secret)
	if err != nil || len(key) == 0 {
		return nil, errors.New("it is no account key: copy it anew, the whole of it, it is base64 of 64 bytes")
	}
	return &sharedKey{account: p.account, key: key}, nil
}

// devAccount and devKey are the account of every emulator: published, no secret.
const (
	devAccount = "devstoreaccount1"
	devKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// fromConnectionString takes a credential, and nothing else, from a connection
// string: where the lock is says the URL.
func fromConnectionString(p place, s string) (signer, error) {
	parts := map[string]string{}
	for part := range strings.SplitSeq(s, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return nil, errors.New("it is no connection string: copy it anew, it is made of Name=value with semicolons between")
		}
		parts[strings.ToLower(key)] = value
	}
	if strings.EqualFold(parts["usedevelopmentstorage"], "true") {
		parts["accountname"], parts["accountkey"] = devAccount, devKey
	}
	if a := parts["accountname"]; a != "" && a != p.account {
		return nil, fmt.Errorf("it is that of the account %q, but the lock URL is in the account %q: set that one's, or unset it", a, p.account)
	}
	if err := sameEndpoint(p, parts); err != nil {
		return nil, err
	}
	switch {
	case parts["accountkey"] != "":
		return fromSecret(p, true, parts["accountkey"])
	case parts["sharedaccesssignature"] != "":
		return fromSecret(p, false, parts["sharedaccesssignature"])
	}
	return nil, errors.New("it has neither AccountKey nor SharedAccessSignature: copy it anew, the whole of it")
}

func sameEndpoint(p place, parts map[string]string) error {
	its := strings.TrimRight(parts["blobendpoint"], "/")
	if suffix := parts["endpointsuffix"]; its == "" && suffix != "" {
		its = "https://" + p.account + ".blob." + suffix
	}
	if its == "" || its == p.endpoint.String() {
		return nil
	}
	u, err := url.Parse(its)
	if err != nil || u.Host == "" {
		return errors.New("its BlobEndpoint is no URL: copy it anew")
	}
	// Not the whole of it: a broken one may hold anything.
	its = (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
	return fmt.Errorf("its blob endpoint is %s, that of the lock URL %v: the URL decides; add endpoint=%s there if that is the one", its, p.endpoint, its)
}

// checkPrivate refuses to send what others could use over a line that they can
// read.
func checkPrivate(p place, what string) error {
	if p.endpoint.Scheme == "https" || p.isLoopback() {
		return nil
	}
	return fmt.Errorf("%s would go to %v in the clear: use an https endpoint, or an account key, which only signs", what, p.endpoint)
}

// rights is what can be told of a credential without asking.
type rights struct {
	// kind is "key", "sas" or "token".
	kind string
	// permissions and ends are a shared access signature's.
	permissions string
	ends        time.Time
}

// A sas is a shared access signature: parameters that are added to each URL.
type sas struct {
	query  string
	values url.Values
}

func newSAS(p place, secret string) (*sas, error) {
	if err := checkPrivate(p, "a shared access signature"); err != nil {
		return nil, err
	}
	query := strings.TrimPrefix(secret, "?")
	values, err := url.ParseQuery(query)
	if err != nil || values.Get("sig") == "" {
		return nil, errors.New("it is no shared access signature: copy it anew, the whole of it, it begins with sv= or has it in it, and has no spaces")
	}
	return &sas{query, values}, nil
}

func (s *sas) sign(_ context.Context, r *http.Request) error {
	if r.URL.RawQuery != "" {
		r.URL.RawQuery += "&"
	}
	r.URL.RawQuery += s.query
	return nil
}

func (*sas) refused(*http.Request) {}

func (s *sas) rights(time.Time) rights {
	r := rights{kind: "sas", permissions: s.values.Get("sp")}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z", "2006-01-02"} {
		if t, err := time.Parse(layout, s.values.Get("se")); err == nil {
			r.ends = t
			break
		}
	}
	return r
}

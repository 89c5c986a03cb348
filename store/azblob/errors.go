// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tenure.dev/internal/rest"
)

// errNotTheStore is wrapped by errors about answers that Blob Storage does not
// give: of a proxy, a captive portal, another server.
var errNotTheStore = errors.New("the answer is not Azure Blob Storage's")

// An Error is an answer of the service that is no success.
type Error struct {
	// StatusCode is that of HTTP.
	StatusCode int
	// Code is the service's own, such as "ContainerNotFound"; it may be empty.
	Code string
	// RequestID is what the service's support asks for.
	RequestID string
	// Hint says what it means here, and what to do.
	Hint string
}

// Error implements error.
func (e *Error) Error() string {
	code := e.Code
	if code == "" {
		code = http.StatusText(e.StatusCode)
	}
	s := fmt.Sprintf("%d %s", e.StatusCode, code)
	if e.Hint != "" {
		s = e.Hint + " (" + s
	} else {
		s = "the store says " + s + " ("
	}
	if e.RequestID != "" {
		if e.Hint != "" {
			s += ", "
		}
		s += "request " + e.RequestID
	}
	return strings.TrimSuffix(s+")", " ()")
}

// allowedSkew is how far a clock may be off before it is blamed for a refusal.
// The service itself allows 15 minutes, issuers of tokens about 5.
const allowedSkew = 4 * time.Minute

// explain makes an error of an answer that is no success. Which one is what, the
// service says by its code; the status alone has several meanings.
func (s *store) explain(a *answer) error {
	e := &Error{StatusCode: a.status, Code: a.code, RequestID: a.header.Get("x-ms-request-id")}
	e.Hint = s.hint(a)
	if after := a.retryAfter(); after > 0 {
		return rest.Later(fmt.Errorf("%w; it asks to be left alone for %v", e, after), after)
	}
	return e
}

func (s *store) hint(a *answer) string {
	if a.status == http.StatusUnauthorized || a.status == http.StatusForbidden {
		return s.refusal(a)
	}
	if h := s.missing(a); h != "" {
		return h
	}
	switch a.code {
	case "ConditionNotMet":
		return "the record has another version, or is gone"
	case "BlobAlreadyExists":
		return "there is a record"
	case "LeaseIdMissing", "LeaseIdMismatchWithBlobOperation", "LeaseAlreadyPresent":
		return "somebody has taken an Azure lease on the blob itself, which refuses every write: Tenure takes none, so find out who did," +
			" then break it (az storage blob lease break)"
	case "BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold", "ContainerImmutableDueToPolicy", "UnauthorizedBlobOverwrite":
		return "an immutability policy or a legal hold forbids overwriting, and a lock is overwritten at every renewal: use a container without"
	case "InvalidBlobType":
		return "there is a page or append blob, and a lock is a block blob: choose another path, or delete it"
	case "BlobArchived", "BlobBeingRehydrated", "BlobAccessTierNotSupported":
		return "the record has been moved to the archive tier, where it can be neither read nor replaced: rehydrate it to the hot tier" +
			" (az storage blob set-tier), and take locks out of the lifecycle rules"
	case "BlobUsesCustomerSpecifiedEncryption":
		return "the record was written with a customer-provided key: choose another path, or delete it"
	case "AccountRequiresHttps":
		return "the account accepts https only: write the endpoint with https"
	case "InvalidHeaderValue", "InvalidQueryParameterValue", "UnsupportedHeader":
		return "the service does not know this request; an emulator or an appliance may be too old for version " + apiVersion + " of the interface"
	}
	switch {
	case a.status == http.StatusTooManyRequests || a.code == "ServerBusy":
		return "the account is throttled"
	case a.status >= 500:
		return "the store has failed; what was asked may have happened or not"
	case a.status == http.StatusNotModified:
		return "it says \"not modified\" and was not asked: a cache stands between"
	case a.status >= 300 && a.status < 400:
		return "the store redirects, which Blob Storage does not: look at the endpoint"
	case a.status < 300:
		return "the store accepted something else than was asked; look at what stands between, such as a proxy"
	}
	return ""
}

// missing explains what is not there.
func (s *store) missing(a *answer) string {
	switch a.code {
	case "BlobNotFound":
		return "there is no record"
	case "ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled":
		return fmt.Sprintf("the account %s has no container %s, or it is being deleted: create it (az storage container create"+
			" --account-name %[1]s --name %[2]s), or correct the URL", s.account, s.container)
	case "FilesystemNotFound":
		return fmt.Sprintf("the account %s has no container %s: create it, or correct the URL", s.account, s.container)
	case "ResourceNotFound", "AccountBeingCreated":
		return fmt.Sprintf("there is no account %s at %v: correct account= or endpoint=", s.account, s.endpoint)
	case "InvalidResourceName", "InvalidUri", "OutOfRangeInput":
		return "the store takes the container or the path for no valid name: correct the URL"
	case "AccountIsDisabled":
		return fmt.Sprintf("the account %s is disabled: enable it, or pay for it", s.account)
	}
	return ""
}

// refusal explains 401 and 403.
func (s *store) refusal(a *answer) string {
	verb := "read"
	if a.method == http.MethodPut {
		verb = "write"
	}
	if !a.date.IsZero() {
		if skew := a.got.Sub(a.date); skew.Abs() > allowedSkew {
			where := "ahead of"
			if skew < 0 {
				where = "behind"
			}
			return fmt.Sprintf("this machine's clock is %v %s the store's, so what it signs is refused: set the clock, and have it kept by NTP",
				skew.Abs().Round(time.Second), where)
		}
	}
	kind := s.rights(s.now())
	if kind.kind == "sas" && !kind.ends.IsZero() && s.now().After(kind.ends) {
		return fmt.Sprintf("the shared access signature has ended at %s: make a new one and restart", kind.ends.UTC().Format(time.RFC3339))
	}
	switch a.code {
	case "AuthorizationPermissionMismatch", "InsufficientAccountPermissions", "AuthorizationResourceTypeMismatch", "AuthorizationServiceMismatch":
		if kind.kind == "sas" {
			return fmt.Sprintf("the shared access signature may not %s here (sp=%s): make one for the container with sp=rcwl", verb, kind.permissions)
		}
		return fmt.Sprintf("this identity may not %s blobs in the container %s: assign it \"Storage Blob Data Contributor\" there;"+
			" a new assignment takes some minutes", verb, s.container)
	case "AuthorizationFailure", "AuthorizationSourceIPMismatch", "AuthorizationProtocolMismatch":
		return "the account's networking does not let this request in (selected networks, private endpoints), or " + s.notAccepted(kind)
	case "KeyBasedAuthenticationNotPermitted":
		return fmt.Sprintf("the account does not accept account keys: unset %s and %s, so that the identity of this process is used", envKey, envConnection)
	case "PublicAccessNotPermitted", "NoAuthenticationInformation":
		return "the request came without a credential: something on the way has removed it"
	case "AccountIsDisabled":
		return s.missing(a)
	}
	if strings.Contains(strings.ToLower(a.detail), "date header") {
		return "the store finds the time of the request wrong: set this machine's clock, and have it kept by NTP"
	}
	return s.notAccepted(kind)
}

func (s *store) notAccepted(r rights) string {
	switch r.kind {
	case "sas":
		return "the store does not accept the shared access signature: it may have been cut short, or revoked with the key that signed it; make a new one and restart"
	case "key":
		return fmt.Sprintf("the store does not accept the key of the account %s: it may have been rotated; set %s to a current one and restart", s.account, envKey)
	}
	return fmt.Sprintf("the store does not accept this identity's token: it may be of another tenant than the account %s, or revoked: sign in again, or set AZURE_TENANT_ID", s.account)
}

// retryAfter is what the answer asks for, 0 if nothing.
func (a *answer) retryAfter() time.Duration {
	if ms, err := strconv.Atoi(a.header.Get("x-ms-retry-after-ms")); err == nil && ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return rest.RetryAfter(a.header, a.date)
}

// checkOrigin tells the service's answers from those of whatever else may
// answer in its place.
func (a *answer) checkOrigin() error {
	kind := a.header.Get("Content-Type")
	switch {
	case a.header.Get("x-ms-request-id") == "" && a.status == http.StatusProxyAuthRequired:
		return fmt.Errorf("%w: the proxy asks for credentials (407): set them in HTTPS_PROXY, or the endpoint's host in NO_PROXY", errNotTheStore)
	case a.header.Get("x-ms-request-id") == "":
		return fmt.Errorf("%w (%d %s, %q, no x-ms-request-id): look at the endpoint, and for a proxy in between (HTTPS_PROXY, NO_PROXY)",
			errNotTheStore, a.status, http.StatusText(a.status), kind)
	case a.header.Get("Age") != "":
		return fmt.Errorf("%w but a cache's, %s s old: point the endpoint at the account itself, not at a CDN", errNotTheStore, a.header.Get("Age"))
	}
	return nil
}

// explainTransport says what an error without an answer means.
func (s *store) explainTransport(err error) error {
	return rest.ExplainTransport(err, s.endpoint, fmt.Sprintf(
		"the account %s does not exist, is in another cloud (set endpoint=), or DNS here does not know its private link", s.account))
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"tenure.dev/internal/rest"
)

// errNotTheStore is wrapped by errors about answers that Cloud Storage does not
// give: of a proxy, a captive portal, another server.
var errNotTheStore = errors.New("the answer is not Cloud Storage's")

// originHeader is in each answer of the service.
const originHeader = "X-GUploader-UploadID"

// An Error is an answer of the service that is no success.
type Error struct {
	// StatusCode is that of HTTP.
	StatusCode int
	// Reason is the service's own word, such as "conditionNotMet"; it may be
	// empty.
	Reason string
	// Message is the service's own, shortened to one line.
	Message string
	// Hint says what it means here, and what to do.
	Hint string
}

// Error implements error.
func (e *Error) Error() string {
	s := fmt.Sprintf("%d %s", e.StatusCode, http.StatusText(e.StatusCode))
	if e.Reason != "" {
		s += ", " + e.Reason
	}
	if e.Message != "" {
		s += fmt.Sprintf(", %q", e.Message)
	}
	if e.Hint == "" {
		return "the store says " + s
	}
	return e.Hint + " (" + s + ")"
}

// allowedSkew is how far a clock may be off before it is blamed for a refusal.
// Issuers of tokens allow about 5 minutes.
const allowedSkew = 4 * time.Minute

// explain makes an error of an answer that is no success.
func (s *store) explain(a *answer) error {
	e := &Error{StatusCode: a.status, Reason: a.reason, Message: a.message, Hint: s.hint(a)}
	if after := a.retryAfter(); after > 0 {
		return rest.Later(fmt.Errorf("%w; leave it alone for %v", e, after), after)
	}
	return e
}

// bucketMissing tells the one 404 from the other. The service has the same
// reason for both, so this is about words: it chooses between two errors only,
// and a create says again what is missing.
func (a *answer) bucketMissing() bool {
	return a.status == http.StatusNotFound && strings.Contains(a.message, "bucket does not exist")
}

func (s *store) hint(a *answer) string {
	switch a.status {
	case http.StatusNotFound:
		if a.bucketMissing() || a.method == http.MethodPost {
			return fmt.Sprintf("there is no bucket %s: create it (gcloud storage buckets create gs://%[1]s --location=REGION), or correct the URL", s.bucket)
		}
		return "there is no record"
	case http.StatusPreconditionFailed:
		if a.isConflict() {
			return "the record has another version, or is gone"
		}
	case http.StatusUnauthorized:
		return s.notAccepted(a)
	case http.StatusForbidden:
		return s.refusal(a)
	case http.StatusTooManyRequests:
		return "the store is throttling: the object was written more than once a second, or the bucket is busy; look for who else writes it"
	case http.StatusConflict:
		return "the store was doing something else with the object or the bucket; what was asked may have happened or not"
	}
	switch {
	case a.reason == "userProjectMissing" || a.reason == "UserProjectMissing" || strings.Contains(a.message, "requester pays"):
		return "the bucket is a requester-pays one: use a bucket that its owner pays for"
	case a.status >= 500:
		return "the store has failed; what was asked may have happened or not"
	case a.status == http.StatusNotModified:
		return "the store says that something was not modified which was not asked: look for a cache in between"
	case a.status >= 300 && a.status < 400:
		return "the store redirects, which Cloud Storage does not: look at the endpoint"
	case a.status < 300:
		return "the store accepted something else than was asked; look at what stands between, such as a proxy"
	}
	return ""
}

// clockHint blames the clock if it is off by the store's own.
func (a *answer) clockHint() string { return clockHint(a.got, a.date) }

func clockHint(here, there time.Time) string {
	skew := here.Sub(there)
	if there.IsZero() || skew.Abs() <= allowedSkew {
		return ""
	}
	where := "ahead of"
	if skew < 0 {
		where = "behind"
	}
	return fmt.Sprintf("this machine's clock is %v %s Google's, so its tokens are refused or end at the wrong time:"+
		" set the clock, and have it kept by NTP", skew.Abs().Round(time.Second), where)
}

// notAccepted explains 401.
func (s *store) notAccepted(a *answer) string {
	if h := a.clockHint(); h != "" {
		return h
	}
	if s.anonymous {
		return "the store wants credentials: remove anonymous=true"
	}
	return "the store does not accept this identity's token: its key may have been deleted, or its account disabled;" +
		" look at the credentials, which are read again before the next request"
}

// refusal explains 403.
func (s *store) refusal(a *answer) string {
	words := strings.ToLower(a.reason + " " + a.message)
	has := func(w string) bool { return strings.Contains(words, w) }
	rights := "storage.objects.get and storage.objects.list"
	if a.method == http.MethodPost {
		rights = "storage.objects.create and storage.objects.delete, which overwriting needs"
	}
	switch {
	case has("retention") || has("hold"):
		return "a retention policy or a hold on the bucket or the object forbids overwriting, and a lock is overwritten at every renewal: use a bucket without"
	case has("ratelimit"):
		return "the store is throttling"
	case has("insufficientpermissions") || has("insufficient authentication scopes") || has("access_token_scope_insufficient"):
		return "this machine's tokens may not write to Cloud Storage: give the VM or the node pool the access scope storage-rw or cloud-platform"
	case has("accountdisabled") || has("billing"):
		return "billing of the bucket's project is off: enable it"
	case has("vpcservicecontrols") || has("vpc service controls") || has("organization's policy"):
		return "a service perimeter or a policy of the organization does not let this request in: ask whoever keeps it"
	}
	if h := a.clockHint(); h != "" {
		return h
	}
	if s.anonymous {
		return "the store wants credentials: remove anonymous=true"
	}
	return fmt.Sprintf("this identity lacks %s on the bucket %s, or the bucket is another's:"+
		" grant it roles/storage.objectUser there (gcloud storage buckets add-iam-policy-binding), or correct the URL", rights, s.bucket)
}

// retryAfter is how long the service wants to be left alone, 0 if it does not
// say and it does not follow from its limit.
func (a *answer) retryAfter() time.Duration {
	if a.status < 400 {
		return 0
	}
	if after := rest.RetryAfter(a.header, a.date); after > 0 {
		return after
	}
	if a.status == http.StatusTooManyRequests {
		return minWriteInterval
	}
	return 0
}

// checkOrigin tells the service's answers from those of whatever else may
// answer in its place. The service itself calls some messages HTML, and a
// custom endpoint need not send the service's header.
func (s *store) checkOrigin(a *answer) error {
	kind := a.header.Get("Content-Type")
	ours := a.header.Get(originHeader) != ""
	switch {
	case !ours && a.status == http.StatusProxyAuthRequired:
		return fmt.Errorf("%w: the proxy asks for credentials (407): set them in HTTPS_PROXY, or the endpoint's host in NO_PROXY", errNotTheStore)
	case !ours && (strings.HasPrefix(kind, "text/html") || a.status == http.StatusNotFound && !s.custom):
		return fmt.Errorf("%w (%d %s, %q, no %s): look at the endpoint, and for a proxy in between (HTTPS_PROXY, NO_PROXY)",
			errNotTheStore, a.status, http.StatusText(a.status), kind, originHeader)
	case a.header.Get("Age") != "":
		return fmt.Errorf("%w but a cache's, %s s old: point the endpoint at the service itself, not at a CDN", errNotTheStore, a.header.Get("Age"))
	}
	return nil
}

// oneLine shortens what others wrote for a log.
func oneLine(s string) string { return rest.OneLine(s, 300) }

// explainTransport says what an error without an answer means.
func (s *store) explainTransport(err error) error {
	return rest.ExplainTransport(err, s.endpoint, "correct the endpoint, or look at this machine's DNS")
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"tenure.dev"
	"tenure.dev/internal/rest"
)

var (
	errNoETag  = errors.New("the answer has no ETag: whatever answered is no S3 server, or something on the way takes headers off")
	errNoDate  = errors.New("the answer has no Date: something on the way takes headers off")
	errTorn    = errors.New("the answers had ETag and body of different states: the server is being written without pause, or tears reads")
	errReplica = errors.New("this record came from another bucket by replication, which loses the last seconds of writes: one bucket must decide;" +
		" name the bucket that the record was written to, or, when that one is lost for good and all candidates are stopped, delete this record")
	errDeleteMarker = errors.New("the store says that the key exists (412) and that it does not (404): on this server the marker of a deleted object" +
		" stands in the way of a new one; delete the marker (aws s3api list-object-versions, then delete-object --version-id …), or use a bucket without versioning")
)

// A foreignError is an answer that is not the store's.
type foreignError struct {
	what   string
	status int
	header http.Header
}

func (e *foreignError) Error() string {
	from := ""
	if s := e.header.Get("Server"); s != "" {
		from = fmt.Sprintf(", from a server that calls itself %q", s)
	}
	return fmt.Sprintf("got %d with %s%s: a proxy, a portal or a cache stands before the store; look at endpoint=, and at HTTPS_PROXY and NO_PROXY",
		e.status, e.what, from)
}

// failed says what was done to what, why it failed and what to do next.
func (r *Register) failed(ctx context.Context, doing string, err error) error {
	if ended := ctx.Err(); ended != nil {
		if !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
		return fmt.Errorf("s3: %s %s: %w", doing, r, err)
	}
	h, status := http.Header{}, 0
	if foreign, ok := errors.AsType[*foreignError](err); ok {
		h, status, err = foreign.header, foreign.status, foreign // not a word of what the SDK thinks
	} else if answer := answerOf(err); answer != nil {
		h, status = answer.Header, answer.StatusCode
	}
	err = r.explain(doing, err, h)
	if after := retryAfter(h); after > 0 && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) {
		return rest.Later(err, after)
	}
	return err
}

// explain puts the next step before what the SDK says.
func (r *Register) explain(doing string, err error, h http.Header) error {
	code := codeOf(err)
	if code == "NoSuchKey" && doing == "read" {
		return fmt.Errorf("s3: read %s: %w: %w", r, tenure.ErrNotExist, brief(err))
	}
	if slices.Contains(refusedKeys, code) {
		r.store.keys.refused()
	}
	if hint := r.hint(doing, err, code, h); hint != "" {
		return fmt.Errorf("s3: %s %s: %s: %w", doing, r, hint, brief(err))
	}
	return fmt.Errorf("s3: %s %s: %w", doing, r, brief(err))
}

// A briefError is an error of the SDK, said in one breath.
type briefError struct {
	text string
	err  error
}

func (e *briefError) Error() string { return e.text }

// Unwrap returns the SDK's error.
func (e *briefError) Unwrap() error { return e.err }

func brief(err error) error {
	api, isAPI := errors.AsType[smithy.APIError](err)
	send, isSend := errors.AsType[*smithyhttp.RequestSendError](err)
	answer := answerOf(err)
	switch {
	case isAPI && answer != nil:
		text := fmt.Sprintf("%d %s: %s", answer.StatusCode, api.ErrorCode(), strings.TrimSuffix(api.ErrorMessage(), "."))
		if id := answer.Header.Get("X-Amz-Request-Id"); id != "" {
			text += " (request " + id + ")"
		}
		return &briefError{text, err}
	case isSend && send.Err != nil:
		return &briefError{send.Err.Error(), err}
	}
	return err
}

// refusedKeys are the codes for credentials that will not do.
var refusedKeys = []string{"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "ExpiredTokenException"}

func (r *Register) hint(doing string, err error, code string, h http.Header) string {
	region := h.Get(regionHeader)
	message := strings.ToLower(messageOf(err))
	switch {
	case region != "" && region != r.store.region:
		return fmt.Sprintf("the wrong region: the bucket is in %s, it was asked in %s; set region=%s", region, r.store.region, region)
	case code == "PermanentRedirect", code == "TemporaryRedirect", code == "AuthorizationHeaderMalformed":
		return fmt.Sprintf("the bucket is not at this endpoint or not in the region %s: set region= to the bucket's", r.store.region)
	case code == "NoSuchBucket":
		return fmt.Sprintf("there is no bucket %s: make it, or mend its name; it is not made here", r.store.bucket)
	case code == "RequestTimeTooSkewed", code == "RequestExpired":
		return clockHint(h.Get("Date"), time.Now())
	case code == "ConditionalRequestConflict", code == "OperationAborted":
		return "another write of the key was under way: nothing was written, it is tried again"
	case code == "InvalidAccessKeyId", code == "SignatureDoesNotMatch":
		return "the access key is unknown or its secret is wrong: it was rotated or deleted, or is another service's; look at AWS_ACCESS_KEY_ID, the profile or the role"
	case slices.Contains(refusedKeys, code):
		return "the credentials have expired: renew them (aws sso login, the role, or AWS_SESSION_TOKEN)"
	case errors.Is(err, errNoCredentials):
		return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile (profile=), or run with a role (IRSA, Pod Identity, instance profile)"
	case code == "NotImplemented" && doing == "write":
		return "this server does not know conditional writes: it cannot keep a lock"
	case retained(code, message):
		return "retention or an object lock on the bucket refuses to overwrite the record: use a bucket without them"
	case code == "AccessDenied", code == "AllAccessDisabled", code == "Forbidden":
		return r.denied(doing)
	}
	return transportHint(err)
}

// clockHint compares the store's clock with this machine's.
func clockHint(date string, now time.Time) string {
	store, err := http.ParseTime(date)
	if err == nil && now.Sub(store).Abs() < time.Minute {
		return "the time in the signature was off, though the store's clock and this one agree: an answer before had a wrong Date; it is tried again"
	}
	return fmt.Sprintf("this machine's clock is off: the store's says %s, this one %s; set it right (NTP)", date, now.UTC().Format(http.TimeFormat))
}

func retained(code, message string) bool {
	return code == "ObjectLocked" || code == "InvalidRetentionPeriod" || strings.Contains(message, "retention") ||
		strings.Contains(message, "worm") || strings.Contains(message, "object lock") || strings.Contains(message, "legal hold")
}

func (r *Register) denied(doing string) string {
	owner := ""
	if r.store.owner != nil {
		owner = fmt.Sprintf(", or the bucket is not account %s's", *r.store.owner)
	}
	switch doing {
	case "read":
		return "the credentials lack s3:GetObject on the key or s3:ListBucket on the bucket (without which a missing key looks like this)" + owner
	case "write":
		return "the credentials lack s3:PutObject on the key: they can look at the lock but not hold it" + owner
	case "list the siblings of":
		return "the credentials lack s3:ListBucket on the bucket" + owner
	}
	return "the credentials lack a right on the bucket" + owner
}

// transportHint says what to do when there was no answer.
func transportHint(err error) string {
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "the certificate is another host's: something stands before the store, or endpoint= names it by a name that it does not have"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the certificate is signed by an authority that this machine does not know: name its certificate with cafile="
	}
	if bad, ok := errors.AsType[x509.CertificateInvalidError](err); ok && bad.Reason == x509.Expired {
		return "the server's certificate has expired, or this machine's clock is wrong"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the server's certificate is not valid"
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return "there is no such host: look at region=, endpoint= and pathstyle="
	}
	return ""
}

// answerOf returns the answer that an SDK error is about, nil if there was none.
func answerOf(err error) *smithyhttp.Response {
	if e, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && e.Response != nil && e.Response.Response != nil {
		return e.Response
	}
	return nil
}

func codeOf(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}

func messageOf(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorMessage()
	}
	return ""
}

// headerOf returns the header of the answer that m belongs to.
func headerOf(m middleware.Metadata) http.Header {
	if raw, ok := awsmiddleware.GetRawResponse(m).(*smithyhttp.Response); ok {
		return raw.Header
	}
	return nil
}

// retryAfter returns what the answer asks for: seconds, or a time on the
// store's clock.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if s, err := strconv.Atoi(v); err == nil {
		return time.Duration(max(s, 0)) * time.Second
	}
	until, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(until.Sub(now), 0)
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bytes"
	"cmp"
	"context"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"tenure.dev"
)

// A Register keeps a record in an object of a bucket. Its methods are safe for
// concurrent use.
type Register struct {
	store *store
	key   string

	mu   sync.Mutex
	last *state // what the store was last seen to hold; only to answer a 304
	// A create was refused because the key exists, and a later read said that it
	// does not: together the mark of a delete marker that counts as an object.
	createRefused, absentAfter bool
}

// A state is one value of the register and the ETag that stands for it.
type state struct {
	version tenure.Version
	value   []byte
	written time.Time
}

var (
	_ tenure.Register  = (*Register)(nil)
	_ tenure.Dater     = (*Register)(nil)
	_ tenure.Clock     = (*Register)(nil)
	_ tenure.Siblinger = (*Register)(nil)
	_ tenure.Lister    = (*Register)(nil)
	_ tenure.Inspector = (*Register)(nil)

	_ tenure.StoreNamer = (*Register)(nil)
)

// Read returns the value and its version, in one GET; see [tenure.Register]. The
// GET carries the last version seen, so that a value that has not changed is not
// sent again. It blocks until the store has answered or ctx ends.
func (r *Register) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	v, err := r.ReadDated(ctx)
	return v.Value, v.Version, err
}

// ReadDated reads as Read does and returns Last-Modified and Date of the answer;
// see [tenure.Dater].
func (r *Register) ReadDated(ctx context.Context) (tenure.DatedValue, error) {
	r.mu.Lock()
	last, refused := r.last, r.createRefused
	r.mu.Unlock()
	v, err := r.get(ctx, last)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.last = &state{v.Version, v.Value, v.Written}
		r.createRefused, r.absentAfter = false, false
	case errors.Is(err, tenure.ErrNotExist):
		r.last = nil
		r.absentAfter = refused && r.createRefused
	}
	v.Value = bytes.Clone(v.Value)
	return v, err
}

// An answer is what one GET returned: the header's part and the body's.
type answer struct {
	tenure.DatedValue
	sum       [md5.Size]byte
	unchanged bool // a 304
	tooLarge  bool
}

// get asks for the object; last is what it held when it was last seen, or nil.
func (r *Register) get(ctx context.Context, last *state) (tenure.DatedValue, error) {
	a, err := r.ask(ctx, last)
	// There are servers (versitygw 1.8) that take the ETag from one state and the
	// body from the next, if a write comes between. Where the ETag is the body's
	// hash, it shows. Where it is not, the same pair must come twice: chance
	// does not repeat.
	for tries := 0; err == nil && !r.fits(a); tries++ {
		if tries == confirmations {
			err = r.failed(ctx, "read", errTorn)
			break
		}
		before := a
		if a, err = r.ask(ctx, nil); err == nil && a.Version == before.Version && a.sum == before.sum {
			break
		}
	}
	switch {
	case err != nil:
		return tenure.DatedValue{}, err
	case a.tooLarge:
		return a.DatedValue, fmt.Errorf("s3: read %s: %w", r, tenure.ErrValueTooLarge)
	}
	return a.DatedValue, nil
}

// confirmations is how often a value is asked for again that does not fit its
// ETag.
const confirmations = 4

// fits reports whether an answer's value and version certainly belong together.
func (r *Register) fits(a answer) bool {
	return r.store.endpoint == "" || a.unchanged || a.tooLarge || string(a.Version) == fmt.Sprintf("%x", a.sum)
}

// ask makes one GET.
func (r *Register) ask(ctx context.Context, last *state) (a answer, err error) {
	in := &s3.GetObjectInput{Bucket: &r.store.bucket, Key: &r.key, ExpectedBucketOwner: r.store.owner}
	if last != nil {
		in.IfNoneMatch = aws.String(etag(last.version))
	}
	out, err := r.store.client.GetObject(ctx, in, fresh)
	if got := answerOf(err); last != nil && got != nil && got.StatusCode == http.StatusNotModified {
		return answer{DatedValue: unchanged(last, got.Header), unchanged: true}, nil
	}
	if err != nil {
		return a, r.failed(ctx, "read", err)
	}
	defer out.Body.Close()
	a.Version, a.Written, a.Now = version(out.ETag), aws.ToTime(out.LastModified), dateOf(out.ResultMetadata)
	switch {
	case a.Version == "":
		return a, r.failed(ctx, "read", errNoETag)
	case out.ReplicationStatus == types.ReplicationStatusReplica:
		return a, r.failed(ctx, "read", errReplica)
	}
	const longest = int64(saltLen + tenure.MaxRecordSize)
	body, err := io.ReadAll(io.LimitReader(out.Body, longest+1))
	if err != nil {
		return a, r.failed(ctx, "read", err)
	}
	a.sum = md5.Sum(body)
	if a.Value = unsalt(body); len(a.Value) > tenure.MaxRecordSize {
		a.Value, a.tooLarge = nil, true
	}
	return a, nil
}

// unchanged is what a 304 says: the store still holds last.
func unchanged(last *state, h http.Header) tenure.DatedValue {
	v := tenure.DatedValue{Value: last.value, Version: last.version, Written: last.written}
	if t, err := http.ParseTime(h.Get("Last-Modified")); err == nil {
		v.Written = t // the same bytes may have been written again by a copy
	}
	v.Now, _ = http.ParseTime(h.Get("Date"))
	return v
}

// Write replaces the value, in one conditional PUT that is never repeated; see
// [tenure.Register]. It blocks until the store has answered or ctx ends.
func (r *Register) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	body := salted(value)
	sum := md5.Sum(body) // a checksum against damage, not against people
	in := &s3.PutObjectInput{
		Bucket: &r.store.bucket, Key: &r.key, ExpectedBucketOwner: r.store.owner,
		Body: bytes.NewReader(body), ContentLength: aws.Int64(int64(len(body))),
		ContentMD5:   aws.String(base64.StdEncoding.EncodeToString(sum[:])),
		ContentType:  aws.String("text/plain; charset=utf-8"),
		CacheControl: aws.String("no-store"),
	}
	if old == "" {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = aws.String(etag(old))
	}
	out, err := r.store.client.PutObject(ctx, in)
	if err == nil && version(out.ETag) == "" {
		err = errNoETag
	}
	if err != nil {
		return "", r.writeFailed(ctx, old, err)
	}
	made := version(out.ETag)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = &state{version: made, value: bytes.Clone(value)}
	r.createRefused, r.absentAfter = false, false
	return made, nil
}

// writeFailed says what became of a write that was not answered with success.
func (r *Register) writeFailed(ctx context.Context, old tenure.Version, err error) error {
	answer, code := answerOf(err), codeOf(err)
	gone := answer != nil && answer.StatusCode == http.StatusNotFound && code == "NoSuchKey" && old != ""
	refused := answer != nil && answer.StatusCode == http.StatusPreconditionFailed && code != ""
	if !gone && !refused {
		return r.failed(ctx, "write", err)
	}
	if old == "" {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.absentAfter {
			r.absentAfter = false
			return fmt.Errorf("s3: write %s: %w: %w", r, errDeleteMarker, brief(err))
		}
		r.createRefused = true
	}
	return fmt.Errorf("s3: write %s: %w: %w", r, tenure.ErrConflict, brief(err))
}

// Now returns the store's time, to the second, from the Date header of one HEAD;
// see [tenure.Clock].
func (r *Register) Now(ctx context.Context) (time.Time, error) {
	out, err := r.store.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &r.store.bucket, Key: &r.key, ExpectedBucketOwner: r.store.owner}, fresh)
	var now time.Time
	if err == nil {
		now = dateOf(out.ResultMetadata)
	} else if answer := answerOf(err); answer != nil && isStore(answer.Header) {
		// Absent, refused, a clock too far off: the store tells its time with it.
		now, _ = http.ParseTime(answer.Header.Get("Date"))
	}
	switch {
	case !now.IsZero():
		return now, nil
	case err == nil:
		err = errNoDate
	}
	return time.Time{}, r.failed(ctx, "ask the time of", err)
}

// Sibling returns the register whose key is this one's followed by suffix. It
// makes no request.
func (r *Register) Sibling(suffix string) tenure.Register {
	return &Register{store: r.store, key: r.key + suffix}
}

// List returns the suffixes of the existing siblings that begin with prefix,
// sorted, in one request for each thousand.
func (r *Register) List(ctx context.Context, prefix string) ([]string, error) {
	var found []string
	pages := s3.NewListObjectsV2Paginator(r.store.client, &s3.ListObjectsV2Input{
		Bucket: &r.store.bucket, Prefix: aws.String(r.key + prefix), ExpectedBucketOwner: r.store.owner,
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx, fresh)
		if err != nil {
			return nil, r.failed(ctx, "list the siblings of", err)
		}
		for _, o := range page.Contents {
			if suffix := strings.TrimPrefix(aws.ToString(o.Key), r.key); suffix != "" {
				found = append(found, suffix)
			}
		}
	}
	slices.Sort(found)
	return found, nil
}

// String returns bucket and key.
func (r *Register) String() string { return "s3://" + r.store.bucket + "/" + r.key }

// StoreName returns the endpoint, the region and the bucket; see
// [tenure.StoreNamer].
func (r *Register) StoreName() string {
	return fmt.Sprintf("%s, region %s, bucket %s", cmp.Or(r.store.endpoint, "Amazon S3"), r.store.region, r.store.bucket)
}

// fresh tells caches on the way not to answer.
func fresh(o *s3.Options) {
	o.APIOptions = append(o.APIOptions, smithyhttp.SetHeaderValue("Cache-Control", "no-store"))
}

// version takes the spelling off an ETag: there are servers that quote it in one
// answer and not in another, and proxies that call it weak because they
// compressed what it stands for.
func version(tag *string) tenure.Version {
	return tenure.Version(strings.Trim(strings.TrimPrefix(aws.ToString(tag), "W/"), `"`))
}

func etag(v tenure.Version) string { return `"` + string(v) + `"` }

// dateOf returns the store's time from the answer that m belongs to.
func dateOf(m middleware.Metadata) time.Time {
	t, _ := http.ParseTime(headerOf(m).Get("Date"))
	return t
}

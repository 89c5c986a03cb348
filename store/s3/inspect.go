// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"tenure.dev"
)

// Inspect looks at the bucket's configuration; see [tenure.Inspector]. It makes
// one GET for each thing it looks at, side by side.
func (r *Register) Inspect(ctx context.Context) []tenure.Finding {
	looks := []struct {
		check, right string
		look         func(context.Context) (tenure.Finding, error)
	}{
		{"versioning", "s3:GetBucketVersioning", r.lookVersioning},
		{"object lock", "s3:GetBucketObjectLockConfiguration", r.lookObjectLock},
		{"lifecycle", "s3:GetLifecycleConfiguration", r.lookLifecycle},
		{"replication", "s3:GetReplicationConfiguration", r.lookReplication},
		{"replica", "s3:GetObject", r.lookReplica},
		{"encryption", "s3:GetEncryptionConfiguration", r.lookEncryption},
		{"bucket policy", "s3:GetBucketPolicy", r.lookPolicy},
	}
	found := make([]tenure.Finding, len(looks))
	var wg sync.WaitGroup
	for i, l := range looks {
		wg.Go(func() {
			f, err := l.look(ctx)
			if err != nil {
				f = r.unseen(ctx, l.check, l.right, err)
			}
			f.Check = l.check
			found[i] = f
		})
	}
	wg.Wait()
	return append(found, r.lookTransport())
}

func (r *Register) unseen(ctx context.Context, check, right string, err error) tenure.Finding {
	f := tenure.Finding{Level: tenure.FindingUnknown}
	status := 0
	if answer := answerOf(err); answer != nil {
		status = answer.StatusCode
	}
	switch code := codeOf(err); {
	case code == "NotImplemented" || code == "MethodNotAllowed" || status == http.StatusNotImplemented || status == http.StatusMethodNotAllowed:
		f.Detail = "this server does not tell"
	case code == "AccessDenied" || status == http.StatusForbidden && code == "Forbidden":
		f.Detail = fmt.Sprintf("the credentials may not see it: that takes %s, which the lock itself does not need", right)
	default:
		f.Detail = r.failed(ctx, "look at the "+check+" of", err).Error()
	}
	return f
}

func ok(detail string) (tenure.Finding, error) {
	return tenure.Finding{Level: tenure.FindingOK, Detail: detail}, nil
}

func (r *Register) lookVersioning(ctx context.Context) (f tenure.Finding, err error) {
	out, err := r.store.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &r.store.bucket, ExpectedBucketOwner: r.store.owner})
	if err != nil {
		return f, err
	}
	if out.Status != types.BucketVersioningStatusEnabled {
		return ok("no old versions are kept")
	}
	f.Level = tenure.FindingWarning
	f.Detail = "every renewal leaves an old version behind: 1.3 million a month at P = 2 s, paid for by the byte"
	f.Next = "use a bucket without versioning, or a lifecycle rule that deletes noncurrent versions after a day"
	if r.store.endpoint != "" {
		f.Detail += "; and on some servers (versitygw 1.8) a record that was deleted can be renewed, but not made again before its delete marker is deleted too"
	}
	rules, err := r.lifecycle(ctx)
	if err == nil && slices.ContainsFunc(rules, func(rule types.LifecycleRule) bool { return rule.NoncurrentVersionExpiration != nil }) {
		f.Detail += "; a lifecycle rule deletes them"
		if r.store.endpoint == "" {
			f.Level, f.Next = tenure.FindingNote, ""
		}
	}
	return f, nil
}

func (r *Register) lookObjectLock(ctx context.Context) (f tenure.Finding, err error) {
	out, err := r.store.client.GetObjectLockConfiguration(ctx, &s3.GetObjectLockConfigurationInput{Bucket: &r.store.bucket, ExpectedBucketOwner: r.store.owner})
	if codeOf(err) == "ObjectLockConfigurationNotFoundError" {
		return ok("none")
	}
	if err != nil {
		return f, err
	}
	c := out.ObjectLockConfiguration
	if c == nil || c.ObjectLockEnabled != types.ObjectLockEnabledEnabled {
		return ok("none")
	}
	if c.Rule == nil || c.Rule.DefaultRetention == nil {
		return tenure.Finding{Level: tenure.FindingNote, Detail: "possible on this bucket, but new objects are not locked"}, nil
	}
	return tenure.Finding{
		Level:  tenure.FindingWarning,
		Detail: fmt.Sprintf("new objects are locked for %s: each renewal leaves a version that nobody may delete before, and some servers refuse to overwrite", period(c.Rule.DefaultRetention)),
		Next:   "use a bucket without default retention",
	}, nil
}

func period(d *types.DefaultRetention) string {
	if d.Years != nil {
		return fmt.Sprintf("%d years", *d.Years)
	}
	return fmt.Sprintf("%d days", aws.ToInt32(d.Days))
}

// lifecycle returns the rules that apply to the record or its siblings.
func (r *Register) lifecycle(ctx context.Context) ([]types.LifecycleRule, error) {
	out, err := r.store.client.GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: &r.store.bucket, ExpectedBucketOwner: r.store.owner})
	if codeOf(err) == "NoSuchLifecycleConfiguration" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(out.Rules, func(rule types.LifecycleRule) bool {
		prefix := aws.ToString(rule.Prefix) //nolint:staticcheck // old rules still have it
		if f := rule.Filter; f != nil {
			if f.Tag != nil || f.And != nil && len(f.And.Tags) > 0 {
				return true // our objects have no tags
			}
			if f.Prefix != nil {
				prefix = *f.Prefix
			}
			if f.And != nil {
				prefix = aws.ToString(f.And.Prefix)
			}
		}
		return rule.Status != types.ExpirationStatusEnabled || !r.covered(prefix)
	}), nil
}

// covered reports whether keys with a prefix can be the record or a sibling.
func (r *Register) covered(prefix string) bool {
	return strings.HasPrefix(r.key, prefix) || strings.HasPrefix(prefix, r.key+".")
}

func (r *Register) lookLifecycle(ctx context.Context) (f tenure.Finding, err error) {
	rules, err := r.lifecycle(ctx)
	if err != nil {
		return f, err
	}
	for _, rule := range rules {
		id := aws.ToString(rule.ID)
		switch {
		case rule.Expiration != nil && (rule.Expiration.Days != nil || rule.Expiration.Date != nil):
			return tenure.Finding{
				Level:  tenure.FindingWarning,
				Detail: fmt.Sprintf("the rule %q deletes the record of a lock that nobody renews for a while", id),
				Next:   fmt.Sprintf("leave the keys %s* out of the rule", r.key),
			}, nil
		case len(rule.Transitions) > 0:
			f = tenure.Finding{
				Level:  tenure.FindingWarning,
				Detail: fmt.Sprintf("the rule %q moves the record of an idle lock to another storage class, which may not be readable at once", id),
				Next:   fmt.Sprintf("leave the keys %s* out of the rule", r.key),
			}
		}
	}
	if f.Level != "" {
		return f, nil
	}
	return ok("no rule deletes or moves the record")
}

func (r *Register) lookReplication(ctx context.Context) (f tenure.Finding, err error) {
	out, err := r.store.client.GetBucketReplication(ctx, &s3.GetBucketReplicationInput{Bucket: &r.store.bucket, ExpectedBucketOwner: r.store.owner})
	if codeOf(err) == "ReplicationConfigurationNotFoundError" {
		return ok("this bucket is not copied to another one")
	}
	if err != nil {
		return f, err
	}
	if out.ReplicationConfiguration == nil {
		return ok("this bucket is not copied to another one")
	}
	f, _ = ok("no rule copies the record")
	for _, rule := range out.ReplicationConfiguration.Rules {
		prefix := aws.ToString(rule.Prefix) //nolint:staticcheck // old rules still have it
		if rule.Filter != nil && rule.Filter.Tag != nil {
			continue
		}
		if rule.Filter != nil && rule.Filter.And != nil {
			if len(rule.Filter.And.Tags) > 0 {
				continue
			}
			prefix = aws.ToString(rule.Filter.And.Prefix)
		} else if rule.Filter != nil {
			prefix = aws.ToString(rule.Filter.Prefix)
		}
		if rule.Status != types.ReplicationRuleStatusEnabled || !r.covered(prefix) {
			continue
		}
		to := "another bucket"
		if rule.Destination != nil && rule.Destination.Bucket != nil {
			to = *rule.Destination.Bucket
		}
		if s := rule.SourceSelectionCriteria; s != nil && s.ReplicaModifications != nil && s.ReplicaModifications.Status == types.ReplicaModificationsStatusEnabled {
			return tenure.Finding{
				Level:  tenure.FindingUnsafe,
				Detail: fmt.Sprintf("the record is copied to %s, and changes of copies come back: two buckets decide, each seconds behind the other", to),
				Next:   fmt.Sprintf("leave the keys %s* out of the replication", r.key),
			}, nil
		}
		f = tenure.Finding{
			Level:  tenure.FindingWarning,
			Detail: fmt.Sprintf("the record is copied to %s: a copy lags behind, and a candidate that uses it would lead beside the leader", to),
			Next:   fmt.Sprintf("see that no candidate names the copy, or leave the keys %s* out of the replication", r.key),
		}
	}
	return f, nil
}

// lookReplica looks at the record itself, which says whether it is a copy.
func (r *Register) lookReplica(ctx context.Context) (f tenure.Finding, err error) {
	_, err = r.get(ctx, nil)
	switch {
	case errors.Is(err, errReplica):
		return tenure.Finding{
			Level:  tenure.FindingUnsafe,
			Detail: "the record was copied here from another bucket: that one decides, and this one lags behind",
			Next:   "name the bucket that the record was written to",
		}, nil
	case errors.Is(err, tenure.ErrNotExist):
		return tenure.Finding{Level: tenure.FindingUnknown, Detail: "there is no record yet that could tell whether this bucket receives copies"}, nil
	case codeOf(err) == "AccessDenied":
		return f, err
	case err != nil && !errors.Is(err, tenure.ErrValueTooLarge):
		return tenure.Finding{Level: tenure.FindingUnknown, Detail: err.Error()}, nil
	}
	return ok("the record was written here")
}

func (r *Register) lookEncryption(ctx context.Context) (f tenure.Finding, err error) {
	out, err := r.store.client.GetBucketEncryption(ctx, &s3.GetBucketEncryptionInput{Bucket: &r.store.bucket, ExpectedBucketOwner: r.store.owner})
	if codeOf(err) == "ServerSideEncryptionConfigurationNotFoundError" {
		return ok("none by the bucket's configuration")
	}
	if err != nil {
		return f, err
	}
	if c := out.ServerSideEncryptionConfiguration; c != nil {
		for _, rule := range c.Rules {
			if d := rule.ApplyServerSideEncryptionByDefault; d != nil && d.SSEAlgorithm != types.ServerSideEncryptionAes256 {
				return tenure.Finding{
					Level:  tenure.FindingNote,
					Detail: "with a key of KMS: candidates also need kms:GenerateDataKey and kms:Decrypt on it, requests to it cost, and the lock is lost when it is",
					Next:   "use SSE-S3 for the lock's bucket, or a bucket key",
				}, nil
			}
		}
	}
	return ok("with the store's own key")
}

func (r *Register) lookTransport() tenure.Finding {
	f := tenure.Finding{Check: "transport", Level: tenure.FindingOK, Detail: "https"}
	u, err := url.Parse(r.store.endpoint)
	if r.store.endpoint == "" || err != nil || u.Scheme == "https" {
		return f
	}
	f.Level, f.Detail, f.Next = tenure.FindingWarning, "http: who is on the way can read and change answers", "use https, with cafile= for an own authority"
	if h := u.Hostname(); h == "localhost" || h == "127.0.0.1" || h == "::1" {
		f.Level, f.Detail, f.Next = tenure.FindingNote, "http, to this machine", ""
	}
	return f
}

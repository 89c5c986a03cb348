// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"tenure.dev"
)

// Inspect implements [tenure.Inspector]. It blocks for three requests, at most
// until ctx ends: the bucket's metadata, the record's, and what this identity
// may do on the bucket.
func (r *Register) Inspect(ctx context.Context) []tenure.Finding {
	if r.refused != nil {
		return []tenure.Finding{unseen("register", r.refused)}
	}
	found := r.inspectBucket(ctx)
	found = append(found, r.inspectRecord(ctx)...)
	return append(found, r.inspectRights(ctx)...)
}

// look makes one request of an inspection and reads its JSON into v. The error
// says why nothing can be told from the answer.
func (s *store) look(ctx context.Context, path string, query url.Values, v any) error {
	a, err := s.do(ctx, request{method: http.MethodGet, path: path, query: query, limit: maxPage})
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return s.explain(a)
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		return fmt.Errorf("%w: its JSON cannot be read: %w", errNotTheStore, err)
	}
	return nil
}

func unseen(check string, err error) tenure.Finding {
	return tenure.Finding{Check: check, Level: tenure.FindingUnknown, Detail: "could not be seen: " + err.Error()}
}

func finding(level tenure.FindingLevel, check, detail, next string) tenure.Finding {
	return tenure.Finding{Check: check, Level: level, Detail: detail, Next: next}
}

// A bucket is what the service tells of one, as far as it matters here.
type bucket struct {
	Location, LocationType, StorageClass string
	DefaultEventBasedHold                bool
	Versioning                           struct{ Enabled bool }
	SoftDeletePolicy                     struct {
		RetentionDurationSeconds int64 `json:",string"`
	}
	RetentionPolicy *struct {
		RetentionPeriod int64 `json:",string"`
		IsLocked        bool
	}
	ObjectRetention  struct{ Mode string }
	Lifecycle        struct{ Rule []lifecycleRule }
	IamConfiguration struct {
		UniformBucketLevelAccess struct{ Enabled bool }
		PublicAccessPrevention   string
	}
	Encryption struct{ DefaultKmsKeyName string }
	Billing    struct{ RequesterPays bool }
}

type lifecycleRule struct {
	Action    struct{ Type, StorageClass string }
	Condition struct {
		IsLive                       *bool
		NumNewerVersions             int
		DaysSinceNoncurrentTime      int
		NoncurrentTimeBefore         string
		MatchesPrefix, MatchesSuffix []string
	}
}

const otherBucket = "use a bucket without, one for locks alone"

func (r *Register) inspectBucket(ctx context.Context) []tenure.Finding {
	var b bucket
	fields := "location,locationType,storageClass,defaultEventBasedHold,versioning,softDeletePolicy,retentionPolicy,objectRetention," +
		"lifecycle,iamConfiguration,encryption,billing"
	err := r.store.look(ctx, r.store.bucketPath(), url.Values{"projection": {"noAcl"}, "fields": {fields}}, &b)
	var e *Error
	switch {
	case errors.As(err, &e) && e.StatusCode == http.StatusForbidden:
		return []tenure.Finding{finding(tenure.FindingUnknown, "bucket",
			"versioning, soft delete, retention, lifecycle and location could not be seen: this identity lacks storage.buckets.get, which the lock does not need",
			fmt.Sprintf("look yourself: gcloud storage buckets describe gs://%s", r.store.bucket))}
	case err != nil:
		return []tenure.Finding{unseen("bucket", err)}
	}
	found := []tenure.Finding{b.retention(), b.hold(), b.versioning(), b.softDelete(), b.lifecycle(r.object), b.location(), b.class()}
	return append(found, b.access()...)
}

func (b *bucket) retention() tenure.Finding {
	switch {
	case b.RetentionPolicy != nil && b.RetentionPolicy.RetentionPeriod > 0:
		return finding(tenure.FindingUnsafe, "retention",
			fmt.Sprintf("the bucket keeps every object for %v before it may be overwritten: no lock can be renewed",
				time.Duration(b.RetentionPolicy.RetentionPeriod)*time.Second), otherBucket)
	case strings.EqualFold(b.ObjectRetention.Mode, "enabled"):
		return finding(tenure.FindingNote, "retention",
			"the bucket allows retention for single objects; one set on the record would refuse every renewal", "set none on the record")
	}
	return finding(tenure.FindingOK, "retention", "the bucket has no retention policy", "")
}

func (b *bucket) hold() tenure.Finding {
	if b.DefaultEventBasedHold {
		return finding(tenure.FindingUnsafe, "event-based hold", "the bucket puts a hold on every new object: no lock can be renewed",
			"switch it off (gcloud storage buckets update --no-default-event-based-hold), or "+otherBucket)
	}
	return finding(tenure.FindingOK, "event-based hold", "new objects get no hold", "")
}

func (b *bucket) versioning() tenure.Finding {
	if b.Versioning.Enabled {
		return finding(tenure.FindingWarning, "versioning", "the bucket keeps every version: each renewal adds one for ever, which is paid for",
			otherBucket+"; or add a lifecycle rule that deletes noncurrent versions after a day")
	}
	return finding(tenure.FindingOK, "versioning", "overwritten records are not kept as versions", "")
}

func (b *bucket) softDelete() tenure.Finding {
	if kept := time.Duration(b.SoftDeletePolicy.RetentionDurationSeconds) * time.Second; kept > 0 {
		return finding(tenure.FindingNote, "soft delete",
			fmt.Sprintf("overwritten records are kept for %v: about %d copies at one renewal every 2 s, some cents a month", kept, int64(kept/(2*time.Second))),
			"gcloud storage buckets update --clear-soft-delete, if nothing else in the bucket wants it")
	}
	return finding(tenure.FindingOK, "soft delete", "overwritten records are gone at once", "")
}

// lifecycle looks for rules that can meet the record itself.
func (b *bucket) lifecycle(object string) tenure.Finding {
	for _, rule := range b.Lifecycle.Rule {
		if !rule.meets(object) {
			continue
		}
		switch rule.Action.Type {
		case "Delete":
			return finding(tenure.FindingWarning, "lifecycle",
				"a rule deletes objects, this record too when nobody has renewed it for long: the next leader then waits 1.5 D",
				"exclude the record by matchesPrefix, or "+otherBucket)
		case "SetStorageClass":
			return finding(tenure.FindingNote, "lifecycle",
				fmt.Sprintf("a rule moves old objects to %s, this record too when nobody has renewed it for long: reading it then costs more", rule.Action.StorageClass), "")
		}
	}
	return finding(tenure.FindingOK, "lifecycle", "no rule meets the record", "")
}

// meets reports whether the rule may apply to the live object.
func (l *lifecycleRule) meets(object string) bool {
	c := &l.Condition
	if c.IsLive != nil && !*c.IsLive || c.NumNewerVersions > 0 || c.DaysSinceNoncurrentTime > 0 || c.NoncurrentTimeBefore != "" {
		return false
	}
	any := func(list []string, has func(s, part string) bool) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(part string) bool { return has(object, part) })
	}
	return any(c.MatchesPrefix, strings.HasPrefix) && any(c.MatchesSuffix, strings.HasSuffix)
}

func (b *bucket) location() tenure.Finding {
	where := fmt.Sprintf("%s (%s)", b.Location, b.LocationType)
	if b.LocationType == "" {
		return finding(tenure.FindingUnknown, "location", "the store does not tell", "")
	}
	if b.LocationType == "region" || b.LocationType == "zone" {
		return finding(tenure.FindingOK, "location", where, "")
	}
	return finding(tenure.FindingNote, "location",
		where+": consistent all over, but slower and dearer than one region; if a region is lost, the last records may be unavailable for a while",
		"a region near the candidates answers soonest")
}

func (b *bucket) class() tenure.Finding {
	switch b.StorageClass {
	case "":
		return finding(tenure.FindingUnknown, "storage class", "the store does not tell", "")
	case "NEARLINE", "COLDLINE", "ARCHIVE":
		return finding(tenure.FindingWarning, "storage class",
			fmt.Sprintf("%s: each renewal costs more and is charged for deleting the one before early", b.StorageClass), "use a bucket of class STANDARD")
	}
	return finding(tenure.FindingOK, "storage class", b.StorageClass, "")
}

func (b *bucket) access() (found []tenure.Finding) {
	if !b.IamConfiguration.UniformBucketLevelAccess.Enabled {
		found = append(found, finding(tenure.FindingNote, "access", "single objects may have access lists, so that IAM does not show who may write the record",
			"gcloud storage buckets update --uniform-bucket-level-access"))
	} else {
		found = append(found, finding(tenure.FindingOK, "access", "IAM alone says who may write the record", ""))
	}
	if b.IamConfiguration.PublicAccessPrevention != "enforced" {
		found = append(found, finding(tenure.FindingNote, "public access", "nothing prevents that the record becomes public",
			"gcloud storage buckets update --public-access-prevention"))
	}
	if b.Encryption.DefaultKmsKeyName != "" {
		found = append(found, finding(tenure.FindingNote, "encryption",
			"records are encrypted with a key of yours: while it is disabled, or its service away, nobody can renew or take the lock", ""))
	}
	if b.Billing.RequesterPays {
		found = append(found, finding(tenure.FindingWarning, "billing", "the bucket is a requester-pays one: only its own project's identities can use the lock",
			"use a bucket that its owner pays for"))
	}
	return found
}

// inspectRecord looks at the record as it is now.
func (r *Register) inspectRecord(ctx context.Context) []tenure.Finding {
	var o struct {
		TemporaryHold, EventBasedHold bool
		RetentionExpirationTime       time.Time
		Retention                     struct{ RetainUntilTime time.Time }
		ContentEncoding               string
	}
	fields := "temporaryHold,eventBasedHold,retentionExpirationTime,retention,contentEncoding"
	err := r.store.look(ctx, r.store.objectPath(r.object), url.Values{"fields": {fields}}, &o)
	var e *Error
	if errors.As(err, &e) && e.StatusCode == http.StatusNotFound {
		return nil // there is none yet
	}
	if err != nil {
		return []tenure.Finding{unseen("record", err)}
	}
	now := r.store.now()
	if o.TemporaryHold || o.EventBasedHold || o.RetentionExpirationTime.After(now) || o.Retention.RetainUntilTime.After(now) {
		return []tenure.Finding{finding(tenure.FindingUnsafe, "record", "the record itself is under a hold or a retention: it cannot be renewed",
			"release it, or use another path")}
	}
	return nil
}

var (
	neededRights = []string{"storage.objects.get", "storage.objects.list", "storage.objects.create", "storage.objects.delete"}
	// powers are what a lock never needs, worst first.
	powers = []string{"storage.buckets.setIamPolicy", "storage.objects.setIamPolicy", "storage.buckets.delete", "storage.buckets.update"}
)

func (r *Register) inspectRights(ctx context.Context) []tenure.Finding {
	var may struct{ Permissions []string }
	err := r.store.look(ctx, r.store.bucketPath()+"/iam/testPermissions", url.Values{"permissions": slices.Concat(neededRights, powers)}, &may)
	if err != nil {
		return []tenure.Finding{unseen("rights", err)}
	}
	has := func(p string) bool { return slices.Contains(may.Permissions, p) }
	lacks := slices.DeleteFunc(slices.Clone(neededRights), has)
	tooMuch := slices.DeleteFunc(slices.Clone(powers), func(p string) bool { return !has(p) })
	found := []tenure.Finding{finding(tenure.FindingOK, "rights", "this identity may read, write, overwrite and list objects", "")}
	if len(lacks) > 0 {
		found[0] = finding(tenure.FindingWarning, "rights",
			fmt.Sprintf("on the whole bucket this identity lacks %s: it cannot use the lock, unless a condition of its role grants that for the lock's name",
				strings.Join(lacks, ", ")), "grant it roles/storage.objectUser on the bucket")
	}
	if len(tooMuch) > 0 {
		found = append(found, finding(tenure.FindingNote, "needless rights",
			fmt.Sprintf("this identity also has %s, which a lock does not need", strings.Join(tooMuch, ", ")),
			"give it roles/storage.objectUser instead, on this bucket only"))
	}
	return found
}

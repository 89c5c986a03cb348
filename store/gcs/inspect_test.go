// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package gcs

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
)

// inspect answers for the bucket, its rights and the record what is given, or
// what the real server says where that is empty.
func inspect(t *testing.T, bucket, rights, record string) map[string]tenure.Finding {
	t.Helper()
	instead := func(body string) fault.Action {
		if body == "" {
			return fault.Pass
		}
		return fault.Instead(fault.Answer{Body: body, Header: http.Header{"Content-Type": {"application/json"}}})
	}
	r, _, p := proxied(t, func(req *http.Request) fault.Action {
		switch {
		case strings.HasSuffix(req.URL.Path, "/iam/testPermissions"):
			return instead(rights)
		case strings.Contains(req.URL.Path, "/o/"):
			return instead(record)
		}
		return instead(bucket)
	})
	found := map[string]tenure.Finding{}
	for _, f := range r.Inspect(t.Context()) {
		if f.Check == "" || f.Detail == "" || f.Level != tenure.FindingOK && f.Level != tenure.FindingNote && f.Level != tenure.FindingUnknown && f.Next == "" {
			t.Errorf("a finding without its words: %+v", f)
		}
		if _, twice := found[f.Check]; twice {
			t.Errorf("%q is found twice", f.Check)
		}
		found[f.Check] = f
	}
	for _, rec := range p.Records() {
		if rec.Method != http.MethodGet {
			t.Errorf("an inspection made the request %s", rec.Method)
		}
	}
	if n := len(p.Records()); n != 3 {
		t.Errorf("an inspection made %d requests", n)
	}
	return found
}

func TestInspect(t *testing.T) {
	const good = `"location":"EUROPE-WEST1","locationType":"region","storageClass":"STANDARD",` +
		`"iamConfiguration":{"uniformBucketLevelAccess":{"enabled":true},"publicAccessPrevention":"enforced"}`
	with := func(field string) string { return "{" + good + "," + field + "}" }
	const all = `{"permissions":["storage.objects.get","storage.objects.list","storage.objects.create","storage.objects.delete"]}`
	const none = `{"kind":"storage#object"}`
	rule := func(action, condition string) string {
		return with(fmt.Sprintf(`"lifecycle":{"rule":[{"action":{%s},"condition":{%s}}]}`, action, condition))
	}
	for _, tt := range []struct {
		bucket, rights, record, check string
		want                          tenure.FindingLevel
		says                          string
	}{
		{with(`"versioning":{"enabled":true}`), all, none, "versioning", tenure.FindingWarning, "each renewal adds one"},
		{with(`"versioning":{"enabled":false}`), all, none, "versioning", tenure.FindingOK, ""},
		{with(`"softDeletePolicy":{"retentionDurationSeconds":"604800"}`), all, none, "soft delete", tenure.FindingNote, "168h0m0s: about 302400 copies"},
		{with(`"softDeletePolicy":{"retentionDurationSeconds":"0"}`), all, none, "soft delete", tenure.FindingOK, ""},
		{with(`"retentionPolicy":{"retentionPeriod":"60","isLocked":true}`), all, none, "retention", tenure.FindingUnsafe, "no lock can be renewed"},
		{with(`"objectRetention":{"mode":"Enabled"}`), all, none, "retention", tenure.FindingNote, "single objects"},
		{with(`"defaultEventBasedHold":true`), all, none, "event-based hold", tenure.FindingUnsafe, "no lock can be renewed"},
		{rule(`"type":"Delete"`, `"age":30`), all, none, "lifecycle", tenure.FindingWarning, "1.5 D"},
		{rule(`"type":"Delete"`, `"age":30,"matchesPrefix":["locks/"]`), all, none, "lifecycle", tenure.FindingWarning, ""},
		{rule(`"type":"Delete"`, `"age":30,"matchesPrefix":["logs/"]`), all, none, "lifecycle", tenure.FindingOK, ""},
		{rule(`"type":"Delete"`, `"age":30,"matchesSuffix":[".tmp"]`), all, none, "lifecycle", tenure.FindingOK, ""},
		{rule(`"type":"Delete"`, `"isLive":false`), all, none, "lifecycle", tenure.FindingOK, ""},
		{rule(`"type":"Delete"`, `"numNewerVersions":3`), all, none, "lifecycle", tenure.FindingOK, ""},
		{rule(`"type":"Delete"`, `"daysSinceNoncurrentTime":1`), all, none, "lifecycle", tenure.FindingOK, ""},
		{rule(`"type":"AbortIncompleteMultipartUpload"`, `"age":1`), all, none, "lifecycle", tenure.FindingOK, ""},
		{rule(`"type":"SetStorageClass","storageClass":"COLDLINE"`, `"age":30`), all, none, "lifecycle", tenure.FindingNote, "COLDLINE"},
		{`{"location":"EU","locationType":"multi-region"}`, all, none, "location", tenure.FindingNote, "EU (multi-region)"},
		{"{" + good + "}", all, none, "location", tenure.FindingOK, "EUROPE-WEST1 (region)"},
		{`{"storageClass":"NEARLINE"}`, all, none, "storage class", tenure.FindingWarning, "early"},
		{`{"iamConfiguration":{}}`, all, none, "access", tenure.FindingNote, "access lists"},
		{`{"iamConfiguration":{}}`, all, none, "public access", tenure.FindingNote, "public"},
		{with(`"encryption":{"defaultKmsKeyName":"projects/p/k"}`), all, none, "encryption", tenure.FindingNote, "disabled"},
		{with(`"billing":{"requesterPays":true}`), all, none, "billing", tenure.FindingWarning, "requester-pays"},
		{"{" + good + "}", all, none, "rights", tenure.FindingOK, ""},
		{"{" + good + "}", `{"permissions":["storage.objects.get","storage.objects.list"]}`, none, "rights", tenure.FindingWarning, "storage.objects.create, storage.objects.delete"},
		{"{" + good + "}", `{}`, none, "rights", tenure.FindingWarning, "lacks"},
		{"{" + good + "}", `{"permissions":["storage.buckets.setIamPolicy"]}`, none, "needless rights", tenure.FindingNote, "setIamPolicy"},
		{"{" + good + "}", "<html>", none, "rights", tenure.FindingUnknown, "could not be seen"},
		{"{" + good + "}", all, `{"temporaryHold":true}`, "record", tenure.FindingUnsafe, "cannot be renewed"},
		{"{" + good + "}", all, `{"retention":{"mode":"Locked","retainUntilTime":"2999-01-01T00:00:00Z"}}`, "record", tenure.FindingUnsafe, ""},
	} {
		t.Run(tt.check+"/"+string(tt.want), func(t *testing.T) {
			f := inspect(t, tt.bucket, tt.rights, tt.record)[tt.check]
			if f.Level != tt.want || !strings.Contains(f.Detail, tt.says) {
				t.Errorf("%s %s %s:\n%+v, want %s and %q", tt.bucket, tt.rights, tt.record, f, tt.want, tt.says)
			}
		})
	}
}

// TestInspectServer: what the real server tells is understood, and what it does
// not know is unknown, not fine.
func TestInspectServer(t *testing.T) {
	found := inspect(t, "", "", "")
	for check, want := range map[string]tenure.FindingLevel{
		"versioning": tenure.FindingOK, "location": tenure.FindingOK, "storage class": tenure.FindingOK, "rights": tenure.FindingUnknown,
	} {
		if found[check].Level != want {
			t.Errorf("%s: %+v, want %s", check, found[check], want)
		}
	}
}

// TestInspectBlind: without rights everything is unknown, and nothing fine.
func TestInspectBlind(t *testing.T) {
	r, _, p := proxied(t, fault.Always(nil, fault.Instead(says(403, "forbidden", "x does not have storage.buckets.get access"))))
	found := r.Inspect(t.Context())
	for _, f := range found {
		if f.Level != tenure.FindingUnknown {
			t.Errorf("without rights: %+v", f)
		}
	}
	if len(found) != 3 || !strings.Contains(found[0].Next, "gcloud storage buckets describe") {
		t.Errorf("without rights: %+v", found)
	}
	p.SetRule(fault.Always(nil, fault.DelayAnswer(time.Hour)))
	start := time.Now()
	for _, f := range r.Inspect(within(t, 100*time.Millisecond)) {
		if f.Level != tenure.FindingUnknown {
			t.Errorf("without an answer: %+v", f)
		}
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
}

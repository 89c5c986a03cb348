// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tenure.dev"
	"tenure.dev/test/fault"
)

func level(t *testing.T, r *Register, check string) tenure.Finding {
	t.Helper()
	for _, f := range r.Inspect(t.Context()) {
		if f.Check == check {
			return f
		}
	}
	t.Fatalf("nothing was found about %s", check)
	return tenure.Finding{}
}

// TestInspectServer: what the real server tells.
func TestInspectServer(t *testing.T) {
	r := openAt(t, server.URL, newKey())
	got := map[string]tenure.FindingLevel{}
	for _, f := range r.Inspect(t.Context()) {
		got[f.Check] = f.Level
		if f.Detail == "" {
			t.Errorf("%s has no detail", f.Check)
		}
	}
	for check, want := range map[string]tenure.FindingLevel{
		"versioning": tenure.FindingOK, "object lock": tenure.FindingOK, "lifecycle": tenure.FindingUnknown,
		"replication": tenure.FindingUnknown, "replica": tenure.FindingUnknown, "encryption": tenure.FindingUnknown,
		"bucket policy": tenure.FindingNote, "transport": tenure.FindingNote,
	} {
		if got[check] != want {
			t.Errorf("%s is %q, want %q", check, got[check], want)
		}
	}
	mustWrite(t, r, "x", "")
	if f := level(t, r, "replica"); f.Level != tenure.FindingOK {
		t.Errorf("with a record: %+v", f)
	}
}

// TestVersionedBucket: on the real server the record works in a bucket that
// keeps versions, and the inspection warns of it.
func TestVersionedBucket(t *testing.T) {
	versioned := fmt.Sprintf("versioned%d", keys.Add(1))
	if err := server.MakeBucket(t.Context(), versioned); err != nil {
		t.Fatal(err)
	}
	if err := server.EnableVersioning(t.Context(), versioned); err != nil {
		t.Fatal(err)
	}
	l, err := tenure.Open(t.Context(), server.Lock(server.URL, versioned, "a/b"), tenure.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	r := l.Register.(*Register)
	if err := tenure.Probe(t.Context(), r.Sibling(".probe/x"), 0); err != nil {
		t.Error(err)
	}
	v := mustWrite(t, r, "one", "")
	mustWrite(t, r, "two", v)
	if f := level(t, r, "versioning"); f.Level != tenure.FindingWarning || f.Next == "" {
		t.Errorf("%+v", f)
	}
	if err := server.Delete(t.Context(), versioned, r.key); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Read(t.Context()); err == nil {
		t.Error("a deleted record was read")
	}
	// This server takes the mark of the deletion for a record: said so, the second
	// time it shows, and only by a person is it mended.
	if _, err := r.Write(t.Context(), nil, ""); !errors.Is(err, tenure.ErrConflict) {
		t.Errorf("create: %v", err)
	}
	if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("read: %v", err)
	}
	_, err = r.Write(t.Context(), nil, "")
	mustTell(t, "create again", err, "delete the marker")
}

func TestInspect(t *testing.T) {
	lifecycle := func(rule string) string {
		return "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status>" + rule + "</Rule></LifecycleConfiguration>"
	}
	replication := func(rule string) string {
		return "<ReplicationConfiguration><Role>x</Role><Rule><Status>Enabled</Status><Priority>1</Priority>" +
			"<Destination><Bucket>arn:aws:s3:::other</Bucket></Destination>" + rule + "</Rule></ReplicationConfiguration>"
	}
	const lock = `<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>`
	for _, tt := range []struct {
		check, query, body string
		want               tenure.FindingLevel
		say                string
	}{
		{"versioning", "versioning", "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>", tenure.FindingWarning, "old version"},
		{"versioning", "versioning", "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>", tenure.FindingOK, ""},
		{"object lock", "object-lock", lock + "</ObjectLockConfiguration>", tenure.FindingNote, ""},
		{"object lock", "object-lock", lock + "<Rule><DefaultRetention><Mode>COMPLIANCE</Mode><Days>7</Days></DefaultRetention></Rule></ObjectLockConfiguration>", tenure.FindingWarning, "7 days"},
		{"lifecycle", "lifecycle", lifecycle("<Filter><Prefix></Prefix></Filter><Expiration><Days>1</Days></Expiration>"), tenure.FindingWarning, "deletes"},
		{"lifecycle", "lifecycle", lifecycle("<Prefix>locks/</Prefix><Expiration><Days>1</Days></Expiration>"), tenure.FindingWarning, "deletes"},
		{"lifecycle", "lifecycle", lifecycle("<Filter><Prefix>logs/</Prefix></Filter><Expiration><Days>1</Days></Expiration>"), tenure.FindingOK, ""},
		{"lifecycle", "lifecycle", lifecycle("<Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter><Expiration><Days>1</Days></Expiration>"), tenure.FindingOK, ""},
		{"lifecycle", "lifecycle", lifecycle("<Filter/><Transition><Days>30</Days><StorageClass>GLACIER</StorageClass></Transition>"), tenure.FindingWarning, "storage class"},
		{"replication", "replication", replication("<Filter><Prefix>locks/</Prefix></Filter>"), tenure.FindingWarning, "arn:aws:s3:::other"},
		{"replication", "replication", replication("<Filter><Prefix>logs/</Prefix></Filter>"), tenure.FindingOK, ""},
		{"replication", "replication", replication("<Filter/><SourceSelectionCriteria><ReplicaModifications><Status>Enabled</Status></ReplicaModifications></SourceSelectionCriteria>"), tenure.FindingUnsafe, "two buckets decide"},
		{"encryption", "encryption", "<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>aws:kms</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>", tenure.FindingNote, "kms:GenerateDataKey"},
		{"encryption", "encryption", "<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>", tenure.FindingOK, ""},
	} {
		r, _ := behind(t, func(req *http.Request) fault.Action {
			if req.URL.Query().Has(tt.query) {
				return fault.Instead(fault.Answer{Header: http.Header{"Content-Type": {"application/xml"}}, Body: tt.body})
			}
			return fault.Pass
		})
		if f := level(t, r, tt.check); f.Level != tt.want || !strings.Contains(f.Detail, tt.say) {
			t.Errorf("%s: %+v; want %s and %q", tt.body, f, tt.want, tt.say)
		}
	}
}

// TestInspectRefused: rights that the lock does not need are not asked for.
func TestInspectRefused(t *testing.T) {
	r, p := behind(t, nil)
	mustWrite(t, r, "x", "")
	p.SetRule(func(req *http.Request) fault.Action {
		if !strings.HasSuffix(req.URL.Path, "/nightly") {
			return fault.Instead(s3Error(403, "AccessDenied", "Access Denied"))
		}
		return fault.Action{EditAnswer: func(a *http.Response) { a.Header.Set("X-Amz-Replication-Status", "REPLICA") }}
	})
	for _, f := range r.Inspect(t.Context()) {
		want := tenure.FindingUnknown
		switch f.Check {
		case "transport":
			continue
		case "replica":
			want = tenure.FindingUnsafe
		}
		if f.Level != want || want == tenure.FindingUnknown && !strings.Contains(f.Detail, "s3:Get") {
			t.Errorf("%+v; want %s", f, want)
		}
	}
}

func TestPolicy(t *testing.T) {
	const documented = `{"Version":"2012-10-17","Statement":[{"Sid":"OnlyConditionalWrites","Effect":"Deny","Principal":"*",
		"Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket/locks/*",
		"Condition":{"Null":{"s3:if-match":"true","s3:if-none-match":"true"}}}]}`
	for _, tt := range []struct {
		name, policy string
		want, fails  bool
	}{
		{"as documented", documented, true, false},
		{"one statement", `{"Statement":{"Effect":"Deny","Action":["s3:*"],"Resource":["*"],"Condition":{"Null":{"s3:if-match":"true","s3:if-none-match":["true"]}}}}`, true, false},
		{"allowed", strings.Replace(documented, "Deny", "Allow", 1), false, false},
		{"another key", strings.Replace(documented, "locks/*", "logs/*", 1), false, false},
		{"one condition", strings.Replace(documented, `,"s3:if-none-match":"true"`, "", 1), false, false},
		{"another action", strings.Replace(documented, "PutObject", "DeleteObject", 1), false, false},
		{"no JSON", "x", false, true},
	} {
		got, err := refusesUnconditional(tt.policy, "bucket", "locks/nightly")
		if got != tt.want || (err != nil) != tt.fails {
			t.Errorf("%s: %v, %v; want %v", tt.name, got, err, tt.want)
		}
	}
	r, _ := behind(t, func(req *http.Request) fault.Action {
		if req.URL.Query().Has("policy") {
			return fault.Instead(fault.Answer{Body: strings.Replace(documented, ":bucket/", ":"+bucket+"/", 1)})
		}
		return fault.Pass
	})
	if f := level(t, r, "bucket policy"); f.Level != tenure.FindingOK {
		t.Errorf("%+v", f)
	}
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"tenure.dev"
	"tenure.dev/test/fault"
)

// mustFind checks for findings, written "check level".
func mustFind(t testing.TB, found []tenure.Finding, want ...string) {
	t.Helper()
	for _, w := range want {
		ok := false
		for _, f := range found {
			ok = ok || f.Check+" "+string(f.Level) == w
		}
		if !ok {
			t.Errorf("no finding %q in %+v", w, found)
		}
	}
	for _, f := range found {
		if f.Check == "" || f.Level == "" || f.Detail == "" || (f.Level == tenure.FindingUnsafe || f.Level == tenure.FindingWarning) && f.Next == "" {
			t.Errorf("half a finding: %+v", f)
		}
	}
}

// TestInspect looks at a real account, whose soft delete is switched on for a
// while, and at the same with answers as other configurations give them.
func TestInspect(t *testing.T) {
	r, direct, p := proxied(t, nil)
	mustFind(t, r.Inspect(t.Context()), "versioning unknown")
	mustWrite(t, direct, "1", "")
	mustFind(t, r.Inspect(t.Context()),
		"versioning ok", "retention ok", "soft delete ok", "replication warning", "rights note", "lifecycle unknown")
	writes := func() (n int) {
		for _, rec := range p.Records() {
			if rec.Method != http.MethodGet && rec.Method != http.MethodHead {
				n++
			}
		}
		return n
	}
	if len(p.Records()) != 8 || writes() != 0 {
		t.Errorf("two inspections made %d requests, %d of them writes; want 8 and none", len(p.Records()), writes())
	}

	service := func(enabled string) {
		body := `<?xml version="1.0" encoding="utf-8"?><StorageServiceProperties><DeleteRetentionPolicy><Enabled>` + enabled +
			`</Enabled><Days>7</Days></DeleteRetentionPolicy></StorageServiceProperties>`
		a, err := direct.store.do(context.Background(), request{method: http.MethodPut, account: true,
			query: url.Values{"restype": {"service"}, "comp": {"properties"}}, body: []byte(body)})
		if err != nil || a.status != http.StatusAccepted {
			t.Fatalf("set soft delete: %+v, %v", a, err)
		}
	}
	service("true")
	mustFind(t, r.Inspect(t.Context()), "soft delete warning")
	service("false")

	edit := func(path string, fields ...string) fault.Rule {
		return fault.Always(func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, path) },
			fault.Action{EditAnswer: func(r *http.Response) {
				for i := 0; i < len(fields); i += 2 {
					r.Header.Set(fields[i], fields[i+1])
				}
			}})
	}
	blob, container := "/"+direct.blob, "/"+direct.store.container
	for _, tt := range []struct {
		rule fault.Rule
		want []string
	}{
		{edit(blob, "x-ms-version-id", "2026-01-01T00:00:00.0000000Z"), []string{"versioning warning"}},
		{edit(blob, "x-ms-lease-status", "locked"), []string{"azure lease unsafe"}},
		{edit(blob, "x-ms-legal-hold", "true"), []string{"retention unsafe"}},
		{edit(blob, "x-ms-immutability-policy-until-date", "Tue, 01 Jan 2030 00:00:00 GMT"), []string{"retention unsafe"}},
		{edit(blob, "x-ms-access-tier", "Cool"), []string{"access tier warning"}},
		{edit(blob, "x-ms-access-tier", "Archive"), []string{"access tier unsafe"}},
		{edit(blob, "x-ms-blob-type", "PageBlob"), []string{"record unsafe"}},
		{edit(container, "x-ms-has-immutability-policy", "true"), []string{"retention unsafe"}},
		{edit(container, "x-ms-has-legal-hold", "true"), []string{"retention unsafe"}},
		{edit(container, "x-ms-immutable-storage-with-versioning-enabled", "true"), []string{"retention warning"}},
		{edit(container, "x-ms-blob-public-access", "blob"), []string{"public access warning"}},
		{edit(container, "x-ms-sku-name", "Standard_LRS"), []string{"replication ok"}},
		{edit(container, "x-ms-sku-name", "Premium_ZRS"), []string{"replication ok"}},
		{edit(container, "x-ms-sku-name", "Standard_GZRS"), []string{"replication warning"}},
		{edit(container, "x-ms-sku-name", "Standard_RAGZRS"), []string{"replication warning"}},
		{fault.Always(nil, fault.Instead(azureSays(403, "AuthorizationPermissionMismatch"))),
			[]string{"record unknown", "retention unknown", "soft delete unknown", "replication unknown"}},
		{fault.Always(nil, fault.Instead(fault.HTML(200))), []string{"record unknown", "retention unknown", "soft delete unknown", "replication unknown"}},
	} {
		p.SetRule(tt.rule)
		mustFind(t, r.Inspect(t.Context()), tt.want...)
	}

	p.SetRule(nil)
	signed := withSAS(t, direct, p.Addr(), makeSAS(t, "rwdlacup", time.Now().Add(time.Hour)))
	mustFind(t, signed.Inspect(t.Context()), "rights note", "credential warning")
	signed = withSAS(t, direct, p.Addr(), makeSAS(t, "rcwl", time.Now().Add(30*24*time.Hour)))
	mustFind(t, signed.Inspect(t.Context()), "credential note")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := time.Now()
	mustFind(t, r.Inspect(ctx), "record unknown", "replication unknown")
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("with an ended context it took %v", d)
	}
	mustFind(t, direct.Sibling("a b").(*Register).Inspect(t.Context()), "register unknown")
}

// TestNow tells the store's time, whether or not there is a record.
func TestNow(t *testing.T) {
	r, direct, p := proxied(t, fault.Always(nil, fault.Action{EditAnswer: func(r *http.Response) {
		r.Header.Set("Date", "Tue, 01 Jan 2030 00:00:00 GMT")
	}}))
	for _, value := range []string{"", "there is one"} {
		if value != "" {
			mustWrite(t, direct, value, "")
		}
		if now, err := r.Now(t.Context()); err != nil || now.Unix() != 1893456000 {
			t.Errorf("now: %v, %v", now, err)
		}
	}
	if len(p.Records()) != 2 {
		t.Errorf("%d requests for two readings", len(p.Records()))
	}
	p.SetRule(fault.Always(nil, fault.Instead(azureSays(500, "InternalError"))))
	_, err := r.Now(t.Context())
	mustSay(t, err, "ask the time of", "500")
}

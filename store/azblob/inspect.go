// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"tenure.dev"
)

// Inspect implements [tenure.Inspector]. It blocks for four requests, at most
// until ctx ends: the properties of the record, the container, the blob service
// and the account. The last two are seldom visible to who may use a lock.
func (r *Register) Inspect(ctx context.Context) []tenure.Finding {
	if r.refused != nil {
		return []tenure.Finding{unseen("register", r.refused)}
	}
	var found []tenure.Finding
	found = append(found, r.inspectBlob(ctx)...)
	found = append(found, r.store.inspectContainer(ctx)...)
	found = append(found, r.store.inspectService(ctx)...)
	found = append(found, r.store.inspectAccount(ctx)...)
	found = append(found, r.store.inspectRights()...)
	return append(found, tenure.Finding{
		Check: "lifecycle", Level: tenure.FindingUnknown,
		Detail: "rules that delete or move blobs by age are not visible through Blob Storage's own interface",
		Next:   fmt.Sprintf("see that none covers the lock: az storage account management-policy show --account-name %s", r.store.account),
	})
}

// look makes one request of an inspection. The error says why nothing can be
// told from the answer.
func (s *store) look(ctx context.Context, q request) (*answer, error) {
	a, err := s.do(ctx, q)
	if err == nil && a.status != http.StatusOK {
		err = s.explain(a)
	}
	return a, err
}

func unseen(check string, err error) tenure.Finding {
	return tenure.Finding{Check: check, Level: tenure.FindingUnknown, Detail: "could not be seen: " + err.Error()}
}

func ok(check, detail string) tenure.Finding {
	return tenure.Finding{Check: check, Level: tenure.FindingOK, Detail: detail}
}

const versioningNext = "use an account of its own for locks, without versioning; or add a lifecycle rule that deletes previous versions after a day"

// inspectBlob looks at the record as it is now.
func (r *Register) inspectBlob(ctx context.Context) []tenure.Finding {
	a, err := r.store.look(ctx, request{method: http.MethodHead, blob: r.blob})
	var e *Error
	if errors.As(err, &e) && e.Code == "BlobNotFound" {
		return []tenure.Finding{{Check: "versioning", Level: tenure.FindingUnknown,
			Detail: "shows on a record only, and there is none yet", Next: "look again when the lock has been used"}}
	}
	if err != nil {
		return []tenure.Finding{unseen("record", err)}
	}
	if err := a.checkBlob(); err != nil {
		return []tenure.Finding{{Check: "record", Level: tenure.FindingUnsafe, Detail: err.Error(), Next: "choose another path"}}
	}
	h := a.header
	var found []tenure.Finding
	if id := h.Get("x-ms-version-id"); id != "" {
		found = append(found, tenure.Finding{Check: "versioning", Level: tenure.FindingWarning,
			Detail: "the account keeps every version of a blob: each renewal adds one, which is paid for and makes listings slow", Next: versioningNext})
	} else {
		found = append(found, ok("versioning", "the record has no versions"))
	}
	if h.Get("x-ms-lease-status") == "locked" {
		found = append(found, tenure.Finding{Check: "azure lease", Level: tenure.FindingUnsafe,
			Detail: "somebody has taken an Azure lease on the blob, which refuses every write", Next: "find out who, then az storage blob lease break"})
	}
	if until := h.Get("x-ms-immutability-policy-until-date"); until != "" || h.Get("x-ms-legal-hold") == "true" {
		found = append(found, tenure.Finding{Check: "retention", Level: tenure.FindingUnsafe,
			Detail: "the record itself is under an immutability policy or a legal hold and cannot be overwritten", Next: "use another path in a container without"})
	}
	switch tier := h.Get("x-ms-access-tier"); tier {
	case "Cool", "Cold":
		found = append(found, tenure.Finding{Check: "access tier", Level: tenure.FindingWarning,
			Detail: fmt.Sprintf("the record is in the tier %s: each renewal costs more and is charged for deleting the one before early", tier),
			Next:   "set the account's default access tier to hot, or use another account"})
	case "Archive":
		found = append(found, tenure.Finding{Check: "access tier", Level: tenure.FindingUnsafe,
			Detail: "the record is in the archive tier and can be neither read nor replaced", Next: "az storage blob set-tier --tier Hot"})
	}
	return found
}

func (s *store) inspectContainer(ctx context.Context) []tenure.Finding {
	a, err := s.look(ctx, request{method: http.MethodHead, query: url.Values{"restype": {"container"}}})
	if err != nil {
		return []tenure.Finding{unseen("retention", err)}
	}
	h := a.header
	var found []tenure.Finding
	switch {
	case h.Get("x-ms-has-legal-hold") == "true" || h.Get("x-ms-has-immutability-policy") == "true":
		found = append(found, tenure.Finding{Check: "retention", Level: tenure.FindingUnsafe,
			Detail: "the container has an immutability policy or a legal hold: records cannot be overwritten, so no lock can be renewed",
			Next:   "use a container without"})
	case h.Get("x-ms-immutable-storage-with-versioning-enabled") == "true":
		found = append(found, tenure.Finding{Check: "retention", Level: tenure.FindingWarning,
			Detail: "the container allows immutability by version, and so keeps every version: each renewal adds one that may not be deletable",
			Next:   "use a container without"})
	default:
		found = append(found, ok("retention", "the container has no immutability policy and no legal hold"))
	}
	if access := h.Get("x-ms-blob-public-access"); access != "" {
		found = append(found, tenure.Finding{Check: "public access", Level: tenure.FindingWarning,
			Detail: fmt.Sprintf("anybody may read (%s) without a credential: records name hosts and endpoints", access),
			Next:   "az storage container set-permission --public-access off"})
	}
	return found
}

// inspectService looks at soft delete.
func (s *store) inspectService(ctx context.Context) []tenure.Finding {
	a, err := s.look(ctx, request{method: http.MethodGet, account: true, query: url.Values{"restype": {"service"}, "comp": {"properties"}}})
	if err != nil {
		return []tenure.Finding{unseen("soft delete", err)}
	}
	var p struct {
		XMLName               xml.Name `xml:"StorageServiceProperties"`
		DeleteRetentionPolicy struct {
			Enabled bool
			Days    int
		}
	}
	if err := xml.Unmarshal(a.body, &p); err != nil {
		return []tenure.Finding{unseen("soft delete", fmt.Errorf("%w: %w", errNotTheStore, err))}
	}
	if d := p.DeleteRetentionPolicy; d.Enabled {
		return []tenure.Finding{{Check: "soft delete", Level: tenure.FindingWarning,
			Detail: fmt.Sprintf("soft delete of blobs keeps what is overwritten for %d days: each renewal adds one, which is paid for and makes listings slow", d.Days),
			Next:   "use an account of its own for locks, without soft delete of blobs"}}
	}
	return []tenure.Finding{ok("soft delete", "it is off for blobs")}
}

// inspectAccount looks at replication.
func (s *store) inspectAccount(ctx context.Context) []tenure.Finding {
	a, err := s.look(ctx, request{method: http.MethodHead, query: url.Values{"restype": {"account"}, "comp": {"properties"}}})
	if err != nil {
		return []tenure.Finding{unseen("replication", err)}
	}
	sku := a.header.Get("x-ms-sku-name")
	switch {
	case sku == "":
		return []tenure.Finding{unseen("replication", errors.New("the account does not say how it is replicated"))}
	case strings.HasSuffix(sku, "GRS") || strings.HasSuffix(sku, "GZRS"): // RAGRS and RAGZRS too
		return []tenure.Finding{{Check: "replication", Level: tenure.FindingWarning,
			Detail: fmt.Sprintf("%s copies to another region later: a failover of the account loses the last seconds or minutes, the newest terms included", sku),
			Next:   "use LRS or ZRS for locks; else stop every candidate before a failover, and for the longest lease duration after one"}}
	}
	return []tenure.Finding{ok("replication", sku+": one region, each write is in all copies before it is answered")}
}

// inspectRights tells what is needless of the credential, as far as it says so
// itself.
func (s *store) inspectRights() []tenure.Finding {
	now := s.now()
	switch r := s.rights(now); r.kind {
	case "key":
		return []tenure.Finding{{Check: "rights", Level: tenure.FindingNote,
			Detail: "an account key may do everything in the account",
			Next:   "use a workload or managed identity with the least role, see the package's documentation"}}
	case "sas":
		var found []tenure.Finding
		if needless := strings.Trim(strings.NewReplacer("r", "", "c", "", "w", "", "l", "").Replace(r.permissions), " "); needless != "" {
			found = append(found, tenure.Finding{Check: "rights", Level: tenure.FindingNote,
				Detail: fmt.Sprintf("the shared access signature may do more than is needed: %s of sp=%s", needless, r.permissions),
				Next:   "make one with sp=rcwl"})
		}
		if left := r.ends.Sub(now); !r.ends.IsZero() {
			f := tenure.Finding{Check: "credential", Level: tenure.FindingNote, Next: "renew it in time and restart, or use an identity"}
			if left.Hours() < 7*24 {
				f.Level = tenure.FindingWarning
			}
			f.Detail = fmt.Sprintf("the shared access signature ends at %s; then no term can be renewed", r.ends.UTC().Format("2006-01-02 15:04 MST"))
			found = append(found, f)
		}
		return found
	}
	return []tenure.Finding{{Check: "rights", Level: tenure.FindingUnknown,
		Detail: "an identity's roles are not visible through Blob Storage's own interface",
		Next:   "see that it has no more than blobs/read and blobs/write on the container: az role assignment list --assignee ID"}}
}

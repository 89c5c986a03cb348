// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev"
)

// certificateSoon is how long before its end a client certificate is worth a
// warning.
const certificateSoon = 7 * 24 * time.Hour

// Inspect implements [tenure.Inspector]. It makes about a dozen requests, all of
// which every authenticated user may make, besides reading the Lease.
func (r *Register) Inspect(ctx context.Context) []tenure.Finding {
	findings := []tenure.Finding{r.inspectServer(ctx)}
	findings = append(findings, r.inspectTransport()...)
	findings = append(findings, r.inspectRights(ctx)...)
	findings = append(findings, r.inspectLease(ctx)...)
	return append(findings, tenure.Finding{
		Check: "other writers", Level: tenure.FindingNote,
		Detail: "who else may write this Lease cannot be read; whoever may can take the lock",
		Next:   "give locks a namespace of their own, and look with kubectl auth can-i update leases -n " + r.namespace + " --as=…",
	})
}

func (r *Register) inspectServer(ctx context.Context) tenure.Finding {
	f := tenure.Finding{Check: "server", Level: tenure.FindingOK}
	var info struct {
		GitVersion string `json:"gitVersion"`
	}
	switch _, err := r.access.do(ctx, request{method: http.MethodGet, path: "/version"}, &info); {
	case err != nil:
		f.Level, f.Detail = tenure.FindingUnknown, fmt.Sprintf("the API server's version: %v", err)
	case info.GitVersion == "":
		f.Level, f.Detail = tenure.FindingUnknown, "what answers tells no version of Kubernetes"
		f.Next = "check the server's address in the kubeconfig"
	default:
		f.Detail = "Kubernetes " + info.GitVersion
	}
	return f
}

func (r *Register) inspectTransport() []tenure.Finding {
	cl, err := r.access.open()
	if err != nil {
		return []tenure.Finding{{Check: "transport", Level: tenure.FindingUnknown, Detail: err.Error()}}
	}
	f := tenure.Finding{Check: "transport", Level: tenure.FindingOK, Detail: "TLS, the server's certificate is checked"}
	switch {
	case cl.plain:
		f.Level, f.Detail = tenure.FindingWarning, "no TLS: whoever is between reads the credentials and can answer for the API server"
		f.Next = "use the server's https address"
	case cl.insecure:
		f.Level, f.Detail = tenure.FindingWarning, "the server's certificate is not checked (insecure-skip-tls-verify): whoever is between can answer for it"
		f.Next = "give the kubeconfig certificate-authority-data"
	}
	found := []tenure.Finding{f}
	if end := cl.certificateEnd(); !end.IsZero() {
		f := tenure.Finding{Check: "client certificate", Level: tenure.FindingOK, Detail: "valid until " + end.UTC().Format(time.RFC3339)}
		if time.Until(end) < certificateSoon {
			f.Level, f.Next = tenure.FindingWarning, "renew it; a file is read again by itself, also while somebody leads"
		}
		found = append(found, f)
	}
	return found
}

// rights are those that an election needs, those that it does better with, and
// those that it never uses.
var rights = []struct {
	verb, group, resource string
	lacking, having       tenure.FindingLevel
	why                   string
}{
	{"get", "coordination.k8s.io", "leases", tenure.FindingUnsafe, tenure.FindingOK, "the lock cannot be read"},
	{"create", "coordination.k8s.io", "leases", tenure.FindingWarning, tenure.FindingOK, "the lock, probes and candidates' entries cannot be made"},
	{"update", "coordination.k8s.io", "leases", tenure.FindingUnsafe, tenure.FindingOK, "the lock cannot be taken"},
	{"list", "coordination.k8s.io", "leases", tenure.FindingWarning, tenure.FindingOK, "candidates cannot be listed"},
	{"watch", "coordination.k8s.io", "leases", tenure.FindingWarning, tenure.FindingOK, "a change is seen at the next poll only"},
	{"delete", "coordination.k8s.io", "leases", tenure.FindingOK, tenure.FindingWarning, "a record that is deleted takes its epoch with it"},
	{"deletecollection", "coordination.k8s.io", "leases", tenure.FindingOK, tenure.FindingWarning, "it would delete every lock of the namespace"},
	{"get", "", "secrets", tenure.FindingOK, tenure.FindingWarning, "whoever gets hold of these credentials reads them"},
	{"create", "", "pods", tenure.FindingOK, tenure.FindingWarning, "whoever gets hold of these credentials runs programs"},
}

func (r *Register) inspectRights(ctx context.Context) []tenure.Finding {
	needed := tenure.Finding{Check: "rights", Level: tenure.FindingOK, Detail: "all that an election needs"}
	needless := tenure.Finding{Check: "needless rights", Level: tenure.FindingOK, Detail: "none of those looked for"}
	var lacks, has []string
	for _, right := range rights {
		what := strings.TrimSuffix(right.verb+" "+right.resource+"."+right.group, ".")
		allowed, err := r.allowed(ctx, right.verb, right.group, right.resource)
		switch {
		case err != nil:
			unknown := fmt.Sprintf("the rights of this user (%s): %v", what, err)
			needed.Level, needed.Detail = tenure.FindingUnknown, unknown
			needless.Level, needless.Detail = tenure.FindingUnknown, unknown
			return []tenure.Finding{needed, needless}
		case !allowed && right.lacking != tenure.FindingOK:
			lacks = append(lacks, what+" ("+right.why+")")
			if needed.Level != tenure.FindingUnsafe {
				needed.Level = right.lacking
			}
		case allowed && right.having != tenure.FindingOK:
			has = append(has, what+" ("+right.why+")")
			needless.Level = right.having
		}
	}
	if len(lacks) > 0 {
		needed.Detail = "this user may not, in namespace " + r.namespace + ": " + strings.Join(lacks, ", ")
		needed.Next = "grant it the Role in the documentation of tenure.dev/kube"
	}
	if len(has) > 0 {
		needless.Detail = "this user may also, in namespace " + r.namespace + ": " + strings.Join(has, ", ")
		needless.Next = "use a user or service account of its own for the lock"
	}
	return []tenure.Finding{needed, needless}
}

func (r *Register) allowed(ctx context.Context, verb, group, resource string) (bool, error) {
	attributes := &authorizationv1.ResourceAttributes{Namespace: r.namespace, Verb: verb, Group: group, Resource: resource}
	if resource == "leases" && (verb == "get" || verb == "update" || verb == "delete") {
		attributes.Name = r.name()
	}
	review := authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec:     authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes},
	}
	var answer authorizationv1.SelfSubjectAccessReview
	_, err := r.access.do(ctx, request{method: http.MethodPost, path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: review}, &answer)
	return answer.Status.Allowed, err
}

// inspectLease looks at who has written the Lease.
func (r *Register) inspectLease(ctx context.Context) []tenure.Finding {
	f := tenure.Finding{Check: "stock electors", Level: tenure.FindingOK, Detail: "only Tenure has written the Lease"}
	lease, err := r.get(ctx)
	switch {
	case errors.Is(err, tenure.ErrNotExist):
		f.Detail = "there is no Lease yet"
		return []tenure.Finding{f}
	case err != nil:
		return []tenure.Finding{{Check: f.Check, Level: tenure.FindingUnknown, Detail: err.Error()}}
	}
	var others []string
	for _, m := range lease.ManagedFields {
		if m.Manager != fieldManager && !slices.Contains(others, m.Manager) {
			others = append(others, m.Manager)
		}
	}
	slices.Sort(others)
	holder := deref(lease.Spec.HolderIdentity)
	switch {
	case stranger(lease):
		f.Level = tenure.FindingWarning
		f.Detail = fmt.Sprintf("the Lease was last written by an elector that is not Tenure, holder %q: it is waited out for 1.5 of its duration", holder)
		f.Next = "let each program use one kind of elector, or see in the documentation of tenure.dev/kube what is left of the guarantees"
	case lease.Spec.Strategy != nil:
		f.Level = tenure.FindingWarning
		f.Detail = "the Lease has a strategy: the control plane chooses its holder"
		f.Next = "choose another name for the lock"
	case len(others) > 0:
		f.Level = tenure.FindingNote
		f.Detail = "the Lease was also written by " + strings.Join(others, ", ")
	}
	return []tenure.Finding{f}
}

// stranger reports whether somebody else has written the spec.
func stranger(lease *coordinationv1.Lease) bool {
	_, err := tenure.ParseRecord(extract(lease))
	return err != nil && deref(lease.Spec.HolderIdentity) != ""
}

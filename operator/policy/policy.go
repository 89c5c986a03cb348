// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy writes the admission policies that gate Leases. They are what
// refuses: everything else only tells them when.
//
// For each MultiClusterLease there are two. One has the object as its parameter
// and decides who may take or keep a gated Lease. A missing parameter refuses all
// that its match constraints cover, for every user, before its conditions are
// read: so it covers exactly the gated names. The other has no parameter and
// refuses deletion, and names that are made up; resourceNames does not bind a
// deletion of many, so it goes by the object that would be deleted. A third, for all objects, keeps their status to
// Tenure.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev/api/v1alpha1"
)

// Labels of all that this package writes.
const (
	LabelManaged   = "tenure.dev/gate"
	LabelNamespace = "tenure.dev/gate-namespace"
	// AnnotationName is the gate's name, which may be too long for a label.
	AnnotationName = "tenure.dev/gate-name"
	// AnnotationRevision is the hash of the policy that a denial names.
	AnnotationRevision = "tenure.dev/revision"
)

// StatusPolicyName is the name of the policy that all objects share.
const StatusPolicyName = "tenure-status"

// A Gate is what the policies of one object are made from.
type Gate struct {
	// Namespace and Name are the MultiClusterLease's.
	Namespace, Name string
	// Leases are the names that are gated. They are never fewer than before.
	Leases []string
	// Account is the user name under which Tenure writes: it is exempt.
	Account string
}

// Set is a policy and its binding.
type Set struct {
	Policy  *admissionv1.ValidatingAdmissionPolicy
	Binding *admissionv1.ValidatingAdmissionPolicyBinding
}

// Revision is what a denial by the policy says.
func (s Set) Revision() string { return s.Policy.Annotations[AnnotationRevision] }

// Of returns the gate of an object.
func Of(mcl *v1alpha1.MultiClusterLease, account string) Gate {
	g := Gate{Namespace: mcl.Namespace, Name: mcl.Name, Account: account}
	for _, l := range mcl.Spec.Leases {
		g.Leases = append(g.Leases, l.Name)
	}
	slices.Sort(g.Leases)
	return g
}

// PolicyName is the name of the gate's policies: the second one ends in -delete.
func (g Gate) PolicyName() string {
	name := "tenure-gate." + g.Namespace + "." + g.Name
	if len(name) > 200 {
		sum := sha256.Sum256([]byte(name))
		name = name[:180] + "-" + hex.EncodeToString(sum[:8])
	}
	return name
}

// The expressions. A write that sets no holder passes: giving up is always
// allowed, as long as the write can be stamped. One that does is judged by the
// grant, by the clock of the API server that stamps it, and by what it says of
// itself. A no-op is never stamped, and so passes nothing: renewTime has to grow.
const (
	exprHolder    = "has(object.spec) && has(object.spec.holderIdentity) ? object.spec.holderIdentity : ''"
	exprOldHolder = "oldObject != null && has(oldObject.spec) && has(oldObject.spec.holderIdentity) ? oldObject.spec.holderIdentity : ''"
	exprOpen      = "has(params.status) && params.status.leading && params.status.epoch > params.status.closedEpoch"
	// A write that changes something has an entry in managedFields with the time
	// of this server. Which it is cannot be told: a client may plant others, name
	// its manager as it likes, and have written within the same second.
	exprStamps = "has(object.metadata.managedFields) ? object.metadata.managedFields.filter(m, has(m.time)) : []"
	exprBefore = "oldObject != null && has(oldObject.metadata.managedFields) ? oldObject.metadata.managedFields.filter(m, has(m.time)).map(m, m.time) : []"
	// So all have to be in time, but for those that were there before and are so
	// far past the grant that they were planted: they would lock out everybody.
	exprInTime = "variables.stamps.all(m, timestamp(m.time) < timestamp(params.status.validUntil) || (m.time in variables.before && timestamp(m.time) > timestamp(params.status.validUntil) + duration('24h')))"
	exprGrant  = "has(params.status) && has(params.status.leases) ? params.status.leases.filter(l, l.name == object.metadata.name) : []"
	exprFree   = "variables.holder == ''"
	// A name that the API server is to make up, of a prefix cut off at 58 and five
	// more letters, is not known yet and so is in no resourceNames.
	exprGenerated = "has(object.metadata.generateName) && object.metadata.generateName != '' && %s.exists(n, size(n) <= 63 && size(n) > 5 && " +
		"n.substring(0, size(n) - 5) == object.metadata.generateName.substring(0, size(object.metadata.generateName) > 58 ? 58 : size(object.metadata.generateName)))"
)

func (g Gate) says(revision string) string {
	return fmt.Sprintf("'tenure gate %s/%s rev=%s epoch=' + (has(params.status) ? string(params.status.epoch) + ' closed=' + string(params.status.closedEpoch)"+
		" + ' leading=' + string(params.status.leading) + ' until=' + string(params.status.validUntil) : 'none closed=none leading=false until=none')"+
		" + ' lease=' + object.metadata.name + ': '", g.Namespace, g.Name, revision)
}

func (g Gate) validations() []admissionv1.Validation {
	deny := func(expression, message string) admissionv1.Validation {
		reason := metav1.StatusReasonForbidden
		return admissionv1.Validation{Expression: expression, MessageExpression: "variables.says + " + message, Reason: &reason}
	}
	return []admissionv1.Validation{
		deny(exprFree+" || variables.open",
			"'this cluster does not lead' + (has(params.status) && has(params.status.leader) && params.status.leader != '' ? ', ' + params.status.leader + ' does' : '')"),
		deny(exprFree+" || has(object.spec.renewTime)", "'renewTime is missing'"),
		deny(exprFree+" || !variables.open || !has(object.spec.renewTime) || timestamp(object.spec.renewTime) < timestamp(params.status.validUntil)",
			"'renewTime is past the grant'"),
		deny(exprFree+" || variables.holder != variables.oldHolder || !has(oldObject.spec.renewTime) || !has(object.spec.renewTime) || timestamp(object.spec.renewTime) > timestamp(oldObject.spec.renewTime)",
			"'renewTime does not grow'"),
		// Once cleared, managedFields stay empty, and no write is stamped again.
		deny("size(variables.stamps) > 0", "'the write clears managedFields, or they were empty before: it has no stamp of this API server'"),
		deny(exprFree+" || !variables.open || "+exprInTime,
			"'the grant is over by this API server\\'s clock'"),
		deny(exprFree+" || !variables.open || (size(variables.grant) == 1 && has(object.spec.leaseDurationSeconds) && object.spec.leaseDurationSeconds > 0 && object.spec.leaseDurationSeconds <= variables.grant[0].leaseDurationSeconds)",
			"(size(variables.grant) == 0 ? 'the grant does not cover this Lease yet' : 'leaseDurationSeconds is longer than the declared ' + string(variables.grant[0].leaseDurationSeconds))"),
	}
}

// Sets returns the policies and bindings of the gate, in the order in which they
// are to be written.
func (g Gate) Sets() []Set {
	fail := admissionv1.Fail
	spec := admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy:    &fail,
		ParamKind:        &admissionv1.ParamKind{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MultiClusterLease"},
		MatchConstraints: g.match(g.Leases, admissionv1.Create, admissionv1.Update),
		MatchConditions: []admissionv1.MatchCondition{
			{Name: "not-tenure", Expression: fmt.Sprintf("request.userInfo.username != %s", quote(g.Account))},
		},
		Variables: []admissionv1.Variable{
			{Name: "holder", Expression: exprHolder},
			{Name: "oldHolder", Expression: exprOldHolder},
			{Name: "open", Expression: exprOpen},
			{Name: "stamps", Expression: exprStamps},
			{Name: "before", Expression: exprBefore},
			{Name: "grant", Expression: exprGrant},
		},
		Validations: g.validations(),
	}
	revision := hash(spec)
	spec.Variables = append(spec.Variables, admissionv1.Variable{Name: "says", Expression: g.says(revision)})
	deny := admissionv1.DenyAction
	gate := g.set(g.PolicyName(), revision, spec, &admissionv1.ParamRef{
		Name: g.Name, Namespace: g.Namespace, ParameterNotFoundAction: &deny,
	})

	reason := metav1.StatusReasonForbidden
	names, err := json.Marshal(g.Leases)
	if err != nil {
		panic(err) // a list of strings
	}
	exempt := []string{g.Account, "system:serviceaccount:kube-system:namespace-controller", "system:serviceaccount:kube-system:generic-garbage-collector"}
	users, err := json.Marshal(exempt)
	if err != nil {
		panic(err)
	}
	del := admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy:    &fail,
		MatchConstraints: g.match(nil, admissionv1.Delete, admissionv1.Create),
		MatchConditions: []admissionv1.MatchCondition{
			{Name: "gated", Expression: fmt.Sprintf("request.operation == 'DELETE' ? oldObject != null && oldObject.metadata.name in %s : "+exprGenerated, names, names)},
			{Name: "others", Expression: fmt.Sprintf("!(request.userInfo.username in %s)", users)},
		},
		Validations: []admissionv1.Validation{{
			Expression: "false", Reason: &reason,
			MessageExpression: fmt.Sprintf("'tenure gate %s/%s: ' + (request.operation == 'DELETE' ? 'a gated Lease is not deleted; tenure ungate opens the gate' : 'the generated name might be that of a gated Lease')", g.Namespace, g.Name),
		}},
	}
	return []Set{gate, g.set(g.PolicyName()+"-delete", hash(del), del, nil)}
}

// Revision is what a denial by the gate's current policy says.
func (g Gate) Revision() string { return g.Sets()[0].Revision() }

func (g Gate) match(names []string, operations ...admissionv1.OperationType) *admissionv1.MatchResources {
	rule := admissionv1.NamedRuleWithOperations{ResourceNames: names}
	rule.Operations = operations
	rule.APIGroups, rule.APIVersions, rule.Resources = []string{"coordination.k8s.io"}, []string{"*"}, []string{"leases"}
	scope, equivalent := admissionv1.AllScopes, admissionv1.Equivalent
	rule.Scope = &scope
	return &admissionv1.MatchResources{
		MatchPolicy:       &equivalent,
		ObjectSelector:    &metav1.LabelSelector{},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": g.Namespace}},
		ResourceRules:     []admissionv1.NamedRuleWithOperations{rule},
	}
}

func (g Gate) set(name, revision string, spec admissionv1.ValidatingAdmissionPolicySpec, ref *admissionv1.ParamRef) Set {
	meta := metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{LabelManaged: "true", LabelNamespace: g.Namespace},
		Annotations: map[string]string{AnnotationName: g.Namespace + "/" + g.Name, AnnotationRevision: revision},
	}
	return Set{
		Policy: &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: spec},
		Binding: &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: *meta.DeepCopy(), Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ParamRef: ref, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		}},
	}
}

// Status returns the policy that keeps the status of every MultiClusterLease to
// Tenure, and its validUntil within maxGrant seconds of the server's own stamp.
func Status(account string, maxGrant int) Set {
	fail, scope, equivalent := admissionv1.Fail, admissionv1.AllScopes, admissionv1.Equivalent
	reason := metav1.StatusReasonForbidden
	rule := admissionv1.NamedRuleWithOperations{}
	rule.Operations = []admissionv1.OperationType{admissionv1.Update}
	rule.APIGroups, rule.APIVersions, rule.Resources = []string{v1alpha1.GroupVersion.Group}, []string{"*"}, []string{"multiclusterleases/status"}
	rule.Scope = &scope
	spec := admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fail,
		MatchConstraints: &admissionv1.MatchResources{
			MatchPolicy: &equivalent, ResourceRules: []admissionv1.NamedRuleWithOperations{rule},
			NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		},
		Variables: []admissionv1.Variable{
			{Name: "stamps", Expression: exprStamps},
			{Name: "before", Expression: exprBefore},
			{Name: "fresh", Expression: "variables.stamps.filter(m, !(m.time in variables.before))"},
		},
		Validations: []admissionv1.Validation{
			{
				Expression: "request.userInfo.username == " + quote(account), Reason: &reason,
				Message: "tenure: the status of a MultiClusterLease is its gate's grant: only " + account + " writes it",
			},
			{
				Expression: fmt.Sprintf("!has(object.status) || !object.status.leading || (size(variables.fresh) > 0 ? variables.fresh : variables.stamps).exists(m, timestamp(object.status.validUntil) <= timestamp(m.time) + duration('%ds'))", maxGrant),
				Reason:     &reason,
				Message:    fmt.Sprintf("tenure: validUntil is more than %d s past this API server's clock", maxGrant),
			},
		},
	}
	return Gate{Account: account}.set(StatusPolicyName, hash(spec), spec, nil)
}

func hash(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // types of the API, which can be marshalled
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6])
}

// quote makes a CEL string literal.
func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

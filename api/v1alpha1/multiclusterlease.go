// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MultiClusterLease names a lock that clusters share, and the Leases of this
// namespace that only pods of the leading cluster may hold. Its status is this
// cluster's grant: what the API server's admission policies go by.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=mcl,categories=tenure
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Leader",type=string,JSONPath=`.status.leader`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.leaderSince`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Valid until",type=string,JSONPath=`.status.validUntil`
// +kubebuilder:printcolumn:name="Enforced",type=string,JSONPath=`.status.conditions[?(@.type=="Enforced")].status`
// +kubebuilder:printcolumn:name="Failover",type=string,JSONPath=`.status.failover`,priority=1
// +kubebuilder:printcolumn:name="Survives outage",type=string,JSONPath=`.status.outage`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || has(self.status)",message="status once set stays set: the gate goes by it"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(self.status) || (self.status.epoch >= oldSelf.status.epoch && self.status.closedEpoch >= oldSelf.status.closedEpoch)",message="epoch and closedEpoch never fall"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !self.status.leading || self.status.epoch > self.status.closedEpoch",message="a closed epoch stays closed: leading requires epoch > closedEpoch"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(self.status) || !oldSelf.status.leading || self.status.leading || self.status.closedEpoch >= oldSelf.status.epoch",message="closing sets closedEpoch to the epoch in the same write"
type MultiClusterLease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec MultiClusterLeaseSpec `json:"spec"`
	// +optional
	Status *MultiClusterLeaseStatus `json:"status,omitempty"`
}

// MultiClusterLeaseList is a list of them.
//
// +kubebuilder:object:root=true
type MultiClusterLeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MultiClusterLease `json:"items"`
}

// MultiClusterLeaseSpec is the same in all clusters.
//
// +kubebuilder:validation:XValidation:rule="self.lock == oldSelf.lock",message="lock is immutable: tenure ungate in every cluster, then create another object"
// +kubebuilder:validation:XValidation:rule="oldSelf.leases.all(o, self.leases.exists(n, n.name == o.name))",message="a gated Lease cannot be taken off the list: tenure ungate opens it"
// +kubebuilder:validation:XValidation:rule="size(self.clusters) == size(self.clusters.filter(c, self.clusters.exists_one(d, d == c)))",message="clusters names one twice"
type MultiClusterLeaseSpec struct {
	// Lock is the lock's URL, the same in all clusters: gs://bucket/path,
	// k8s://namespace/name, … {namespace} and {name} are this object's.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Lock string `json:"lock"`

	// Clusters are the members: the identities of all clusters whose copies are
	// gated by this lock. Nobody leads before all of them have gated.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Clusters []string `json:"clusters"`

	// Leases are the coordination.k8s.io Leases of this namespace that are gated.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Leases []GatedLease `json:"leases"`

	// Enforcement is Enforced (default): this cluster leads only while its API
	// servers were seen to refuse. Advisory leads without that.
	//
	// +kubebuilder:validation:Enum=Enforced;Advisory
	// +kubebuilder:default=Enforced
	// +optional
	Enforcement Enforcement `json:"enforcement,omitempty"`

	// LeaseDurationSeconds is the lock's D. By default it follows from the
	// Leases; a smaller one than follows is refused.
	//
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=3600
	// +optional
	LeaseDurationSeconds int32 `json:"leaseDurationSeconds,omitempty"`

	// PeriodSeconds is P: how often the leader renews the lock; default 3.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`

	// SkewSeconds is how far the clocks of this cluster's API servers may be from
	// each other, with a second of granularity; default 2.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	// +optional
	SkewSeconds int32 `json:"skewSeconds,omitempty"`
}

// Enforcement says whether a cluster leads without having been seen to refuse.
type Enforcement string

// The kinds of enforcement.
const (
	Enforced Enforcement = "Enforced"
	Advisory Enforcement = "Advisory"
)

// GatedLease is a Lease by which a controller elects its leader, as that
// controller was told to.
//
// +kubebuilder:validation:XValidation:rule="has(self.renewDeadlineSeconds) == has(self.retryPeriodSeconds)",message="renewDeadlineSeconds and retryPeriodSeconds are declared together or not at all"
// +kubebuilder:validation:XValidation:rule="!has(self.renewDeadlineSeconds) || !has(self.leaseDurationSeconds) || self.renewDeadlineSeconds < self.leaseDurationSeconds",message="renewDeadlineSeconds must be below leaseDurationSeconds"
type GatedLease struct {
	// Name is the Lease's name.
	//
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// LeaseDurationSeconds is the longest that the controller may write into the
	// Lease; default 15.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=15
	// +optional
	LeaseDurationSeconds int32 `json:"leaseDurationSeconds,omitempty"`

	// RenewDeadlineSeconds and RetryPeriodSeconds are those of the controller's
	// elector. From them follows how long it may go on after its last accepted
	// renewal; without them 1.5 times leaseDurationSeconds is taken, which does
	// not suffice for settings such as 137/107/26.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	RenewDeadlineSeconds int32 `json:"renewDeadlineSeconds,omitempty"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	RetryPeriodSeconds int32 `json:"retryPeriodSeconds,omitempty"`

	// ReleaseMeansStopped declares that the controller empties the Lease only
	// after its work has ended. client-go's ReleaseOnCancel does not do that by
	// itself.
	//
	// +optional
	ReleaseMeansStopped bool `json:"releaseMeansStopped,omitempty"`
}

// State says what a cluster does about an object.
type State string

// The states.
const (
	// StateGating is before the gate has been proved to be closed.
	StateGating State = "Gating"
	// StateBlocked is closed, and does not contend: a condition says why.
	StateBlocked State = "Blocked"
	// StateStandby is closed, and contending.
	StateStandby State = "Standby"
	// StateLeading is open.
	StateLeading State = "Leading"
	// StateClosing is refused, and waiting for those who held a Lease to stop.
	StateClosing State = "Closing"
)

// MultiClusterLeaseStatus is this cluster's grant, and what is known.
type MultiClusterLeaseStatus struct {
	// Leading: pods of this cluster may hold the gated Leases, until validUntil.
	Leading bool `json:"leading"`
	// Epoch is the fencing token of this cluster's newest term, or 0.
	Epoch int64 `json:"epoch"`
	// ClosedEpoch is the newest epoch at which the gate was closed for good.
	ClosedEpoch int64 `json:"closedEpoch"`
	// ValidUntil is when the grant ends, by the API servers' clocks.
	ValidUntil metav1.MicroTime `json:"validUntil"`
	// Leases are those that the grant covers, as it was computed.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Leases []GrantedLease `json:"leases,omitempty"`

	// +optional
	State State `json:"state,omitempty"`
	// Leader is the cluster that holds the lock, as last seen.
	//
	// +optional
	Leader string `json:"leader,omitempty"`
	// +optional
	LeaderSince *metav1.Time `json:"leaderSince,omitempty"`
	// LeaderEpoch is the epoch of the lock's record, as last seen.
	//
	// +optional
	LeaderEpoch int64 `json:"leaderEpoch,omitempty"`
	// Lineage is the lock's lineage: another one is another lock.
	//
	// +optional
	Lineage string `json:"lineage,omitempty"`
	// LeaseDurationSeconds is the lock's D, and Arithmetic how it follows.
	//
	// +optional
	LeaseDurationSeconds int32 `json:"leaseDurationSeconds,omitempty"`
	// +optional
	Arithmetic string `json:"arithmetic,omitempty"`
	// Failover is the longest that a healthy standby takes to open its gate when
	// this cluster dies.
	//
	// +optional
	Failover string `json:"failover,omitempty"`
	// Outage is how long the lock store may be away without a controller losing
	// its Lease, with these settings.
	//
	// +optional
	Outage string `json:"outage,omitempty"`
	// Members are the clusters' entries beside the lock.
	//
	// +listType=map
	// +listMapKey=name
	// +optional
	Members []MemberStatus `json:"members,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GrantedLease is a gated Lease as the grant was computed for it.
type GrantedLease struct {
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// LeaseDurationSeconds is the longest that is admitted.
	LeaseDurationSeconds int32 `json:"leaseDurationSeconds"`
	// StopAfterSeconds is how long its holder may go on after its last accepted
	// renewal.
	StopAfterSeconds int32 `json:"stopAfterSeconds"`
}

// MemberStatus is what a cluster's entry beside the lock says.
type MemberStatus struct {
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Ready: it has gated all names of this object.
	Ready bool `json:"ready"`
	// +optional
	Message string `json:"message,omitempty"`
}

// The types of conditions, and their reasons.
const (
	// ConditionEnforced: every API server was seen to refuse at this state.
	ConditionEnforced = "Enforced"
	// ConditionMembersReady: every member has gated every name.
	ConditionMembersReady = "MembersReady"
	// ConditionLockReachable: the lock store answers, and the record can be read.
	ConditionLockReachable = "LockReachable"
	// ConditionSettingsAccepted: spec fits, also with the other members'.
	ConditionSettingsAccepted = "SettingsAccepted"
	// ConditionLeading: this cluster leads.
	ConditionLeading = "Leading"

	ReasonRefused           = "RefusedEverywhere"
	ReasonNotProbed         = "NotProbed"
	ReasonNotRefused        = "NotRefused"
	ReasonPoliciesMissing   = "PoliciesMissing"
	ReasonPoliciesForbidden = "PoliciesForbidden"
	ReasonClockSkew         = "ClockSkew"
	ReasonAdvisory          = "Advisory"
	ReasonAllReady          = "AllReady"
	ReasonNotReady          = "NotReady"
	ReasonUnknownMember     = "UnknownMember"
	ReasonNotAMember        = "NotAMember"
	ReasonReachable         = "Reachable"
	ReasonUnreachable       = "Unreachable"
	ReasonRecordUnusable    = "RecordUnusable"
	ReasonDuplicateIdentity = "DuplicateIdentity"
	ReasonBadLock           = "BadLock"
	ReasonAccepted          = "Accepted"
	ReasonTooShort          = "LeaseDurationTooShort"
	ReasonSettingsDiffer    = "SettingsDiffer"
	ReasonLeaseGatedTwice   = "LeaseGatedTwice"
	ReasonLeading           = "Leading"
	ReasonStandby           = "Standby"
	ReasonClosing           = "Closing"
	ReasonGating            = "Gating"
	ReasonYielded           = "Yielded"
)

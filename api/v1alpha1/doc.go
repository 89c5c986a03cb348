// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API of Tenure in a cluster: the group tenure.dev,
// version v1alpha1. Its Go types are the source of the custom resource
// definitions in crds.
//
// +kubebuilder:object:generate=true
// +groupName=tenure.dev
package v1alpha1

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "embed"

// CRDs holds the custom resource definitions of this package's types, as YAML,
// in the folder crds.
//
//go:embed crds/*.yaml
var CRDs embed.FS

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package install has what a cluster needs before Tenure runs in it: the custom
// resource definitions, two service accounts and their rights.
package install

import (
	"bytes"
	_ "embed"
	"fmt"
	"io/fs"
	"text/template"

	"tenure.dev/api/v1alpha1"
)

//go:embed manifests.yaml.tmpl
var text string

var tmpl = template.Must(template.New("manifests").Option("missingkey=error").Parse(text))

// Options say what to install.
type Options struct {
	// System is Tenure's own namespace.
	System string
	// Namespaces are those whose Leases are gated; none for all.
	Namespaces []string
	// Policies gives Tenure's account the right to write admission policies.
	Policies bool
}

// Manifests returns everything as YAML documents, in the order in which they are to
// be applied.
func Manifests(o Options) ([]byte, error) {
	var out bytes.Buffer
	crds, err := fs.Glob(v1alpha1.CRDs, "crds/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("install: %w", err)
	}
	for _, name := range crds {
		b, err := v1alpha1.CRDs.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("install: %w", err)
		}
		out.Write(bytes.TrimSuffix(b, []byte("\n")))
		out.WriteString("\n---\n")
	}
	places := o.Namespaces
	if len(places) == 0 {
		places = []string{""}
	}
	err = tmpl.Execute(&out, struct {
		Options
		Places []string
	}{o, places})
	if err != nil {
		return nil, fmt.Errorf("install: %w", err)
	}
	return out.Bytes(), nil
}

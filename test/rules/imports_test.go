// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import "strings"

// stdlibOnly: the root module, which is the core, imports the standard library
// and itself. Its tests too: a requirement of a test is a requirement.
var stdlibOnly = rule{
	name: "the core imports the standard library only",
	check: func(r *repo) (found []string) {
		root := r.moduleOf(".")
		for _, s := range r.sources {
			if r.moduleOf(s.path).dir != "." {
				continue
			}
			for _, i := range s.file.Imports {
				p := importPath(i)
				first, _, _ := strings.Cut(p, "/")
				dir, own := strings.CutPrefix(p+"/", root.path+"/")
				switch {
				case p == "C":
					found = append(found, s.at(i.Pos(), "cgo is not for the core"))
				case own && r.moduleOf(strings.TrimSuffix(dir, "/")).dir != ".":
					found = append(found, s.at(i.Pos(), "%s is another module: move what needs it there", p))
				case !own && strings.Contains(first, "."):
					found = append(found, s.at(i.Pos(), "%s is not of the standard library: what needs it is a module of its own", p))
				}
			}
		}
		return found
	},
	plant: map[string]string{
		"internal/x/x.go":      header + "// Package x is not.\npackage x\n\nimport _ \"github.com/spf13/cobra\"\nimport \"C\"\n",
		"internal/x/x_test.go": header + "package x\n\nimport (\n\t\"os\"\n\n\t\"tenure.dev/store/mem\"\n\t\"tenure.dev/storetest\"\n)\n",
	},
	want: []string{
		"internal/x/x.go:7: github.com/spf13/cobra is not of the standard library",
		"internal/x/x.go:8: cgo",
		"internal/x/x_test.go:10: tenure.dev/storetest is another module",
	},
}

// noTestingInProduction: what a program links never registers test flags.
var noTestingInProduction = rule{
	name: "no production package imports testing",
	check: func(r *repo) (found []string) {
		suite := r.moduleOf(".").path + "/storetest"
		for _, s := range r.sources {
			if s.isTest() || r.moduleOf(s.path).path == suite {
				continue
			}
			for _, i := range s.file.Imports {
				p := importPath(i)
				if p == "testing" || strings.HasPrefix(p, "testing/") || p == suite || strings.HasPrefix(p, suite+"/") {
					found = append(found, s.at(i.Pos(), "%s belongs into _test.go files and storetest", p))
				}
			}
		}
		return found
	},
	plant: map[string]string{
		"store/mem/mem.go": header + "// Package mem is.\npackage mem\n\nimport (\n\t_ \"testing/synctest\"\n\t_ \"tenure.dev/storetest\"\n)\n",
	},
	want: []string{"mem.go:8: testing/synctest", "mem.go:9: tenure.dev/storetest"},
}

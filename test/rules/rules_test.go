// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"maps"
	"strings"
	"testing"
)

// A rule finds violations. It names each by path, line where there is one, and
// what to do about it.
type rule struct {
	name  string
	check func(*repo) []string

	// plant is laid over sound and breaks the rule; want holds a part of each
	// violation that it causes, in order.
	plant map[string]string
	want  []string
}

var rules = []rule{
	stdlibOnly, noTestingInProduction,
	packageDoc, licenceHeader, fileLength, folderNames, documentedNames, noSkips,
	rootWithoutRequire, workspaceComplete, replaceSiblings,
	ownWordsOnly,
	namedTests, namedTargets, relativeLinks,
	generatedKnown,
}

const header = "// Copyright The Tenure Authors\n// SPDX-License-Identifier: Apache-2.0\n\n"

// sound is a tree that breaks no rule.
var sound = map[string]string{
	"go.mod":                           "module tenure.dev\n\ngo 1.26\n",
	"go.work":                          "go 1.26\n\nuse (\n\t.\n\t./cmd/tenure\n\t./storetest\n)\n",
	"Makefile":                         "check: lint ## all\n\tgo test -run 'TestSound$$' ./...\nlint fix:\n\ttrue\nX := y\n",
	"README.md":                        "# Tenure\n\nRun `make check`, see [docs](docs/guarantees.md#what-holds) and [web](https://example.org/x).\n",
	"docs/guarantees.md":               "# Guarantees\n\n## What holds\n\nMuch (tests: TestSound), also `TestSound/sub`. [Up](../README.md), [folder](../docs).\n",
	"doc.go":                           header + "// Package tenure is sound.\npackage tenure\n",
	"tenure.go":                        header + "package tenure\n\nimport \"errors\"\n\n// ErrOdd is known.\nvar ErrOdd = errors.New(\"odd\")\n\n// Options are few.\ntype Options struct {\n\t// A counts.\n\tA int\n\tB int // B counts as well.\n}\n",
	"tenure_test.go":                   header + "package tenure\n\nimport \"testing\"\n\nfunc TestSound(t *testing.T) { t.Log(ErrOdd) }\n",
	"store/mem/mem.go":                 header + "// Package mem is a store.\npackage mem\n\nimport _ \"tenure.dev\"\n",
	"storetest/go.mod":                 "module tenure.dev/storetest\n\ngo 1.26\n\nrequire tenure.dev v0.0.0\n\nreplace tenure.dev => ../\n",
	"storetest/doc.go":                 header + "// Package storetest is the test.\npackage storetest\n\nimport (\n\t_ \"testing\"\n\n\t_ \"tenure.dev\"\n)\n",
	"cmd/tenure/go.mod":                "module tenure.dev/cmd/tenure\n\ngo 1.26\n\nrequire (\n\ttenure.dev v0.0.0\n)\n",
	"cmd/tenure/main.go":               header + "// Command tenure is sound.\npackage main\n\nfunc main() {}\n",
	"cmd/tenure/testdata/script/a.txt": "exec tenure version\n-- f --\nskip me not\n",
}

// TestRules holds this repository to the rules.
func TestRules(t *testing.T) {
	r := mustThisRepo(t)
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			for _, v := range rule.check(r) {
				t.Error(v)
			}
		})
	}
}

// TestRulesFind sees that each rule passes what is sound and finds what is not.
func TestRulesFind(t *testing.T) {
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			for _, v := range rule.check(newRepo(sound)) {
				t.Errorf("in the sound tree: %s", v)
			}
			planted := maps.Clone(sound)
			maps.Copy(planted, rule.plant)
			got := rule.check(newRepo(planted))
			if len(rule.want) == 0 || len(got) != len(rule.want) {
				t.Fatalf("got %d violations, want %d (and some):\n%s", len(got), len(rule.want), strings.Join(got, "\n"))
			}
			for i, want := range rule.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("violation %d is %q, want one with %q", i, got[i], want)
				}
			}
		})
	}
}

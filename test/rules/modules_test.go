// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// toolsModule holds what the checks are made with. It is kept out of the
// workspace so that it never picks the version of anything that is linked.
const toolsModule = "test/tools"

// testbedModules pin the real servers that tests run. Each is a world of its
// own, and none is linked with anything here.
const testbedModules = "test/testbed/"

// rootWithoutRequire: whoever imports the core gets the core.
var rootWithoutRequire = rule{
	name: "the root module requires nothing",
	check: func(r *repo) (found []string) {
		root := r.moduleOf(".")
		for _, verb := range []string{"require", "replace", "tool"} {
			for _, args := range directives(root.text, verb) {
				found = append(found, fmt.Sprintf("go.mod: %s %s: what needs it is a module of its own", verb, args[0]))
			}
		}
		return found
	},
	plant: map[string]string{"go.mod": "module tenure.dev\n\ngo 1.26\n\nrequire example.org/a v1.0.0 // indirect\n\nreplace (\n\texample.org/a => ../a\n)\n"},
	want:  []string{"go.mod: require example.org/a", "go.mod: replace example.org/a"},
}

// workspaceComplete: a module that is not in go.work is not tested.
var workspaceComplete = rule{
	name: "go.work lists every module",
	check: func(r *repo) (found []string) {
		var used []string
		for _, args := range directives(r.files["go.work"], "use") {
			dir := path.Clean(args[0])
			used = append(used, dir)
			if _, ok := r.files[path.Join(dir, "go.mod")]; !ok {
				found = append(found, "go.work: use "+args[0]+": there is no such module")
			}
		}
		for _, m := range r.modules {
			if m.dir != toolsModule && !strings.HasPrefix(m.dir, testbedModules) && !slices.Contains(used, m.dir) {
				found = append(found, "go.work: lacks "+m.dir+": go work use ./"+m.dir)
			}
		}
		return found
	},
	plant: map[string]string{
		"go.work":                  "go 1.26\n\nuse .\nuse ./storetest\nuse ./gone\n",
		"test/tools/go.mod":        "module tenure.dev/test/tools\n",
		"test/testbed/kube/go.mod": "module tenure.dev/test/testbed/kube\n",
	},
	want: []string{"use ./gone: there is no such module", "lacks cmd/tenure"},
}

// replaceSiblings: a library may point at its siblings in this repository, a
// binary never replaces, or "go install" of it would be refused.
var replaceSiblings = rule{
	name: "libraries replace siblings only, binaries nothing",
	check: func(r *repo) (found []string) {
		for _, m := range r.modules {
			for _, args := range directives(m.text, "replace") {
				i := slices.Index(args, "=>")
				if i < 1 || i+1 >= len(args) {
					continue // the go command refuses it
				}
				name, target := args[0], args[i+1]
				sibling := slices.ContainsFunc(r.modules, func(o module) bool {
					return o.path == name && o.dir == path.Join(m.dir, target)
				})
				switch {
				case strings.HasPrefix(m.dir, "cmd/"):
					found = append(found, fmt.Sprintf("%s/go.mod: replace %s: the module of a binary never replaces", m.dir, name))
				case !sibling && !strings.HasPrefix(m.dir, testbedModules): // k8s.io/kubernetes cannot be built otherwise
					found = append(found, fmt.Sprintf("%s/go.mod: replace %s => %s: not a sibling of this repository", m.dir, name, target))
				}
			}
		}
		return found
	},
	plant: map[string]string{
		"cmd/tenure/go.mod": "module tenure.dev/cmd/tenure\n\nreplace tenure.dev => ../..\n",
		"storetest/go.mod":  "module tenure.dev/storetest\n\nreplace (\n\ttenure.dev v0.0.0 => ../\n\texample.org/a => example.org/b v1.0.0\n\ttenure.dev/cmd/tenure => ../../elsewhere\n)\n",
	},
	want: []string{
		"cmd/tenure/go.mod: replace tenure.dev: the module of a binary",
		"storetest/go.mod: replace example.org/a => example.org/b",
		"storetest/go.mod: replace tenure.dev/cmd/tenure => ../../elsewhere",
	},
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// packageDoc: each package says what it is.
var packageDoc = rule{
	name: "each package has a doc comment",
	check: func(r *repo) (found []string) {
		byDir := make(map[string][]source)
		for _, s := range r.sources {
			byDir[path.Dir(s.path)] = append(byDir[path.Dir(s.path)], s)
		}
		for _, dir := range slices.Sorted(maps.Keys(byDir)) {
			files := byDir[dir]
			if slices.ContainsFunc(files, func(s source) bool { return !s.isTest() }) {
				files = slices.DeleteFunc(files, source.isTest)
			}
			name := files[0].file.Name.Name
			start := "Package " + name + " "
			if name == "main" {
				start = "Command "
			}
			if !slices.ContainsFunc(files, func(s source) bool { return strings.HasPrefix(s.file.Doc.Text(), start) }) {
				found = append(found, fmt.Sprintf("%s: no file has a package comment that begins with %q", dir, start))
			}
		}
		return found
	},
	plant: map[string]string{
		"store/mem/mem.go":   header + "package mem\n",
		"cmd/tenure/main.go": header + "// Package main is.\npackage main\n",
	},
	want: []string{`cmd/tenure: no file has a package comment that begins with "Command "`, "store/mem: no file"},
}

// licenceHeader: two lines, the same everywhere.
var licenceHeader = rule{
	name: "each Go file begins with the licence header",
	check: func(r *repo) (found []string) {
		for _, p := range r.paths {
			if path.Ext(p) == ".go" && !strings.HasPrefix(r.files[p], header) {
				found = append(found, p+": does not begin with the two lines of the licence header and an empty one")
			}
		}
		return found
	},
	plant: map[string]string{
		"a.go": "package tenure\n",
		"b.go": strings.TrimSuffix(header, "\n") + "package tenure\n", // would be the package comment
	},
	want: []string{"a.go: ", "b.go: "},
}

const (
	wantLines = 500 // more is worth a warning
	maxLines  = 600
)

// fileLength: what is longer is two things.
var fileLength = rule{
	name: "no file is over 600 lines",
	check: func(r *repo) (found []string) {
		for _, p := range r.paths {
			if n := lines(r, p); n > maxLines {
				found = append(found, fmt.Sprintf("%s: %d lines, at most %d: split it by what it does", p, n, maxLines))
			}
		}
		return found
	},
	plant: map[string]string{
		"a.go":            strings.Repeat("\n", 601),
		"b.go":            strings.Repeat("\n", 600),
		"testdata/c.json": strings.Repeat("\n", 601),
		"go.sum":          strings.Repeat("\n", 601),
	},
	want: []string{"a.go: 601 lines"},
}

// lines counts the lines of p if it is a file that people write and read.
func lines(r *repo, p string) int {
	switch path.Base(p) {
	case "go.mod", "go.sum", "go.work.sum", "LICENSE", "CHANGELOG.md":
		return 0
	}
	if inTestdata(p) {
		return 0
	}
	return strings.Count(r.files[p], "\n")
}

// TestLongFiles warns before fileLength fails.
func TestLongFiles(t *testing.T) {
	r := mustThisRepo(t)
	for _, p := range r.paths {
		if n := lines(r, p); n > wantLines {
			t.Logf("%s has %d lines: split it before it has %d", p, n, maxLines)
		}
	}
}

// folderNames: a folder is named by what is in it.
var folderNames = rule{
	name: "no folder is named by what it is not",
	check: func(r *repo) (found []string) {
		bad := []string{"pkg", "src", "util", "utils", "common", "types", "helper", "helpers", "misc", "shared", "lib"}
		dirs := make(map[string]bool)
		for _, p := range r.paths {
			if inTestdata(p) {
				continue
			}
			for d := path.Dir(p); d != "."; d = path.Dir(d) {
				dirs[d] = true
			}
		}
		for _, d := range slices.Sorted(maps.Keys(dirs)) {
			if slices.Contains(bad, path.Base(d)) {
				found = append(found, d+": name the folder by what it holds")
			}
		}
		return found
	},
	plant: map[string]string{"internal/util/x/a.go": header + "// Package x is.\npackage x\n", "pkg/a.txt": ""},
	want:  []string{"internal/util: ", "pkg: "},
}

var sentinel = regexp.MustCompile(`^Err[A-Z]`)

// documentedNames: a sentinel says when it is returned, a field of an options
// struct what it does, its unit and its default. The lint sees to the rest.
var documentedNames = rule{
	name: "sentinels and fields of options are documented",
	check: func(r *repo) (found []string) {
		for _, s := range r.sources {
			if s.isTest() {
				continue
			}
			for _, d := range s.file.Decls {
				if d, ok := d.(*ast.GenDecl); ok {
					found = append(found, undocumented(s, d)...)
				}
			}
		}
		return found
	},
	plant: map[string]string{
		"a.go": header + "package tenure\n\nimport \"errors\"\n\n// Two of them.\nvar (\n\tErrA = errors.New(\"\")\n\t// ErrB is fine.\n\tErrB = errors.New(\"\")\n)\n\nvar ErrC error\n",
		"b.go": header + "package tenure\n\n// RunOptions is.\ntype RunOptions struct {\n\tOptions\n\tA, B int\n\tc int\n\tD int // D is.\n\n\t// E and F are.\n\tE int\n\tF int\n\tG int\n\n\tH int\n}\n",
	},
	want: []string{"a.go:10: ErrA", "a.go:15: ErrC", "b.go:9: RunOptions.A", "b.go:9: RunOptions.B", "b.go:16: RunOptions.G", "b.go:18: RunOptions.H"},
}

func undocumented(s source, d *ast.GenDecl) (found []string) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			documented := spec.Doc != nil || spec.Comment != nil || d.Doc != nil && !d.Lparen.IsValid()
			for _, n := range spec.Names {
				if sentinel.MatchString(n.Name) && !documented {
					found = append(found, s.at(n.Pos(), "%s has no comment: say when it is returned", n.Name))
				}
			}
		case *ast.TypeSpec:
			st, ok := spec.Type.(*ast.StructType)
			if !ok || d.Tok != token.TYPE || !spec.Name.IsExported() || !strings.HasSuffix(spec.Name.Name, "Options") {
				continue
			}
			shared := "" // the comment of the fields above that a line without one may share
			for i, f := range st.Fields.List {
				line := func(p token.Pos) int { return s.fset.Position(p).Line }
				if f.Doc != nil || i == 0 || line(f.Pos()) > line(st.Fields.List[i-1].End())+1 {
					shared = f.Doc.Text()
				}
				for _, n := range f.Names {
					told := slices.Contains(strings.FieldsFunc(shared, func(c rune) bool { return !unicode.IsLetter(c) }), n.Name)
					if n.IsExported() && f.Doc == nil && f.Comment == nil && !told {
						found = append(found, s.at(n.Pos(), "%s.%s has no comment: say what it does, its unit and its default", spec.Name, n.Name))
					}
				}
			}
		}
	}
	return found
}

// maySkip names the files whose tests may skip, with the reason. It is empty.
var maySkip = map[string]string{}

var scriptSkip = regexp.MustCompile(`(?m)^(\[[^]\n]*\]\s*)*skip\b`)

// noSkips: a check that did not run is no check.
var noSkips = rule{
	name: "no test is skipped",
	check: func(r *repo) (found []string) {
		for _, s := range r.sources {
			if maySkip[s.path] != "" || !s.imports("testing") {
				continue
			}
			ast.Inspect(s.file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				sel, ok := call.Fun.(*ast.SelectorExpr)
				if ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
					found = append(found, s.at(n.Pos(), "%s: make the test run, or fail and say what it needs", sel.Sel.Name))
				}
				return true
			})
		}
		for _, p := range r.paths {
			script, _, _ := strings.Cut("\n"+r.files[p], "\n-- ")
			if inTestdata(p) && path.Ext(p) == ".txt" && maySkip[p] == "" && scriptSkip.MatchString(script) {
				found = append(found, p+": the script skips: make it run")
			}
		}
		return found
	},
	plant: map[string]string{
		"a_test.go":                        header + "package tenure\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {\n\tif testing.Short() {\n\t\tt.Skip(\"long\")\n\t}\n}\n",
		"cmd/tenure/testdata/script/a.txt": "[!linux] skip 'no'\n",
	},
	want: []string{"a_test.go:10: Skip", "script/a.txt: the script skips"},
}

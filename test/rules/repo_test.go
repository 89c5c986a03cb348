// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// top is the root of the repository, seen from this package's folder.
const top = "../.."

// A repo is a tree of text files that rules read: this repository or a planted
// one.
type repo struct {
	files   map[string]string // slash-separated path to content
	paths   []string          // the keys of files, sorted
	sources []source
	modules []module
}

// A source is a parsed Go file outside testdata. A file that does not parse is
// left to the compiler.
type source struct {
	path string
	file *ast.File
	fset *token.FileSet
}

// A module is a go.mod file.
type module struct {
	dir  string // "." for the root
	path string
	text string
}

func newRepo(files map[string]string) *repo {
	r := &repo{files: files, paths: slices.Sorted(maps.Keys(files))}
	fset := token.NewFileSet()
	for _, p := range r.paths {
		switch {
		case inTestdata(p):
		case path.Base(p) == "go.mod":
			m := module{dir: path.Dir(p), text: files[p]}
			for _, d := range directives(m.text, "module") {
				m.path = d[0]
			}
			r.modules = append(r.modules, m)
		case path.Ext(p) == ".go":
			f, err := parser.ParseFile(fset, p, files[p], parser.ParseComments|parser.SkipObjectResolution)
			if err == nil {
				r.sources = append(r.sources, source{p, f, fset})
			}
		}
	}
	return r
}

// thisRepo reads what git tracks, and what it would track, once.
var thisRepo = sync.OnceValues(func() (*repo, error) {
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	cmd.Dir = top
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of the repository: git ls-files: %w (the rules need git and its folder)", err)
	}
	files := make(map[string]string)
	for p := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		name := filepath.Join(top, filepath.FromSlash(p))
		info, err := os.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and the deletion not committed yet
		}
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		files[p] = string(text)
	}
	if len(files) < 10 {
		return nil, fmt.Errorf("only %d files found: that cannot be the repository", len(files))
	}
	return newRepo(files), nil
})

func mustThisRepo(t *testing.T) *repo {
	t.Helper()
	r, err := thisRepo()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// moduleOf returns the module that the file or folder p belongs to.
func (r *repo) moduleOf(p string) module {
	var best module
	for _, m := range r.modules {
		inside := m.dir == "." || p == m.dir || strings.HasPrefix(p, m.dir+"/")
		if inside && (best.dir == "" || best.dir == "." || len(m.dir) > len(best.dir)) {
			best = m
		}
	}
	return best
}

// isDir reports whether p is a folder with files in it.
func (r *repo) isDir(p string) bool {
	return p == "." || slices.ContainsFunc(r.paths, func(q string) bool { return strings.HasPrefix(q, p+"/") })
}

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// at formats a violation at a place in s.
func (s source) at(pos token.Pos, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", s.path, s.fset.Position(pos).Line, fmt.Sprintf(format, args...))
}

// imports reports whether s imports the package p.
func (s source) imports(p string) bool {
	return slices.ContainsFunc(s.file.Imports, func(i *ast.ImportSpec) bool { return importPath(i) == p })
}

func importPath(i *ast.ImportSpec) string { return strings.Trim(i.Path.Value, "\"`") }

func inTestdata(p string) bool { return slices.Contains(strings.Split(p, "/"), "testdata") }

// directives returns the arguments of each directive named verb in the text of
// a go.mod or go.work file, also of those in a block.
func directives(text, verb string) [][]string {
	var found [][]string
	block := ""
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == ")":
			block = ""
		case block != "":
			if block == verb {
				found = append(found, words)
			}
		case len(words) == 2 && words[1] == "(":
			block = words[0]
		case words[0] == verb:
			found = append(found, words[1:])
		}
	}
	return found
}

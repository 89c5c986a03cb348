// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden lists of testdata/links anew")

// TestLinks holds each module to the golden list of the modules that its
// packages link, tests left out, so that a new dependency is a visible diff.
func TestLinks(t *testing.T) {
	const folder = "testdata/links"
	var known []string
	for _, m := range mustThisRepo(t).modules {
		if m.dir == toolsModule || strings.HasPrefix(m.dir, testbedModules) {
			continue
		}
		name := goldenName(m.dir)
		known = append(known, name)
		t.Run(m.dir, func(t *testing.T) {
			got, err := linked(filepath.Join(top, m.dir))
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join(folder, name)
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			if d := diff(string(want), got); len(d) > 0 {
				t.Errorf("module %s links something else than %s says; if that is meant, run make fix:\n%s",
					m.path, name, strings.Join(d, "\n"))
			}
		})
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			t.Errorf("%s/%s belongs to no module: remove it", folder, e.Name())
		}
	}
}

// TestLinksFind sees that a module's dependencies are found, and a difference.
func TestLinksFind(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.work":     "go 1.26\n\nuse (\n\t./a\n\t./b\n\t./c\n)\n",
		"a/go.mod":    "module example.test/a\n\ngo 1.26\n",
		"a/a.go":      "package a\n\nimport _ \"example.test/b/x\"\n",
		"a/a_test.go": "package a\n\nimport _ \"example.test/c\"\n",
		"b/go.mod":    "module example.test/b\n\ngo 1.26\n",
		"b/x/x.go":    "package x\n",
		"c/go.mod":    "module example.test/c\n\ngo 1.26\n",
		"c/c.go":      "package c\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := linked(filepath.Join(dir, "a"))
	if want := "example.test/a\nexample.test/b\n"; err != nil || got != want {
		t.Fatalf("linked = %q, %v, want %q", got, err, want)
	}
	d := diff("example.test/a\nexample.test/c v1.0.0\n", got)
	if want := []string{"- example.test/c v1.0.0", "+ example.test/b"}; !slices.Equal(d, want) {
		t.Errorf("diff = %q, want %q", d, want)
	}
	if _, err := linked(filepath.Join(dir, "gone")); err == nil {
		t.Error("linked found the dependencies of a folder that does not exist")
	}
}

func goldenName(dir string) string {
	if dir == "." {
		dir = "root"
	}
	return strings.ReplaceAll(dir, "/", "-") + ".golden"
}

// linked lists the modules, with versions, that the packages of the module in
// dir link on Linux: one a line, sorted. Modules of the workspace have no version.
func linked(dir string) (string, error) {
	const format = "{{with .Module}}{{.Path}}{{with .Version}} {{.}}{{end}}{{end}}"
	cmd := exec.Command("go", "list", "-deps", "-f", format, "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=", "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("list what the packages in %s link: go list: %w\n%s", dir, err, stderr.String())
	}
	list := strings.Fields(strings.ReplaceAll(string(out), " ", "@"))
	slices.Sort(list)
	list = slices.Compact(list)
	return strings.ReplaceAll(strings.Join(list, "\n")+"\n", "@", " "), nil
}

// diff returns the lines that only one of the two sets of lines has.
func diff(want, got string) []string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	var d []string
	for _, line := range w {
		if !slices.Contains(g, line) {
			d = append(d, "- "+line)
		}
	}
	for _, line := range g {
		if !slices.Contains(w, line) {
			d = append(d, "+ "+line)
		}
	}
	return d
}

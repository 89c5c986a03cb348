// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// A line is one line of a Markdown file, taken apart.
type line struct {
	number int
	prose  string   // without its code spans; empty in a code block
	code   []string // its code spans, or the line of a code block
}

var codeSpan = regexp.MustCompile("``[^`]+``|`[^`]+`")

func markdown(text string) (out []line) {
	fence := ""
	number := 0
	for l := range strings.Lines(text) {
		number++
		trimmed := strings.TrimSpace(l)
		switch {
		case fence != "" && strings.HasPrefix(trimmed, fence):
			fence = ""
		case fence != "":
			out = append(out, line{number, "", []string{trimmed}})
		case strings.HasPrefix(trimmed, "```"), strings.HasPrefix(trimmed, "~~~"):
			fence = trimmed[:3]
		default:
			var spans []string
			for _, s := range codeSpan.FindAllString(l, -1) {
				spans = append(spans, strings.TrimSpace(strings.Trim(s, "`")))
			}
			out = append(out, line{number, codeSpan.ReplaceAllString(l, ""), spans})
		}
	}
	return out
}

// documents yields the Markdown files. The changelog speaks of the past.
func (r *repo) documents() []string {
	return slices.DeleteFunc(slices.Clone(r.paths), func(p string) bool {
		return path.Ext(p) != ".md" || inTestdata(p) || p == "CHANGELOG.md"
	})
}

var testName = regexp.MustCompile(`\b(Test|Fuzz|Benchmark)[A-Z]\w*`)

// namedTests: a claim that names its test names one that exists. Elsewhere than
// in the guarantees and the Makefile only names in code are taken for names.
var namedTests = rule{
	name: "a test that is named exists",
	check: func(r *repo) (found []string) {
		exist := make(map[string]bool)
		for _, s := range r.sources {
			for _, d := range s.file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && s.isTest() && f.Recv == nil {
					exist[f.Name.Name] = true
				}
			}
		}
		look := func(p string, number int, text string) {
			for _, name := range testName.FindAllString(text, -1) {
				if !exist[name] {
					found = append(found, fmt.Sprintf("%s:%d: there is no test %s", p, number, name))
				}
			}
		}
		for _, p := range r.documents() {
			for _, l := range markdown(r.files[p]) {
				for _, c := range l.code {
					look(p, l.number, c)
				}
				if p == "docs/guarantees.md" {
					look(p, l.number, l.prose)
				}
			}
		}
		number := 0
		for l := range strings.Lines(r.files["Makefile"]) {
			number++
			look("Makefile", number, l)
		}
		return found
	},
	plant: map[string]string{
		"docs/guarantees.md": "# Guarantees\n\nMuch (tests: TestSound, TestGone).\n\n| † | `TestLost/sub` |\n",
		"README.md":          "Testing and TestProse are words, `TestCode` is not.\n",
		"Makefile":           "check:\n\tgo test -run 'TestMade$$'\n",
	},
	want: []string{"README.md:1: there is no test TestCode", "guarantees.md:3: there is no test TestGone", "guarantees.md:5: there is no test TestLost", "Makefile:2: there is no test TestMade"},
}

var (
	makeTarget  = regexp.MustCompile(`(?m)^([a-z][\w-]*(?: +[a-z][\w-]*)*) *:(?:[^=]|$)`)
	makeCommand = regexp.MustCompile(`(?:^|&& *|; *|\$ )make((?: +[\w=./-]+)+)`)
	targetName  = regexp.MustCompile(`^[a-z][\w-]*$`)
)

// namedTargets: a document tells nobody to run what is not there.
var namedTargets = rule{
	name: "a make target that is named exists",
	check: func(r *repo) (found []string) {
		targets := make(map[string]bool)
		for _, m := range makeTarget.FindAllStringSubmatch(r.files["Makefile"], -1) {
			for _, t := range strings.Fields(m[1]) {
				targets[t] = true
			}
		}
		for _, p := range r.documents() {
			for _, l := range markdown(r.files[p]) {
				for _, c := range l.code {
					for _, m := range makeCommand.FindAllStringSubmatch(c, -1) {
						for _, t := range strings.Fields(m[1]) {
							if targetName.MatchString(t) && !targets[t] {
								found = append(found, fmt.Sprintf("%s:%d: the Makefile has no target %s", p, l.number, t))
							}
						}
					}
				}
			}
		}
		return found
	},
	plant: map[string]string{
		"README.md": "`make check`, `make fix`, `make gone SEED=1`, make sense\n\n```\n$ make lint absent # make it so\ncd x && make X\nx := make(chan int)\n```\n",
	},
	want: []string{"README.md:1: the Makefile has no target gone", "README.md:4: the Makefile has no target absent"},
}

var (
	linkTarget = regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)|^\[[^\]]+\]:\s+(\S+)`)
	hasScheme  = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
)

// relativeLinks: a link inside the repository leads somewhere, its fragment too.
var relativeLinks = rule{
	name: "relative links resolve",
	check: func(r *repo) (found []string) {
		for _, p := range r.documents() {
			for _, l := range markdown(r.files[p]) {
				for _, m := range linkTarget.FindAllStringSubmatch(l.prose, -1) {
					link := m[1] + m[2]
					if hasScheme.MatchString(link) {
						continue
					}
					file, fragment, _ := strings.Cut(link, "#")
					target := p
					if file != "" {
						target = path.Join(path.Dir(p), file)
					}
					text, isFile := r.files[target]
					switch {
					case strings.HasPrefix(file, "/") || !isFile && !r.isDir(target):
						found = append(found, fmt.Sprintf("%s:%d: %s leads nowhere", p, l.number, link))
					case fragment != "" && path.Ext(target) == ".md" && !headings(text)[fragment]:
						found = append(found, fmt.Sprintf("%s:%d: %s: %s has no such heading", p, l.number, link, target))
					}
				}
			}
		}
		return found
	},
	plant: map[string]string{
		"docs/a.md":  "# A `code` & more\n[x](#a-code--more) [y](../Makefile) [z](b.md) `[code](gone)`\n\n```\n[block](gone)\n```\n",
		"README.md":  "[a](docs/a.md#a) [b](docs/guarantees.md \"title\") ![i](img.png)\n\n[ref]: /docs/a.md\n",
		"docs/c.txt": "[x](gone)",
	},
	want: []string{"README.md:1: docs/a.md#a: docs/a.md has no such heading", "README.md:1: img.png leads nowhere", "README.md:3: /docs/a.md leads nowhere", "docs/a.md:2: b.md leads nowhere"},
}

// headings returns the fragments of a Markdown file's headings.
func headings(text string) map[string]bool {
	fragments := make(map[string]bool)
	for l := range strings.Lines(text) {
		title := strings.TrimLeft(l, "#")
		if title == l || !strings.HasPrefix(title, " ") {
			continue
		}
		slug := strings.Map(func(c rune) rune {
			switch {
			case c == ' ':
				return '-'
			case unicode.IsLetter(c), unicode.IsDigit(c), c == '-', c == '_':
				return unicode.ToLower(c)
			}
			return -1
		}, strings.TrimSpace(title))
		unique := slug
		for n := 1; fragments[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", slug, n)
		}
		fragments[unique] = true
	}
	return fragments
}

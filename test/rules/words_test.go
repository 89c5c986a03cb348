// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"regexp"
	"strings"
)

// foreign matches what has no meaning to a reader of this repository. Each
// pattern spells one letter as a class, so that it does not match itself.
var foreign = []struct {
	what string
	re   *regexp.Regexp
}{
	{"the host of a package registry", regexp.MustCompile(
		`[p]roxy\.golang\.org|[s]um\.golang\.org|[g]oproxy\.(io|cn)|[r]egistry\.npmjs|[p]ypi\.org|[p]ythonhosted\.org|` +
			`[c]rates\.io|(deb|security)\.[d]ebian\.org|[u]buntu\.com`)},
	{"a path of one machine", regexp.MustCompile(
		`(?m)(^|[^\w.\-/)}*\]]|//)/([w]ork/|[f]arm\b|[r]oot\b|[h]ome/\w)`)},
	{"a document that is not in the repository", regexp.MustCompile(
		`\b([D]ESIGN|[S]TYLE|[S]CENARIOS|[T]ESTBED)(\.md\b|'s\b)`)},
	{"how the text was written", regexp.MustCompile(
		`(?i)\b[c]laude\b|[a]nthropic|[c]hatgpt|\b[L]LMs?\b|[l]anguage model|\b[A]I[- ](generated|assistant)|` +
			`[t]his session\b|[h]elper session|\b[i]ssues show\b|[b]rief\.md|as an [A]I\b`)},
}

// ownWordsOnly: the project speaks of itself.
var ownWordsOnly = rule{
	name: "no file names a registry's host, one machine's paths or how it was written",
	check: func(r *repo) (found []string) {
		for _, p := range r.paths {
			text := r.files[p]
			for _, f := range foreign {
				for _, m := range f.re.FindAllStringIndex(text, -1) {
					line := 1 + strings.Count(text[:m[0]], "\n")
					if text[m[0]] == '\n' {
						line++
					}
					found = append(found, fmt.Sprintf("%s:%d: %q is %s", p, line, strings.TrimSpace(text[m[0]:m[1]]), f.what))
				}
			}
		}
		return found
	},
	plant: map[string]string{
		"a.md": strings.ReplaceAll(
			"https://prox~y.golang.org\n/wor~k/x and (/roo~t) file:///far~m/\nSee DESI~GN.md\nClau~de wrote it in thi~s session\n", "~", ""),
		"b.md": "test/work/x, $HOME/work/, /workers, /rooted, https://example.org/root, docs/design.md, etcd's session, a model\n",
	},
	want: []string{"a.md:1: ", "a.md:2: ", "a.md:2: ", "a.md:2: ", "a.md:3: ", "a.md:4: ", "a.md:4: "},
}

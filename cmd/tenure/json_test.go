// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files")

// TestJSON compares what each command prints with -o json with a golden file,
// and requires that docs/command.md documents each field that occurs.
func TestJSON(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile(filepath.Join("..", "..", "docs", "command.md"))
	if err != nil {
		t.Fatal(err)
	}
	held := `{"holderIdentity":"a","candidate":"a-1","leaseDurationSeconds":10,"acquireTime":"2026-01-01T00:00:00Z",` +
		`"renewTime":"2026-01-01T00:01:00Z","leaseTransitions":1,"preferredHolder":"b","epoch":7,"nonce":"n","lineage":"l","clusterUID":"u",` +
		`"paused":{"by":"someone@somewhere","why":"moving","at":"2026-01-01T00:00:00Z","until":"2026-01-01T01:00:00Z"}}`
	entry := fmt.Sprintf(`{"candidates":[{"identity":"a","clusterUID":"u","host":"h","state":"Standby","ready":true,`+
		`"leaseDurationSeconds":10,"maxLeaseDurationSeconds":60,"epoch":7,"time":"%s"},`+
		`{"identity":"b","clusterUID":"v","candidate":"b-1","host":"h","state":"Standby","ready":false,`+
		`"leaseDurationSeconds":10,"maxLeaseDurationSeconds":60,"epoch":7,"time":"2026-01-01T00:00:00Z"}]}`, time.Now().UTC().Format(time.RFC3339))
	for _, c := range []struct {
		name, record string
		code         int
		args         []string
	}{
		{"status", held, 0, []string{"status"}},
		{"status-absent", "", 3, []string{"status"}},
		{"status-unreadable", "{}", 4, []string{"status"}},
		{"init", held, 0, []string{"init"}},
		{"init-first-ever", "", 0, []string{"init", "--first-ever"}},
		{"handover", held, 0, []string{"handover", "--no-wait"}},
		{"release-force", held, 0, []string{"release", "--force", "7", "--holder-is-dead", "--yes"}},
		{"pause", strings.Replace(held, `"paused"`, `"other"`, 1), 0, []string{"pause", "--for", "1h", "--reason", "moving"}},
		{"resume", held, 0, []string{"resume"}},
		{"doctor", held, 0, []string{"doctor"}},
		{"version", held, 0, []string{"version"}},
		{"error", held, 4, []string{"release", "--force", "8", "--yes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, "")
			if c.record != "" {
				l.damage(c.record)
				if err := os.MkdirAll(l.path+".candidates", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(l.path+".candidates/h.h", []byte(entry), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			args := append(c.args, "-o", "json")
			if c.name != "version" {
				args = append(args, "--lock", l.url())
			}
			got := printed(t, c.code, args...)
			golden(t, filepath.Join("testdata", "golden", c.name+".json"), normalise(got, l))
			for _, field := range fields(t, got) {
				if !strings.Contains(string(manual), "`"+field+"`") {
					t.Errorf("docs/command.md does not document `%s`", field)
				}
			}
		})
	}
}

// printed runs tenure and returns its stdout, which must be one JSON document.
func printed(t *testing.T, code int, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("tenure", args...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("tenure %s exits with %d, want %d: %v", strings.Join(args, " "), got, code, err)
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	var doc any
	if err := dec.Decode(&doc); err != nil {
		t.Fatalf("stdout is not JSON: %v\n%s", err, out)
	}
	if dec.More() {
		t.Fatalf("stdout has more than one document:\n%s", out)
	}
	return out
}

// unstable matches what differs from run to run.
var unstable = []struct {
	re *regexp.Regexp
	by string
}{
	{regexp.MustCompile(`("(?:renewAge|age|waited)Seconds": )-?[0-9.]+`), "${1}0"},
	{regexp.MustCompile(`("(?:seconds|p50Seconds|p99Seconds|maxSeconds|requests|storeOutageSeconds)": )[0-9.]+`), "${1}0"},
	{regexp.MustCompile(`("smallest": )\{[^}]*\}`), `${1}{}`},
	{regexp.MustCompile(`("detail": "(?:20 at once|reads p50|fit|the smallest))[^"]*"`), `${1} …"`},
	{regexp.MustCompile(`"20[0-9-]+T[0-9:.]+Z"`), `"2026-01-01T00:00:00Z"`},
	{regexp.MustCompile(`("epoch": )[0-9]{10}`), "${1}1000"},
	{regexp.MustCompile(`("by": ")[^"]*"`), `${1}someone@somewhere"`},
	{regexp.MustCompile(`("(?:go|platform|version)": ")[^"]*"`), `${1}x"`},
}

func normalise(out []byte, l *lab) string {
	s := strings.ReplaceAll(string(out), l.path, "/lock")
	for _, u := range unstable {
		s = u.re.ReplaceAllString(s, u.by)
	}
	return s
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s has\n%s\nand tenure printed\n%s\n(go test -run TestJSON -update writes it)", path, want, got)
	}
}

// fields lists the names of all fields in a document.
func fields(t *testing.T, doc []byte) (names []string) {
	t.Helper()
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, value := range v {
				names = append(names, name)
				walk(value)
			}
		case []any:
			for _, value := range v {
				walk(value)
			}
		}
	}
	var v any
	if err := json.Unmarshal(doc, &v); err != nil {
		t.Fatal(err)
	}
	walk(v)
	return names
}

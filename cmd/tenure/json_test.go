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

	"tenure.dev"
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

// TestExitCodes: what the core's errors come to.
func TestExitCodes(t *testing.T) {
	a := &app{}
	for _, c := range []struct {
		err  error
		want int
	}{
		{tenure.ErrURL, 2},
		{tenure.ErrUnknownCandidate, 2},
		{tenure.ErrNotExist, 3},
		{tenure.ErrNoLeader, 3},
		{tenure.ErrUnusable, 4},
		{tenure.ErrOtherEpoch, 4},
		{tenure.ErrImplausibleEpoch, 4},
		{tenure.ErrDuplicateIdentity, 4},
		{tenure.ErrSettingsDiffer, 4},
		{&tenure.UnsafeStoreError{}, 4},
		{os.ErrPermission, 1},
	} {
		if got := a.codeOf(fmt.Errorf("wrapped: %w", c.err)); got != c.want {
			t.Errorf("%v exits with %d, want %d", c.err, got, c.want)
		}
	}
}

// TestOthersMayLead: after which losses the command is killed at once.
func TestOthersMayLead(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{tenure.ErrRenewDeadline, false},
		{tenure.ErrHandover, false},
		{&tenure.LostError{Holder: "b", Err: errors.New("taken")}, true},
		{&tenure.LostError{Holder: "release/someone", Err: errors.New("taken")}, false},
		{&tenure.LostError{Holder: "create/b", Err: errors.New("taken")}, false},
		{&tenure.LostError{Err: tenure.ErrNoLeader}, true},
		{&tenure.LostError{Err: tenure.ErrNotExist}, false},
		{&tenure.LostError{Err: errors.New("unreadable")}, false},
	} {
		if got := othersMayLead(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// TestLogWriter: a log that nobody reads does not hold its writer up, and says
// how much was lost once somebody does.
func TestLogWriter(t *testing.T) {
	t.Parallel()
	reader, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	w := newLogWriter(pipe)
	line := []byte(strings.Repeat("x", 200) + "\n")
	begin := time.Now()
	for range 10 * logLines {
		if _, err := w.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(begin); d > time.Second {
		t.Errorf("writing to a log that nobody reads took %v", d)
	}
	read := make(chan string)
	go func() {
		var b bytes.Buffer
		_, _ = b.ReadFrom(reader)
		read <- b.String()
	}()
	w.flush()
	pipe.Close()
	if got := <-read; !strings.Contains(got, "lines were dropped because nobody read them") {
		t.Errorf("nothing says that lines were dropped; %d bytes were read", len(got))
	}
}

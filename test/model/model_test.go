// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// sources are the parts of the model; the first includes the others.
var sources = []string{"election.pml", "state.pml", "candidate.pml", "world.pml"}

// The properties of election.pml, as its macro ONLY numbers them.
const (
	oneTerm    = 1 // I1
	epochsGrow = 2 // I2
	released   = 7 // I7
	somebody   = 8 // leads in time, once faults have stopped
	stands     = 9 // a term does not end for a trifle
)

// anyFault is every kind of fault that may be mixed with the others.
const anyFault = "LOSSES=2 CRASHES=2 DELETES=2 GARBLES=1 FORCES=1"

// clean are the configurations without a mistake: each is explored to its end.
var clean = []struct {
	name  string
	defs  string
	large bool // only with TENURE_MODEL=large
}{
	{"no faults, five epochs", "EMAX=5", false},
	{"two faults of any kind", anyFault + " ORDERS=1 FAULTS=2 EMAX=3", false},
	{"a record restored", "RESTORES=1 FAULTS=1", false},
	{"a record restored, an answer lost", "RESTORES=1 LOSSES=1 FAULTS=2 EMAX=3", false},
	{"a longer lease", anyFault + " D=4 R=2 ORDERS=1 FAULTS=1 EMAX=3", false},
	{"three candidates", "N=3 EMAX=3", false},
	{"a leader once a fault is over", "LIVE " + anyFault + " ORDERS=1 FAULTS=1 EMAX=3", false},
	{"a leader in spite of orders", "LIVE CALM_ORDERS", false},
	{"orders and lost answers end no term", "LIVE STEADY LOSSES=1 ORDERS=2", false},

	{"two faults of any kind, four epochs", anyFault + " ORDERS=1 FAULTS=2 EMAX=4", true},
	{"three faults of any kind", "LOSSES=3 CRASHES=1 DELETES=2 GARBLES=1 FORCES=1 ORDERS=1 FAULTS=3 EMAX=3", true},
	{"a record restored, and another fault", anyFault + " RESTORES=1 FAULTS=2 EMAX=3", true},
	{"a longer lease, two faults", anyFault + " D=4 R=2 ORDERS=1 FAULTS=2 EMAX=3", true},
	{"three candidates, a fault", "N=3 " + anyFault + " ORDERS=1 FAULTS=1 EMAX=2", true},
	{"three candidates, a leader in the end", "N=3 LIVE EMAX=3", true},
	{"a leader once two faults are over", "LIVE " + anyFault + " ORDERS=1 FAULTS=2 EMAX=3", true},
}

// mistakes must be found, each by the property that it breaks.
var mistakes = []struct {
	name   string
	macro  string
	breaks int
	defs   string
}{
	{"deadline from the answer", "M_DEADLINE_FROM_ANSWER", oneTerm, "EMAX=3"},
	{"drift ignored", "M_DRIFT_IGNORED", oneTerm, "EMAX=3"},
	{"wait from the start of the read", "M_WAIT_FROM_READ", oneTerm, "EMAX=3"},
	{"absent taken at once", "M_ABSENT_AT_ONCE", oneTerm, "DELETES=1"},
	{"absence waited out without a stopper", "M_ABSENCE_WAITED", oneTerm, "DELETES=2"},
	{"unreadable taken as released", "M_GARBLED_RELEASED", oneTerm, "GARBLES=1"},
	{"epoch restarts after a delete", "M_EPOCH_RESTARTS", epochsGrow, "DELETES=1"},
	{"own nonce retaken after D", "M_RETAKE_LATE", oneTerm, "RESTORES=1"},
	{"own nonce retaken up to D on a slow clock", "RETAKE=4", oneTerm, "RESTORES=1"},
	{"identity shortens a wait", "M_IDENTITY_SHORTENS", oneTerm, "CRASHES=1"},
	{"a late answer begins a term", "M_LATE_ANSWER_BEGINS", oneTerm, "EMAX=3"},
	{"release before drain", "M_RELEASE_BEFORE_DRAIN", released, "EMAX=3"},
	{"leading from a read", "M_LEAD_FROM_READ", oneTerm, "LOSSES=1"},
	{"a restore goes unnoticed", "M_RESTORE_UNNOTICED", oneTerm, "RESTORES=1"},
	{"D shrunk inside a term", "M_D_SHRUNK", oneTerm, "LOSSES=1"},
	{"stopper taken for an order", "M_STOPPER_IS_ORDER", epochsGrow, "FORCES=1"},
	{"stopper not waited out", "M_STOPPER_NOT_WAITED", oneTerm, "FORCES=1"},
	{"an order taken for loss", "M_ORDER_IS_LOSS", stands, "LIVE STEADY ORDERS=1"},
	{"own lost answer taken for loss", "M_OWN_LOST_IS_LOSS", stands, "LIVE STEADY LOSSES=1"},
	{"orders start the wait again", "M_ORDER_RESETS_WAIT", somebody, "LIVE CALM_ORDERS"},
	{"the preferred holder binds for ever", "M_PREFERRED_FOREVER", somebody, "LIVE ORDERS=1"},

	// Not a mistake but a limit, shown so that nobody claims more.
	{"an order on a restored record", "", oneTerm, "RESTORES=1 ORDERS=1"},
}

// slots bounds how many checks run at once, for the sake of memory.
var slots = make(chan struct{}, 2)

func TestModelIsClean(t *testing.T) {
	needTools(t)
	large := os.Getenv("TENURE_MODEL") == "large"
	for _, c := range clean {
		if c.large && !large {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			optimise, limit := "-O1", 1800 // compiling takes as long as a small exploration
			if c.large {
				optimise, limit = "-O2", 4000
			}
			out, took := check(t, optimise, limit, strings.Fields(c.defs))
			for _, bad := range []string{"Search not completed", "max search depth too small", "out of memory"} {
				if strings.Contains(out, bad) {
					t.Errorf("spin says %q", bad)
				}
			}
			for _, good := range []string{"Full statespace search", "assertion violations\t+", "invalid end states\t+", "errors: 0\n"} {
				if !strings.Contains(out, good) {
					t.Errorf("spin does not say %q", good)
				}
			}
			if t.Failed() {
				t.Fatalf("spin -D%s:\n%s", strings.ReplaceAll(c.defs, " ", " -D"), out)
			}
			t.Logf("%s states, %s MB, %v", figure(out, `(\d+) states, stored`), figure(out, `([\d.]+)\s+total actual memory`), took)
		})
	}
}

func TestMistakesAreFound(t *testing.T) {
	needTools(t)
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			defs := append(strings.Fields(m.defs), fmt.Sprintf("ONLY=%d", m.breaks))
			if m.macro != "" {
				defs = append(defs, m.macro)
			}
			out, _ := check(t, "-O0", 1800, defs)
			if want := fmt.Sprintf("assertion violated (((%d!=0)&&(%[1]d!=%[1]d))||", m.breaks); !strings.Contains(out, want) {
				t.Fatalf("spin -D%s did not find that the mistake breaks property %d:\n%s", strings.Join(defs, " -D"), m.breaks, out)
			}
		})
	}
}

// Every mistake that the model can make is one that a test plants.
func TestEachMistakeHasATest(t *testing.T) {
	text := model(t)
	var planted []string
	for _, m := range mistakes {
		planted = append(planted, m.macro)
	}
	for _, found := range regexp.MustCompile(`\bM_[A-Z_]+\b`).FindAllString(text, -1) {
		if !slices.Contains(planted, found) {
			t.Errorf("the model has %s, and no test plants it", found)
		}
	}
	for _, macro := range planted {
		if name, _, _ := strings.Cut(macro, "="); !strings.Contains(text, name) {
			t.Errorf("the model does not have %s", macro)
		}
	}
}

// The functions that the model says it stands for exist.
func TestCodeThatTheModelNamesExists(t *testing.T) {
	files, err := filepath.Glob("../../*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go files in the root: %v", err)
	}
	var code strings.Builder
	for _, f := range files {
		if !strings.HasSuffix(f, "_test.go") {
			code.WriteString(read(t, f))
		}
	}
	named := regexp.MustCompile(`(?s)code: ([^/]*?)\*/`).FindAllStringSubmatch(model(t), -1)
	if len(named) < 10 {
		t.Fatalf("the model names code in %d places only", len(named))
	}
	for _, n := range named {
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(n[1], -1) {
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name + `\(`).MatchString(code.String()) {
				t.Errorf("the model names %s, and there is no such function", name)
			}
		}
	}
}

// model returns the text of all its parts.
func model(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, f := range sources {
		all.WriteString(read(t, f))
	}
	return all.String()
}

func needTools(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("the model needs %s: apt-get install spin gcc (%v)", tool, err)
		}
	}
}

// check explores the model with these macros and returns what the verifier
// printed. It stops at the first error.
func check(t *testing.T, optimise string, megabytes int, defs []string) (string, time.Duration) {
	t.Helper()
	slots <- struct{}{}
	defer func() { <-slots }()
	dir := t.TempDir()
	for _, f := range sources {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(read(t, f)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	args := []string{"-a"}
	for _, d := range defs {
		args = append(args, "-D"+d)
	}
	must(t, dir, "spin", append(args, sources[0])...)
	must(t, dir, "gcc", optimise, "-w", "-DSAFETY", "-DNOREDUCE", fmt.Sprintf("-DMEMLIM=%d", megabytes), "-o", "pan", "pan.c")
	out := must(t, dir, "./pan", "-n", "-m20000")
	return out, time.Since(start).Round(100 * time.Millisecond)
}

func must(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func figure(out, pattern string) string {
	m := regexp.MustCompile(pattern).FindStringSubmatch(out)
	if m == nil {
		return "?"
	}
	return m[1]
}

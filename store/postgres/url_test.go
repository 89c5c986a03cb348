// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"

	"tenure.dev"
)

func TestURL(t *testing.T) {
	const rest = "/app?key=nightly"
	for _, tt := range []struct{ url, want string }{
		{"postgres://h" + rest, `the key "nightly" in public.tenure_locks of postgres://h:5432/app`},
		{"postgres://h:5433" + rest, `the key "nightly" in public.tenure_locks of postgres://h:5433/app`},
		{"postgres://a:1,b,[::1]:2,[::1]" + rest, `the key "nightly" in public.tenure_locks of postgres://a:1,b:5432,[::1]:2,[::1]:5432/app`},
		{"postgres://h/an%20app?key=a/b&table=locks", `the key "a/b" in public.locks of postgres://h:5432/an app`},
		{"postgres://h" + rest + "&table=ops.locks_2&ttl=6s&user=u", `the key "nightly" in ops.locks_2 of postgres://h:5432/app`},
	} {
		lock, err := tenure.Open(context.Background(), tt.url, tenure.Vars{})
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		if got := lock.Register.(*Register).String(); got != tt.want {
			t.Errorf("%s is %s, want %s", tt.url, got, tt.want)
		}
	}
	for _, tt := range []struct{ url, says string }{
		{"postgres:///app?key=x", "names no host"},
		{"postgres://h?key=x", "names no database"},
		{"postgres://h/?key=x", "names no database"},
		{"postgres://h/a/b?key=x", "the lock's name goes into key="},
		{"postgres://h/app", "add key=NAME"},
		{"postgres://h/app?key=" + strings.Repeat("x", maxKey+1), "longer than"},
		{"postgres://h:0" + rest, "port"},
		{"postgres://h:70000" + rest, "port"},
		{"postgres://h" + rest + "&table=Locks", "lower-case"},
		{"postgres://h" + rest + "&table=a.b.c", "lower-case"},
		{"postgres://h" + rest + "&table=a.", "lower-case"},
		{"postgres://h" + rest + `&table=x";DROP`, "lower-case"},
		{"postgres://h" + rest + "&sslmode=prefer", "plain text"},
		{"postgres://h" + rest + "&sslmode=allow", "plain text"},
		{"postgres://h" + rest + "&sslmode=on", "choose verify-full"},
		{"postgres://h" + rest + "&sslmode=disable&sslrootcert=/x", "sslmode=disable"},
		{"postgres://h" + rest + "&sslcert=/x", "belong together"},
		{"postgres://h" + rest + "&password=secret", "password"},
		{"postgres://h" + rest + "&taable=x", "table"},
		{"postgres://user:secret@h" + rest, "credentials"},
	} {
		_, err := tenure.Open(context.Background(), tt.url, tenure.Vars{})
		if !errors.Is(err, tenure.ErrURL) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want ErrURL that says %q", tt.url, err, tt.says)
		}
	}
}

// TestPGSSLMODE: the environment's mode is held to the same.
func TestPGSSLMODE(t *testing.T) {
	const url = "postgres://h/app?key=x"
	for value, says := range map[string]string{"": "", "disable": "", "prefer": "PGSSLMODE=prefer", "nonsense": "PGSSLMODE"} {
		t.Setenv("PGSSLMODE", value)
		lock, err := tenure.Open(context.Background(), url, tenure.Vars{})
		switch {
		case says != "" && (!errors.Is(err, tenure.ErrURL) || !strings.Contains(err.Error(), says)):
			t.Errorf("PGSSLMODE=%s: %v", value, err)
		case says == "" && err != nil:
			t.Errorf("PGSSLMODE=%s: %v", value, err)
		case says == "" && value == "" && lock.Register.(*Register).sslMode != "verify-full":
			t.Errorf("the default mode is %s", lock.Register.(*Register).sslMode)
		}
	}
}

func TestSibling(t *testing.T) {
	r := open(t, "postgres://h/app?key=nightly")
	if got := r.Sibling(".candidates/").(*Register).Sibling("a").(*Register).key; got != "nightly.candidates/a" {
		t.Errorf("sibling %q", got)
	}
	for _, suffix := range []string{"", "a b", "x'y", strings.Repeat("x", 2*maxKey)} {
		s := r.Sibling(suffix)
		_, _, err := s.Read(t.Context())
		mustSay(t, err, "suffix")
		_, err = s.Write(t.Context(), nil, "")
		mustSay(t, err, "suffix")
		_, _, err = s.(*Register).Sibling(".x").Read(t.Context())
		mustSay(t, err, "suffix")
	}
}

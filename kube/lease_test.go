// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev"
)

var full = tenure.Record{
	HolderIdentity: "a", Candidate: "a-1", LeaseDuration: 10 * time.Second,
	AcquireTime: time.Date(2026, 12, 1, 10, 0, 0, 123456000, time.UTC), RenewTime: time.Date(2026, 12, 1, 10, 0, 2, 0, time.UTC),
	LeaseTransitions: 3, PreferredHolder: "b", Orders: 2, Epoch: 1_800_000_000, Nonce: "n1", Lineage: "l1", ClusterUID: "u",
	Endpoint: "https://a.example <&> \x00", CABundle: "-----BEGIN\nx\n",
	Paused: &tenure.Pause{By: "me", Why: "why", At: time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC), Until: time.Date(2026, 12, 1, 11, 0, 0, 0, time.UTC)},
}

// stored is what an API server keeps of a lease: JSON there and back.
func stored(t testing.TB, value []byte) *coordinationv1.Lease {
	t.Helper()
	in := &coordinationv1.Lease{}
	in.Annotations = map[string]string{"other.example/x": "y", "tenure.dev/stale": "z"}
	fill(in, value, "salt")
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out coordinationv1.Lease
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if out.Annotations["other.example/x"] != "y" || out.Annotations["tenure.dev/stale"] != "" {
		t.Errorf("annotations: %v; want those of others kept and ours replaced", out.Annotations)
	}
	return &out
}

func TestEveryValueComesBack(t *testing.T) {
	value := record(t, full)
	unknown := []byte(strings.Replace(string(value), "}\n", `,"colour":{"deep":[1,2.50]},"z":"<&>"}`+"\n", 1))
	if rec, err := tenure.ParseRecord(unknown); err != nil {
		t.Fatal(err)
	} else if unknown, err = rec.Marshal(); err != nil {
		t.Fatal(err)
	}
	many := full
	many.LeaseTransitions = math.MaxInt32 + 7
	released := full
	released.HolderIdentity, released.Candidate, released.AcquireTime = "", "", time.Time{}
	for name, tt := range map[string]struct {
		value  []byte
		inSpec bool
	}{
		"a record":                    {value, true},
		"with unknown fields":         {unknown, true},
		"released":                    {record(t, released), true},
		"more transitions than int32": {record(t, many), true},
		"a record written otherwise":  {append([]byte(" "), value...), false},
		"a stranger's":                {[]byte(`{"holderIdentity":"x","leaseDurationSeconds":15,"renewTime":"2026-11-30T10:00:00.000000Z"}`), false},
		"candidates":                  {[]byte(`{"candidates":[]}` + "\n"), false},
		"nothing":                     {[]byte(""), false},
		"no text":                     {[]byte("\x00\xff"), false},
	} {
		t.Run(name, func(t *testing.T) {
			lease := stored(t, tt.value)
			if got := extract(lease); !bytes.Equal(got, tt.value) {
				t.Errorf("written:\n%s\nread:\n%s", tt.value, got)
			}
			if inSpec := lease.Spec.LeaseDurationSeconds != nil; inSpec != tt.inSpec {
				t.Errorf("in the spec: %t, want %t", inSpec, tt.inSpec)
			}
			if p := lease.Spec.PreferredHolder; p != nil {
				t.Errorf("spec.preferredHolder is %q: an API server refuses it", *p)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// What others do to a Lease of ours, and what the core is shown.
func TestStrangers(t *testing.T) {
	take := func(l *coordinationv1.Lease) {
		l.Spec.HolderIdentity = ptr("stock")
		l.Spec.LeaseDurationSeconds = ptr(int32(15))
		l.Spec.RenewTime = &metav1.MicroTime{Time: full.RenewTime.Add(time.Minute)}
		*l.Spec.LeaseTransitions++
	}
	now := &metav1.MicroTime{Time: full.RenewTime.Add(time.Minute)}
	for name, tt := range map[string]struct {
		edit      func(*coordinationv1.Lease)
		ours      bool // still a record of ours
		broken    bool // cannot be read
		epoch     int64
		duration  time.Duration
		unlineage bool
		unpaused  bool
	}{
		"nothing":                      {edit: func(*coordinationv1.Lease) {}, ours: true, epoch: full.Epoch, duration: 10 * time.Second},
		"taken":                        {edit: take, epoch: full.Epoch + 1, duration: 15 * time.Second},
		"taken with a shorter D":       {edit: func(l *coordinationv1.Lease) { take(l); l.Spec.LeaseDurationSeconds = ptr(int32(5)) }, epoch: full.Epoch + 1, duration: 10 * time.Second},
		"taken four times":             {edit: func(l *coordinationv1.Lease) { take(l); *l.Spec.LeaseTransitions += 3 }, epoch: full.Epoch + 4, duration: 15 * time.Second},
		"transitions begun anew":       {edit: func(l *coordinationv1.Lease) { take(l); *l.Spec.LeaseTransitions = 0 }, epoch: full.Epoch + 1, duration: 15 * time.Second},
		"renewed under our name":       {edit: func(l *coordinationv1.Lease) { l.Spec.RenewTime = now }, epoch: full.Epoch + 1, duration: 10 * time.Second},
		"emptied":                      {edit: func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr("") }, epoch: full.Epoch + 1, duration: 10 * time.Second},
		"holder removed":               {edit: func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }, epoch: full.Epoch + 1, duration: 10 * time.Second},
		"D shortened by hand":          {edit: func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr(int32(1)) }, epoch: full.Epoch + 1, duration: 10 * time.Second},
		"spec removed":                 {edit: func(l *coordinationv1.Lease) { l.Spec = coordinationv1.LeaseSpec{} }, epoch: full.Epoch + 1, duration: 10 * time.Second},
		"acquireTime edited":           {edit: func(l *coordinationv1.Lease) { l.Spec.AcquireTime = now }, ours: true, epoch: full.Epoch, duration: 10 * time.Second},
		"nonce removed":                {edit: func(l *coordinationv1.Lease) { delete(l.Annotations, "tenure.dev/nonce") }, epoch: full.Epoch + 1, duration: 10 * time.Second},
		"writtenWith removed":          {edit: func(l *coordinationv1.Lease) { delete(l.Annotations, noteWrittenWith) }, epoch: full.Epoch + 3, duration: 10 * time.Second},
		"epoch removed":                {edit: func(l *coordinationv1.Lease) { delete(l.Annotations, "tenure.dev/epoch") }, broken: true},
		"epoch garbled":                {edit: func(l *coordinationv1.Lease) { l.Annotations["tenure.dev/epoch"] = "abc" }, broken: true},
		"other garbled":                {edit: func(l *coordinationv1.Lease) { l.Annotations[noteOther] = "abc" }, ours: true, epoch: full.Epoch, duration: 10 * time.Second},
		"taken, and the epoch garbled": {edit: func(l *coordinationv1.Lease) { take(l); l.Annotations["tenure.dev/epoch"] = "abc" }, duration: 15 * time.Second},
		"taken, and the pause garbled": {edit: func(l *coordinationv1.Lease) { take(l); l.Annotations["tenure.dev/paused"] = "abc" }, epoch: full.Epoch + 1, duration: 15 * time.Second, unpaused: true},
		"taken, the epoch at the end":  {edit: func(l *coordinationv1.Lease) { take(l); l.Annotations["tenure.dev/epoch"] = "9223372036854775807" }, epoch: math.MaxInt64, duration: 15 * time.Second},
		"replaced, no annotation left": {edit: func(l *coordinationv1.Lease) { take(l); l.Annotations = nil }, duration: 15 * time.Second, unlineage: true, unpaused: true},
		"all annotations removed":      {edit: func(l *coordinationv1.Lease) { l.Annotations = nil }, duration: 10 * time.Second, unlineage: true, unpaused: true},
		"a value planted beside it":    {edit: func(l *coordinationv1.Lease) { l.Annotations[noteValue] = "{}" }, ours: true, epoch: full.Epoch, duration: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			lease := stored(t, record(t, full))
			tt.edit(lease)
			value := extract(lease)
			rec, err := tenure.ParseRecord(value)
			if tt.broken {
				if rec != nil {
					t.Fatalf("read: %s", value)
				}
				return
			}
			if rec == nil || (err == nil) != tt.ours {
				t.Fatalf("ours: %t, want %t; %v\n%s", err == nil, tt.ours, err, value)
			}
			if rec.Epoch != tt.epoch || rec.LeaseDuration != tt.duration || (rec.Lineage == "") != tt.unlineage || (rec.Paused == nil) != tt.unpaused {
				t.Errorf("epoch %d, want %d; D %v, want %v:\n%s", rec.Epoch, tt.epoch, rec.LeaseDuration, tt.duration, value)
			}
			if !tt.ours && rec.Nonce != "" {
				t.Errorf("a stranger's record has a nonce: %s", value)
			}
		})
	}
}

func TestAnEmptyLeaseCannotBeRead(t *testing.T) {
	if rec, err := tenure.ParseRecord(extract(&coordinationv1.Lease{})); rec != nil || err == nil {
		t.Errorf("%+v, %v", rec, err)
	}
}

func FuzzValue(f *testing.F) {
	f.Add(record(&testing.T{}, full))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, value []byte) {
		if got := extract(stored(t, value)); !bytes.Equal(got, value) {
			t.Errorf("written:\n%q\nread:\n%q", value, got)
		}
	})
}

// Whatever a Lease says, a record of ours is read only from what we wrote.
func FuzzLease(f *testing.F) {
	f.Add("a", int32(10), int32(1), "5", "n", `{"by":"x"}`, `{"holderIdentity":"a"}`, "")
	f.Fuzz(func(t *testing.T, holder string, seconds, transitions int32, epoch, nonce, paused, with, other string) {
		lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, LeaseTransitions: &transitions}}
		lease.Annotations = map[string]string{
			prefix + "epoch": epoch, prefix + "nonce": nonce, prefix + "paused": paused, noteWrittenWith: with, noteOther: other,
		}
		var bound written
		matches := json.Unmarshal([]byte(with), &bound) == nil && bound == writtenWith(&lease.Spec)
		if _, err := tenure.ParseRecord(extract(lease)); err == nil && !matches {
			t.Errorf("written with %s, the spec is %+v, and it is read as ours", with, writtenWith(&lease.Spec))
		}
	})
}

func TestNamesOfSiblings(t *testing.T) {
	seen := map[string]string{}
	for _, suffix := range []string{
		"", ".candidates/h.host-1", ".candidates/h.Host_1", ".candidates/h.host.1", ".", "..", "-", "--", "--2f", "/", ".x", "x", "x-", "-x", "x.", "é", "A", "a", ".probe/h.x--y",
		"x-.y", "x.-y", "x./y", "x-/y",
	} {
		name := encodeName("lock", suffix)
		if !nameForm.MatchString(name) {
			t.Errorf("%q becomes %q, which no Lease can have", suffix, name)
		}
		if got, ok := decodeName(name); !ok || got != "lock"+suffix {
			t.Errorf("%q becomes %q and comes back as %q", suffix, name, got)
		}
		if other, twice := seen[name]; twice {
			t.Errorf("%q and %q both become %q", suffix, other, name)
		}
		seen[name] = suffix
	}
	if got := encodeName("lock", ".candidates/h.host-1"); got != "lock.candidates--2fh.host-1" {
		t.Errorf("%q", got)
	}
}

func FuzzNames(f *testing.F) {
	f.Add(".candidates/h.host-1")
	f.Fuzz(func(t *testing.T, suffix string) {
		name := encodeName("lock", suffix)
		if got, ok := decodeName(name); !ok || got != "lock"+suffix || !nameForm.MatchString(name) {
			t.Errorf("%q becomes %q and comes back as %q", suffix, name, got)
		}
	})
}

func TestURL(t *testing.T) {
	file := kubeconfig(t, "127.0.0.1:1", testCA(t), userInfo("x"))
	at := "?kubeconfig=" + file
	for url, want := range map[string]string{
		"k8s://ns/name" + at:                           "",
		"k8s://ns/name.x-y" + at + "&context=x&ttl=5s": "",
		"k8s://" + at:                                  "has no namespace",
		"k8s:///name" + at:                             "has no namespace",
		"k8s://ns" + at:                                "has no name of a Lease",
		"k8s://ns/" + at:                               "has no name of a Lease",
		"k8s://ns/a/b" + at:                            "more than one slash",
		"k8s://ns/A" + at:                              "no Lease can have",
		"k8s://ns/a--b" + at:                           "kept for the Leases beside a lock",
		"k8s://ns/a-" + at:                             "no Lease can have",
		"k8s://n.s/a" + at:                             "no cluster can have",
		"k8s://ns:80/a" + at:                           "no cluster can have",
		"k8s://ns/" + strings.Repeat("a", 254) + at:    "at most 253",
		"k8s://" + strings.Repeat("a", 64) + "/a" + at: "at most 63",
		"k8s://ns/a" + at + "&context=y":               "there is no such context; there are: x",
		"k8s://ns/a" + at + "&contxt=y":                `"context"`,
		"k8s://ns/a" + at + "&context=":                `"context" is empty`,
		"k8s://ns/a?kubeconfig=" + file + ".gone":      "no such file",
		"k8s://ns/a?kubeconfig=/dev/null":              "names no cluster",
		"k8s://user:secret@ns/a":                       "contains '@'",
	} {
		lock, err := tenure.Open(t.Context(), url, tenure.Vars{})
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", url, err)
			} else if r := lock.Register.(*Register); !r.StockElectors() || r.namespace != "ns" {
				t.Errorf("%s: %+v", url, r)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || !errors.Is(err, tenure.ErrURL) {
			t.Errorf("%s: error %v; want one of the URL with %q", url, err, want)
		}
	}
}

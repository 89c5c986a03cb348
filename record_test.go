// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

const goodRecord = `{"holderIdentity":"a","candidate":"a","leaseDurationSeconds":10,"acquireTime":"2026-11-30T10:00:00.000000Z",` +
	`"renewTime":"2026-11-30T10:00:02.000000Z","leaseTransitions":3,"epoch":7,"nonce":"n1","lineage":"l1","clusterUID":"u"}`

// strangerRecord is what a driver shows of a stock Lease that has kept our
// annotations.
const strangerRecord = `{"holderIdentity":"x","leaseDurationSeconds":15,"renewTime":"2026-11-30T10:00:00.000000Z","leaseTransitions":4,` +
	`"epoch":8,"lineage":"l1","paused":{"by":"me","at":"2026-11-30T10:00:00Z","until":"2026-11-30T11:00:00Z"}}`

// with returns goodRecord with one field replaced, added or, for "", removed.
func with(field, value string) string {
	var out []string
	found := false
	for _, part := range strings.Split(strings.Trim(goodRecord, "{}"), `,"`) {
		part = `"` + strings.TrimPrefix(part, `"`)
		if strings.HasPrefix(part, `"`+field+`":`) {
			found = true
			if value == "" {
				continue
			}
			part = fmt.Sprintf(`"%s":%s`, field, value)
		}
		out = append(out, part)
	}
	if !found && value != "" {
		out = append(out, fmt.Sprintf(`"%s":%s`, field, value))
	}
	return "{" + strings.Join(out, ",") + "}"
}

func TestClassify(t *testing.T) {
	past := state{lineage: "l1", highest: 5}
	tests := []struct {
		name  string
		value string
		err   error
		past  state
		want  sightKind
	}{
		{name: "good", value: goodRecord, past: past, want: held},
		{name: "absent", err: ErrNotExist, want: absent},
		{name: "too large", err: ErrValueTooLarge, want: unreadable},
		{name: "released", value: with("holderIdentity", `""`), want: released},
		{name: "empty object", value: `{}`, want: unreadable},
		{name: "null", value: `null`, want: unreadable},
		{name: "zero bytes", value: ``, want: unreadable},
		{name: "blank", value: "\n\n", want: unreadable},
		{name: "truncated", value: goodRecord[:len(goodRecord)-5], want: unreadable},
		{name: "released but truncated", value: `{"holderIdentity":""`, want: unreadable},
		{name: "released without epoch", value: `{"holderIdentity":"","leaseDurationSeconds":10,"nonce":"n"}`, want: unreadable},
		{name: "released without nonce", value: `{"holderIdentity":"","leaseDurationSeconds":10,"epoch":3}`, want: unreadable},
		{name: "array", value: `[1]`, want: unreadable},
		{name: "byte order mark", value: "\ufeff" + goodRecord, want: unreadable},
		{name: "not UTF-8", value: goodRecord[:10] + "\xff" + goodRecord[10:], want: unreadable},
		{name: "two objects", value: goodRecord + goodRecord, want: unreadable},
		{name: "field twice", value: `{"epoch":1,` + goodRecord[1:], want: unreadable},
		{name: "other case is another field", value: strings.Replace(goodRecord, "epoch", "Epoch", 1), want: unreadable},
		{name: "null holder", value: with("holderIdentity", "null"), want: unreadable},
		{name: "number as holder", value: with("holderIdentity", "1"), want: unreadable},
		{name: "no holder", value: with("holderIdentity", ""), want: unreadable},
		{name: "no D", value: with("leaseDurationSeconds", ""), want: unreadable},
		{name: "D of one second", value: with("leaseDurationSeconds", "1"), want: unreadable},
		{name: "D in text", value: with("leaseDurationSeconds", `"10"`), want: unreadable},
		{name: "D with a fraction", value: with("leaseDurationSeconds", "10.5"), want: unreadable},
		{name: "D beyond reason", value: with("leaseDurationSeconds", "9223372036854775807"), want: unreadable},
		{name: "no epoch", value: with("epoch", ""), want: unreadable},
		{name: "epoch 0", value: with("epoch", "0"), want: unreadable},
		{name: "epoch negative", value: with("epoch", "-4"), want: unreadable},
		{name: "epoch overflows", value: with("epoch", "9223372036854775808"), want: unreadable},
		{name: "epoch at 2^53", value: with("epoch", "9007199254740992"), want: held},
		{name: "epoch above 2^53", value: with("epoch", "9007199254740993"), want: implausible},
		{name: "epoch at the int64 limit", value: with("epoch", "9223372036854775807"), want: implausible},
		{name: "transitions at the int64 limit", value: with("leaseTransitions", "9223372036854775807"), want: implausible},
		{name: "no nonce", value: with("nonce", ""), want: unreadable},
		{name: "empty nonce", value: with("nonce", `""`), want: unreadable},
		{name: "times in the future", value: with("renewTime", `"2096-01-01T00:00:00Z"`), want: held},
		{name: "time garbled", value: with("renewTime", `"yesterday"`), want: unreadable},
		{name: "pause without end", value: with("paused", `{"by":"me"}`), want: unreadable},
		{name: "pause null", value: with("paused", `null`), want: held},
		{name: "unknown field", value: with("colour", `{"deep":[1,2]}`), want: held},
		{name: "restored: lower epoch than seen", value: goodRecord, past: state{lineage: "l1", highest: 8}, want: unreadable},
		{name: "another lineage", value: goodRecord, past: state{lineage: "l2"}, want: unreadable},
		{name: "stock Lease", value: `{"holderIdentity":"x","leaseDurationSeconds":15,"acquireTime":"2026-11-30T10:00:00.000000Z","renewTime":"2026-11-30T10:00:00.000000Z","leaseTransitions":4}`, want: stranger},
		{name: "older MultiClusterLease", value: `{"holderIdentity":"x","renewTime":"2026-11-30T10:00:00.123456789Z","leaseTransitions":4}`, want: stranger},
		{name: "emptied stock Lease is not released", value: `{"holderIdentity":"","leaseDurationSeconds":1,"renewTime":"2026-11-30T10:00:00.000000Z","leaseTransitions":4}`, want: stranger},
		{name: "stock Lease with an epoch kept beside it", value: strangerRecord, past: past, want: stranger},
		{name: "the same of another lineage, below an epoch seen", value: strangerRecord, past: state{lineage: "l2", highest: 99}, want: stranger},
		{name: "a stranger's with nothing but a kept epoch", value: `{"holderIdentity":"","renewTime":"","epoch":8}`, want: stranger},
		{name: "no renew time", value: `{"holderIdentity":"x","leaseDurationSeconds":15,"epoch":8}`, want: unreadable},
		{name: "a stranger's epoch above 2^53", value: strings.Replace(strangerRecord, `"epoch":8`, `"epoch":9007199254740993`, 1), want: implausible},
		{name: "a stranger's with a candidate of ours", value: `{"candidate":"a",` + strangerRecord[1:], want: unreadable},
		{name: "a stranger's with a nonce is not one", value: `{"nonce":"n",` + strangerRecord[1:], want: held},
		{name: "stopper", value: with("holderIdentity", `"release/op"`), want: held},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := machine{state: tt.past}
			if got := m.classify(parse([]byte(tt.value), tt.err), "v"); got.kind != tt.want {
				t.Errorf("kind is %d, want %d (%v)", got.kind, tt.want, got.why)
			}
		})
	}
}

func TestRecordKeepsUnknownFields(t *testing.T) {
	r, err := ParseRecord([]byte(with("colour", `{"deep":[1,2.50]}`)))
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out, []byte(`"colour":{"deep":[1,2.50]}`)) {
		t.Errorf("the unknown field is gone: %s", out)
	}
}

func TestRecordTooLarge(t *testing.T) {
	r := Record{HolderIdentity: "a", LeaseDuration: 10 * time.Second, Epoch: 1, Nonce: "n", CABundle: strings.Repeat("x", MaxRecordSize)}
	if _, err := r.Marshal(); err == nil {
		t.Error("a record above the limit was written")
	}
	if _, err := ParseRecord([]byte(with("colour", `"`+strings.Repeat("x", MaxRecordSize)+`"`))); err == nil {
		t.Error("a record above the limit was read")
	}
}

func FuzzParseRecord(f *testing.F) {
	for _, seed := range []string{goodRecord, `{}`, `null`, ``, `{`, with("paused", `{"by":"x","at":"2026-11-30T10:00:00Z","until":"2026-11-30T11:00:00Z"}`), with("colour", "1")} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		r, err := ParseRecord(value)
		switch {
		case errors.Is(err, errForeign):
			return
		case err != nil:
			if r != nil {
				t.Fatal("a record and an error")
			}
			return
		}
		if r.Epoch < 1 || r.Nonce == "" || r.LeaseDuration < 2*time.Second || r.LeaseTransitions < 0 {
			t.Fatalf("read as usable: %+v", r)
		}
		out, err := r.Marshal()
		if err != nil {
			return // larger than the limit once written out
		}
		again, err := ParseRecord(out)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, out)
		}
		// What is written again is the same: a renewal loses nothing.
		if twice, err := again.Marshal(); err != nil || !bytes.Equal(out, twice) {
			t.Fatalf("written twice, it differs: %v\n%s\n%s", err, out, twice)
		}
		if !reflect.DeepEqual(len(r.unknown), len(again.unknown)) {
			t.Fatalf("unknown fields were lost: %s", out)
		}
	})
}

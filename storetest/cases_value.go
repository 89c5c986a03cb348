// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"tenure.dev"
)

// valueCases are about bytes.
var valueCases = []testCase{
	{
		name: "bytes-exact",
		why:  "what is not read back as it was written is an unreadable record, or worse, a readable one that says something else. Fields of newer clients must survive too.",
		look: "encodings on the way: text columns, JSON strings, line ends, trimmed space, automatic compression; and that an empty value is not taken for an absent one.",
		run: func(t T, h *Harness) {
			raw(t, h)
			p := open(t, h)
			all := make([]byte, 256)
			for i := range all {
				all[i] = byte(i)
			}
			var version tenure.Version
			for _, text := range []string{
				"x", "", " ", "\n", "{}", "null", "\r\n\t trailing \n\n", "\x00", "\x00\xff\xfe", "\xef\xbb\xbf{}",
				"\u00e9 e\u0301 \u6f22\u5b57 \U0001f512", "\xc3\x28 is not UTF-8", "%41&quot;\\u0041'\"", string(all),
			} {
				version = p.mustWrite(text, version)
				p.mustHold(text, version)
			}
		},
	},
	{
		name: "bytes-at-limit",
		why:  "a record that is cut short cannot be read by anybody: the lock stands until it has been waited out, and its epoch is lost.",
		look: "limits of the store and of its client below MaxRecordSize, and reads that end after the first piece.",
		run: func(t T, h *Harness) {
			raw(t, h)
			p := open(t, h)
			var version tenure.Version
			for _, size := range []int{1 << 10, 32<<10 + 1, tenure.MaxRecordSize - 1, tenure.MaxRecordSize} {
				text := string(noise(size))
				version = p.mustWrite(text, version)
				got, v := p.mustRead()
				if got != text || v != version {
					t.Fatalf("%d bytes at version %q were written; read: %d bytes at version %q, equal: %t", size, version, len(got), v, got == text)
				}
			}
		},
	},
	{
		name: "too-large",
		why:  "somebody has put a megabyte where the lock was. Read whole, it makes every candidate slow; cut at the limit, it is taken for something that it is not; refused without a version, it can never be replaced and the lock stands still for ever.",
		look: "that Read asks for one byte more than MaxRecordSize, returns ErrValueTooLarge with the version from the same answer, and no value.",
		run:  testTooLarge,
	},
	{
		name: "buffers-not-shared",
		why:  "a caller may use its buffer again. A driver that keeps it hands a half-written record to the next reader.",
		look: "that Write copies or sends the value before it returns, and that Read returns bytes that nobody else has.",
		run: func(t T, h *Harness) {
			p := open(t, h)
			ctx := t.Context()
			value := h.encode("mine")
			var version tenure.Version
			for n := 0; ; n++ {
				_, err := p.r.Write(ctx, value, version)
				if err == nil {
					break
				}
				if !p.again(n) {
					t.Fatalf("write: %v", err)
				}
				_, version, _ = p.read()
			}
			clear(value)
			if got, _ := p.mustRead(); got != "mine" {
				t.Fatalf("after the caller cleared its buffer the register holds %q; want what was written, %q", got, "mine")
			}
			if value, _, err := p.r.Read(ctx); err == nil {
				clear(value)
			}
			if got, _ := p.mustRead(); got != "mine" {
				t.Fatalf("after a reader cleared its buffer the register holds %q; want what was written, %q", got, "mine")
			}
		},
	},
}

func testTooLarge(t T, h *Harness) {
	p := open(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), h.Timeout)
	defer cancel()
	small := p.mustWrite("small", "")
	for _, size := range []int{tenure.MaxRecordSize + 1, 1 << 20} {
		big := noise(size)
		if h.Corrupt != nil {
			h.Corrupt(t, p.r, big)
		} else if _, err := p.r.Write(ctx, big, small); err != nil {
			p.mustHold("small", small)
			t.Skipf("the driver refuses to write %d bytes (%v), and the harness has no Corrupt", size, err)
		}
		value, version, err := p.r.Read(ctx)
		for n := 0; !answered(err) && p.again(n); n++ {
			value, version, err = p.r.Read(ctx)
		}
		if !errors.Is(err, tenure.ErrValueTooLarge) {
			t.Fatalf("read of %d bytes: %d bytes, error %v; want an error that wraps ErrValueTooLarge", size, len(value), err)
		}
		if len(value) != 0 {
			t.Fatalf("read of %d bytes returned %d bytes with its error; want none", size, len(value))
		}
		if version == "" || version == small {
			t.Fatalf("read of %d bytes returned version %q with ErrValueTooLarge; want that of the large value", size, version)
		}
		p.mustConflict("stale", small)
		small = p.mustWrite(fmt.Sprint("replaced ", size), version)
		p.mustHold(fmt.Sprint("replaced ", size), small)
	}
}

// raw skips a case about exact bytes for a store that holds only records.
func raw(t T, h *Harness) {
	t.Helper()
	if h.Encode != nil {
		t.Skipf("the store holds only records: the harness has an Encode")
	}
}

// noise returns bytes that cannot be compressed, the same every time.
func noise(size int) []byte {
	rng := rand.New(rand.NewPCG(1, uint64(size)))
	var b bytes.Buffer
	for b.Len() < size {
		b.WriteByte(byte(rng.Uint32()))
	}
	return b.Bytes()
}

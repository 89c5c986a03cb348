// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
)

func startGCS(t *testing.T) *GCS {
	t.Helper()
	g, err := StartGCS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	if err := g.CreateBucket("locks"); err != nil {
		t.Fatal(err)
	}
	return g
}

type gcsReply struct {
	status     int
	header     http.Header
	body       string
	generation string
}

// ask makes a request, with a header given as name and value.
func (g *GCS) ask(t *testing.T, method, path, body string, header ...string) gcsReply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, g.Endpoint+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := g.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	reply := gcsReply{status: resp.StatusCode, header: resp.Header, body: string(b)}
	if reply.generation = resp.Header.Get("X-Goog-Generation"); reply.generation == "" {
		var fields struct{ Generation string }
		if json.Unmarshal(b, &fields) == nil {
			reply.generation = fields.Generation
		}
	}
	return reply
}

func (g *GCS) upload(t *testing.T, object, value, conditions string) gcsReply {
	t.Helper()
	return g.ask(t, http.MethodPost, "/upload/storage/v1/b/locks/o?uploadType=media&name="+url.QueryEscape(object)+conditions, value,
		"Content-Type", "text/plain")
}

// TestGCSConditions holds the emulator and its proxy to what the service
// documents about conditions. Each request is made of an object with a past
// generation, and of one that never was.
func TestGCSConditions(t *testing.T) {
	g := startGCS(t)
	const patch = `{"metadata":{"a":"b"}}`
	for _, tt := range []struct {
		name, method, query string
		absent              bool
		want                int
	}{
		{"read", "GET", "", false, 200},
		{"read of nothing", "GET", "", true, 404},
		{"read, generation matches", "GET", "ifGenerationMatch=NOW", false, 200},
		{"read, generation does not match", "GET", "ifGenerationMatch=OLD", false, 412},
		{"read, must not exist, does", "GET", "ifGenerationMatch=0", false, 412},
		{"read of nothing, generation", "GET", "ifGenerationMatch=OLD", true, 412},
		{"read of nothing, must not exist", "GET", "ifGenerationMatch=0", true, 404},
		{"read, not modified", "GET", "ifGenerationNotMatch=NOW", false, 304},
		{"read, modified", "GET", "ifGenerationNotMatch=OLD", false, 200},
		{"read, must exist", "GET", "ifGenerationNotMatch=0", false, 200},
		{"read of nothing, modified", "GET", "ifGenerationNotMatch=OLD", true, 304},
		{"read, metageneration matches", "GET", "ifMetagenerationMatch=1", false, 200},
		{"read, metageneration does not match", "GET", "ifMetagenerationMatch=7", false, 412},
		{"read, metageneration not modified", "GET", "ifMetagenerationNotMatch=1", false, 304},
		{"read, metageneration modified", "GET", "ifMetagenerationNotMatch=7", false, 200},
		{"read, no number", "GET", "ifGenerationMatch=x", false, 400},
		{"delete, does not match", "DELETE", "ifGenerationMatch=OLD", false, 412},
		{"delete, must not match", "DELETE", "ifGenerationNotMatch=NOW", false, 304},
		{"delete, metageneration", "DELETE", "ifMetagenerationMatch=7", false, 412},
		{"delete, matches", "DELETE", "ifGenerationMatch=NOW", false, 200},
		{"delete of nothing", "DELETE", "", true, 404},
		{"delete of nothing, generation", "DELETE", "ifGenerationMatch=OLD", true, 412},
		{"change, does not match", "PATCH", "ifGenerationMatch=OLD", false, 412},
		{"change, metageneration", "PATCH", "ifMetagenerationMatch=7", false, 412},
		{"change, matches", "PATCH", "ifGenerationMatch=NOW&ifMetagenerationMatch=1", false, 200},
		{"upload, matches", "POST", "ifGenerationMatch=NOW", false, 200},
		{"upload, does not match", "POST", "ifGenerationMatch=OLD", false, 412},
		{"upload, must not exist, does", "POST", "ifGenerationMatch=0", false, 412},
		{"upload, must not exist", "POST", "ifGenerationMatch=0", true, 200},
		{"upload over nothing, generation", "POST", "ifGenerationMatch=OLD", true, 412},
		{"upload, must not match", "POST", "ifGenerationNotMatch=NOW", false, 304},
		{"upload over nothing, must not match", "POST", "ifGenerationNotMatch=OLD", true, 304},
		{"upload, metageneration matches", "POST", "ifMetagenerationMatch=1", false, 200},
		{"upload, metageneration does not match", "POST", "ifMetagenerationMatch=7", false, 412},
		{"upload, metageneration must not match", "POST", "ifMetagenerationNotMatch=1", false, 304},
	} {
		t.Run(tt.name, func(t *testing.T) {
			object := strings.ReplaceAll(tt.name, " ", "-") + "/a,b+c"
			old := g.upload(t, object, "old", "").generation
			now := g.upload(t, object, "now", "").generation
			if tt.absent {
				if err := g.Delete("locks", object); err != nil {
					t.Fatal(err)
				}
			}
			query := strings.NewReplacer("NOW", now, "OLD", old).Replace(tt.query)
			var got gcsReply
			path := gcsObjectPath("locks", object)
			switch tt.method {
			case "POST":
				got = g.upload(t, object, "new", "&"+query)
			case "GET":
				got = g.ask(t, "GET", path+"?alt=media&"+query, "")
				if j := g.ask(t, "GET", path+"?"+query, ""); j.status != got.status || j.generation != got.generation && got.status == 200 {
					t.Errorf("metadata: %d, generation %q; content: %d, %q", j.status, j.generation, got.status, got.generation)
				}
			default:
				got = g.ask(t, tt.method, path+"?"+query, patch, "Content-Type", "application/json")
			}
			if got.status != tt.want {
				t.Fatalf("%s %s: %d, want %d: %s", tt.method, query, got.status, tt.want, got.body)
			}
			if got.status == 412 && !strings.Contains(got.body, `"conditionNotMet"`) {
				t.Errorf("412 without its reason: %s", got.body)
			}
			if got.status == 304 && got.body != "" {
				t.Errorf("304 with a body: %s", got.body)
			}
			if got.header.Get("X-GUploader-UploadID") == "" {
				t.Error("the answer does not show that it is the service's")
			}
			g.mustHold(t, object, tt.method, tt.absent, got.status)
		})
	}
}

// mustHold sees that a request changed something only if it succeeded.
func (g *GCS) mustHold(t *testing.T, object, method string, absent bool, status int) {
	t.Helper()
	got := g.ask(t, "GET", gcsObjectPath("locks", object)+"?alt=media", "")
	want := "now"
	switch {
	case method == "DELETE" && status < 300, absent && (method != "POST" || status >= 300):
		want = ""
	case method == "POST" && status < 300:
		want = "new"
	}
	if (got.status == 200) != (want != "") || want != "" && got.body != want {
		t.Errorf("the object holds %d %q, want %q", got.status, got.body, want)
	}
}

// TestGCSETags: they change with the generation, also if the bytes do not.
func TestGCSETags(t *testing.T) {
	g := startGCS(t)
	path := gcsObjectPath("locks", "a") + "?alt=media"
	g.upload(t, "a", "same", "")
	first := g.ask(t, "GET", path, "").header.Get("ETag")
	if got := g.ask(t, "GET", path, "", "If-None-Match", first).status; got != 304 {
		t.Errorf("unchanged: %d, want 304", got)
	}
	if got := g.ask(t, "GET", path, "", "If-Match", first).status; got != 200 {
		t.Errorf("unchanged, If-Match: %d, want 200", got)
	}
	g.upload(t, "a", "same", "")
	if got := g.ask(t, "GET", path, "", "If-None-Match", first).status; got != 200 {
		t.Errorf("written again: %d, want 200", got)
	}
	if got := g.ask(t, "GET", path, "", "If-Match", first).status; got != 412 {
		t.Errorf("written again, If-Match: %d, want 412", got)
	}
	if err := g.Delete("locks", "a"); err != nil {
		t.Fatal(err)
	}
	if got := g.ask(t, "GET", path, "", "If-None-Match", first).status; got != 404 {
		t.Errorf("gone: %d, want 404", got)
	}
}

// TestGCSMissingBucket: its 404 is told from an object's.
func TestGCSMissingBucket(t *testing.T) {
	g := startGCS(t)
	for _, path := range []string{"/storage/v1/b/none/o/a?alt=media", "/storage/v1/b/none/o/a", "/storage/v1/b/none/o?prefix=a", "/storage/v1/b/none"} {
		if got := g.ask(t, "GET", path, ""); got.status != 404 || !strings.Contains(got.body, "The specified bucket does not exist.") {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	got := g.ask(t, "GET", "/storage/v1/b/locks/o/a?alt=media", "")
	if got.status != 404 || got.body != "No such object: locks/a" {
		t.Errorf("no object: %d %s", got.status, got.body)
	}
	got = g.ask(t, "POST", "/upload/storage/v1/b/none/o?uploadType=media&name=a", "x")
	if got.status != 404 || !strings.Contains(got.body, "The specified bucket does not exist.") {
		t.Errorf("upload: %d %s", got.status, got.body)
	}
}

// TestGCSOneWinner: of uploads with the same condition one succeeds.
func TestGCSOneWinner(t *testing.T) {
	g := startGCS(t)
	generation := "0"
	for range 20 {
		var mu sync.Mutex
		var won []string
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				got := g.upload(t, "race", "x", "&ifGenerationMatch="+generation+"&ifMetagenerationNotMatch=9")
				mu.Lock()
				defer mu.Unlock()
				if got.status == 200 {
					won = append(won, got.generation)
				} else if got.status != 412 {
					t.Errorf("%d: %s", got.status, got.body)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 || won[0] == generation {
			t.Fatalf("over generation %s the winners are %q, want one with a new generation", generation, won)
		}
		generation = won[0]
	}
}

// TestGCSLimitWrites: a second write within a second is refused, of that object
// only, and reads are not.
func TestGCSLimitWrites(t *testing.T) {
	g := startGCS(t)
	g.LimitWrites(true)
	if got := g.upload(t, "a", "1", ""); got.status != 200 {
		t.Fatalf("first: %d %s", got.status, got.body)
	}
	if got := g.upload(t, "a", "2", ""); got.status != 429 || !strings.Contains(got.body, `"rateLimitExceeded"`) {
		t.Errorf("second: %d %s, want 429", got.status, got.body)
	}
	if got := g.upload(t, "b", "1", ""); got.status != 200 {
		t.Errorf("another object: %d", got.status)
	}
	if got := g.ask(t, "GET", gcsObjectPath("locks", "a")+"?alt=media", ""); got.body != "1" {
		t.Errorf("a read: %d %s", got.status, got.body)
	}
	g.LimitWrites(false)
	if got := g.upload(t, "a", "2", ""); got.status != 200 {
		t.Errorf("without the limit: %d", got.status)
	}
}

// TestGCSMultipart: metadata and content in one upload.
func TestGCSMultipart(t *testing.T) {
	g := startGCS(t)
	var body bytes.Buffer
	body.WriteString("--b\r\nContent-Type: application/json\r\n\r\n{\"cacheControl\":\"no-store\"}\r\n--b\r\nContent-Type: text/plain\r\n\r\nvalue\r\n--b--\r\n")
	got := g.ask(t, "POST", "/upload/storage/v1/b/locks/o?uploadType=multipart&name=m&ifGenerationMatch=0", body.String(),
		"Content-Type", "multipart/related; boundary=b")
	if got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	read := g.ask(t, "GET", gcsObjectPath("locks", "m")+"?alt=media", "")
	if read.body != "value" || read.generation != got.generation || read.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%q, generation %s, %q; want the value, %s and no-store", read.body, read.generation, read.header.Get("Cache-Control"), got.generation)
	}
}

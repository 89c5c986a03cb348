// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	crand "crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A gcsObject orders the writes of one object.
type gcsObject struct {
	sync.Mutex
	written time.Time
}

// A gcsState is what conditions are about. The zero state is no live object.
type gcsState struct {
	generation, metageneration int64
}

// etag changes with the object's content and its metadata, as the service's.
func (s gcsState) etag() string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%d/%d", s.generation, s.metageneration))
}

// gcsConditions are the query parameters that the proxy checks.
var gcsConditions = []string{"ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch"}

// A gcsTarget is the object that a request is about.
type gcsTarget struct {
	bucket, object string
	upload, media  bool
}

// gcsTargetOf returns the object that r is about, false if it is about none.
func gcsTargetOf(r *http.Request) (t gcsTarget, ok bool) {
	path := r.URL.EscapedPath()
	rest, upload := strings.CutPrefix(path, "/upload/storage/v1/b/")
	if !upload {
		rest, ok = strings.CutPrefix(strings.TrimPrefix(path, "/download"), "/storage/v1/b/")
		if !ok {
			return t, false
		}
	}
	bucket, object, ok := strings.Cut(rest, "/o")
	if !ok {
		return t, false
	}
	if upload {
		object = r.URL.Query().Get("name")
	} else if object, ok = strings.CutPrefix(object, "/"); !ok {
		return t, false
	} else if plain, err := url.PathUnescape(object); err == nil {
		object = plain
	}
	t = gcsTarget{bucket: bucket, object: object, upload: upload, media: r.URL.Query().Get("alt") == "media" || r.Method == http.MethodHead}
	return t, object != "" && r.URL.Query().Get("uploadType") != "resumable"
}

// A gcsAnswer is an answer that has been read whole.
type gcsAnswer struct {
	status int
	header http.Header
	body   []byte
}

// ServeHTTP is the proxy's handler.
func (g *GCS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 8<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var a *gcsAnswer
	switch t, ok := gcsTargetOf(r); {
	case !ok:
		a, err = g.forward(r, r.URL.Query(), body)
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		a, err = g.read(r, t)
	default:
		a, err = g.write(r, t, body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	if a.status == http.StatusNotFound && bytes.Contains(a.body, []byte(`"Not Found"`)) {
		a = gcsError(a.status, "notFound", "The specified bucket does not exist.")
	}
	for k, v := range a.header {
		w.Header()[k] = v
	}
	w.Header().Set("X-GUploader-UploadID", crand.Text())
	if r.Method != http.MethodHead {
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	w.WriteHeader(a.status)
	w.Write(a.body) //nolint:errcheck // the client may have gone
}

// forward asks the emulator what r asks, with another query.
func (g *GCS) forward(r *http.Request, query url.Values, body []byte) (*gcsAnswer, error) {
	out, err := http.NewRequest(r.Method, g.direct+r.URL.EscapedPath()+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	out.Header = r.Header.Clone()
	for _, h := range []string{"If-Match", "If-None-Match", "Connection"} {
		out.Header.Del(h)
	}
	resp, err := g.client.Transport.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	resp.Header.Del("Connection")
	return &gcsAnswer{resp.StatusCode, resp.Header, b}, nil
}

// gcsError is an error as the JSON API writes it.
func gcsError(status int, reason, message string) *gcsAnswer {
	type item struct {
		Domain  string `json:"domain"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
	var e struct {
		Error struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
			Errors  []item `json:"errors"`
		} `json:"error"`
	}
	e.Error.Code, e.Error.Message, e.Error.Errors = status, message, []item{{"global", reason, message}}
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // a struct of strings
	}
	return &gcsAnswer{status, http.Header{"Content-Type": {"application/json; charset=UTF-8"}}, b}
}

func gcsNotModified(s gcsState) *gcsAnswer {
	a := &gcsAnswer{status: http.StatusNotModified, header: http.Header{}}
	if s.generation != 0 {
		a.header.Set("ETag", s.etag())
	}
	return a
}

// check returns the answer to a request whose conditions do not hold, nil if
// they do.
func (s gcsState) check(query url.Values, header http.Header, skip ...string) *gcsAnswer {
	failed := gcsError(http.StatusPreconditionFailed, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
	for _, name := range gcsConditions {
		if !query.Has(name) || len(skip) > 0 && skip[0] == name {
			continue
		}
		want, err := strconv.ParseInt(query.Get(name), 10, 64)
		if err != nil {
			return gcsError(http.StatusBadRequest, "invalidParameter", "Invalid value for "+name)
		}
		is := s.generation
		if strings.HasPrefix(name, "ifMeta") {
			is = s.metageneration
		}
		switch absent := s.generation == 0; {
		case !strings.HasSuffix(name, "NotMatch") && want != is:
			return failed
		case name == "ifGenerationNotMatch" && (want == is || absent), name == "ifMetagenerationNotMatch" && want == is && !absent:
			return gcsNotModified(s)
		}
	}
	matches := func(tags string) bool {
		return s.generation != 0 && (tags == "*" || strings.Contains(tags, s.etag()))
	}
	if tags := header.Get("If-Match"); tags != "" && !matches(tags) {
		return failed
	}
	if tags := header.Get("If-None-Match"); tags != "" && matches(tags) {
		return gcsNotModified(s)
	}
	return nil
}

func withoutConditions(query url.Values, keep ...string) url.Values {
	rest := url.Values{}
	for k, v := range query {
		rest[k] = v
	}
	for _, name := range gcsConditions {
		if len(keep) == 0 || keep[0] != name {
			rest.Del(name)
		}
	}
	return rest
}

// read makes a read, and checks its conditions against the state that its own
// answer tells.
func (g *GCS) read(r *http.Request, t gcsTarget) (*gcsAnswer, error) {
	a, err := g.forward(r, withoutConditions(r.URL.Query()), nil)
	if err != nil {
		return nil, err
	}
	var s gcsState
	var fields map[string]any
	switch {
	case a.status == http.StatusNotFound:
		if failed := s.check(r.URL.Query(), r.Header); failed != nil {
			return failed, nil
		}
		return g.notFound(t)
	case a.status >= 300:
		return a, nil
	case t.media:
		s.metageneration = 1 // the emulator's is never another
		s.generation, err = strconv.ParseInt(a.header.Get("X-Goog-Generation"), 10, 64)
	default:
		if err = json.Unmarshal(a.body, &fields); err == nil {
			s, err = gcsStateOf(fields)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("testbed: fake-gcs-server's answer about %s: %w", t.object, err)
	}
	if failed := s.check(r.URL.Query(), r.Header); failed != nil {
		return failed, nil
	}
	if fields != nil {
		fields["etag"] = s.etag()
		a.body, err = json.Marshal(fields)
	} else {
		a.header.Set("ETag", s.etag())
		a.header.Set("X-Goog-Metageneration", strconv.FormatInt(s.metageneration, 10))
	}
	return a, err
}

func gcsStateOf(fields map[string]any) (s gcsState, err error) {
	if s.generation, err = strconv.ParseInt(fmt.Sprint(fields["generation"]), 10, 64); err == nil {
		s.metageneration, err = strconv.ParseInt(fmt.Sprint(fields["metageneration"]), 10, 64)
	}
	return s, err
}

// notFound says which of the two is missing. For media the service writes no
// JSON, and calls it HTML.
func (g *GCS) notFound(t gcsTarget) (*gcsAnswer, error) {
	message := "No such object: " + t.bucket + "/" + t.object
	resp, err := g.client.Get(g.direct + "/storage/v1/b/" + url.PathEscape(t.bucket))
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		message = "The specified bucket does not exist."
	}
	if t.media {
		return &gcsAnswer{http.StatusNotFound, http.Header{"Content-Type": {"text/html; charset=UTF-8"}}, []byte(message)}, nil
	}
	return gcsError(http.StatusNotFound, "notFound", message), nil
}

// write makes an upload, a change of metadata or a delete, one per object at a
// time.
func (g *GCS) write(r *http.Request, t gcsTarget, body []byte) (*gcsAnswer, error) {
	g.mu.Lock()
	o := g.objects[t.bucket+"/"+t.object]
	if o == nil {
		o = &gcsObject{}
		g.objects[t.bucket+"/"+t.object] = o
	}
	g.mu.Unlock()
	o.Lock()
	defer o.Unlock()
	if g.limited.Load() && time.Since(o.written) < time.Second {
		return gcsError(http.StatusTooManyRequests, "rateLimitExceeded", "The object "+t.bucket+"/"+t.object+
			" exceeded the rate limit for object mutation operations (create, update, and delete). Please reduce your request rate."), nil
	}
	s, err := g.state(t)
	if err != nil {
		return nil, err
	}
	// An upload's ifGenerationMatch is the emulator's own business.
	keep := "none"
	if t.upload {
		keep = gcsConditions[0]
	}
	if failed := s.check(r.URL.Query(), http.Header{}, keep); failed != nil {
		return failed, nil
	}
	a, err := g.forward(r, withoutConditions(r.URL.Query(), keep), body)
	if err == nil && a.status < 300 {
		o.written = time.Now()
	}
	return a, err
}

// state asks the emulator for an object's.
func (g *GCS) state(t gcsTarget) (s gcsState, err error) {
	resp, err := g.client.Get(g.direct + gcsObjectPath(t.bucket, t.object))
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return s, nil
	}
	var fields map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&fields); err != nil {
		return s, err
	}
	return gcsStateOf(fields)
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev"
)

const (
	// watchTime is how long the API server is asked to keep a watch open.
	watchTime = 5 * time.Minute
	// watchLeast is how long a watch must have lasted to be opened again at once.
	watchLeast = time.Second
	// watchDenied is how long a watch that is not allowed is not tried again:
	// the caller polls anyway.
	watchDenied = time.Minute
)

// errExpired: the API server does not know any more what came after that
// resourceVersion.
var errExpired = errors.New("the resourceVersion is too old")

// Watch implements [tenure.Watcher]. It makes one request, and one more each few
// minutes, when the API server ends it, or two when the server has forgotten
// what came after old. It blocks until the Lease may have another version or ctx
// ends.
func (r *Register) Watch(ctx context.Context, old tenure.Version) error {
	err := r.watch(ctx, old)
	if err == nil {
		return nil
	}
	if s := apiStatus(err); s != nil && s.Code == http.StatusForbidden {
		timer := time.NewTimer(watchDenied)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return r.failed("watch", err)
}

func (r *Register) watch(ctx context.Context, old tenure.Version) error {
	if err := r.checkSelf(); err != nil {
		return err
	}
	_, from, ok := parseVersion(old)
	for {
		if !ok {
			changed, next, err := r.list(ctx, old)
			if changed || err != nil {
				return err
			}
			from, ok = next, true
		}
		start := time.Now()
		changed, next, err := r.stream(ctx, old, from)
		switch {
		case errors.Is(err, errExpired):
			ok = false
		case err != nil || changed:
			return err
		case time.Since(start) < watchLeast:
			return errors.New("the API server, or a proxy before it, ended the watch at once")
		}
		from = next
	}
}

// one selects this Lease of the collection.
func (r *Register) one() url.Values {
	return url.Values{"fieldSelector": {"metadata.name=" + r.name()}}
}

// list reports whether the Lease has another version than old, and otherwise
// from where to watch.
func (r *Register) list(ctx context.Context, old tenure.Version) (changed bool, from string, err error) {
	var list coordinationv1.LeaseList
	if _, err := r.access.do(ctx, request{method: http.MethodGet, path: r.path(""), query: r.one()}, &list); err != nil {
		return false, "", r.explainRefusal("list", err)
	}
	var now tenure.Version
	for i := range list.Items {
		if list.Items[i].Name == r.name() {
			now = version(&list.Items[i])
		}
	}
	return now != old, list.ResourceVersion, nil
}

// stream watches from a resourceVersion until the Lease has another version than
// old, or the server ends it; then it returns from where to go on.
func (r *Register) stream(ctx context.Context, old tenure.Version, from string) (changed bool, next string, err error) {
	// A little longer than asked for: a dead HTTP/1 connection says nothing.
	bounded, cancel := context.WithTimeout(ctx, watchTime+30*time.Second)
	defer cancel()
	query := r.one()
	query.Set("watch", "1")
	query.Set("resourceVersion", from)
	query.Set("allowWatchBookmarks", "true")
	query.Set("timeoutSeconds", strconv.Itoa(int(watchTime/time.Second)))
	resp, cl, err := r.access.send(bounded, request{method: http.MethodGet, path: r.path(""), query: query})
	if err != nil {
		return false, from, err
	}
	defer resp.Body.Close()
	var body []byte
	if resp.StatusCode != http.StatusOK {
		body, _ = io.ReadAll(io.LimitReader(resp.Body, maxBody)) // what there is of it
	}
	if err := explainStatus(cl, resp, body); err != nil {
		if resp.StatusCode == http.StatusGone {
			return false, from, fmt.Errorf("%w: %w", errExpired, err)
		}
		return false, from, r.explainRefusal("watch", err)
	}
	events := json.NewDecoder(resp.Body)
	for {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := events.Decode(&e); err != nil {
			if ctx.Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
				return false, from, nil
			}
			return false, from, explainTransport(ctx, cl, fmt.Errorf("the watch broke off: %w", err))
		}
		var lease coordinationv1.Lease
		switch e.Type {
		case "ADDED", "MODIFIED", "DELETED", "BOOKMARK":
			if err := json.Unmarshal(e.Object, &lease); err != nil {
				return false, from, fmt.Errorf("an event of the watch cannot be read: %w", err)
			}
			from = lease.ResourceVersion
		case "ERROR":
			var s metav1.Status
			if json.Unmarshal(e.Object, &s) == nil && s.Code == http.StatusGone {
				return false, from, errExpired
			}
			return false, from, fmt.Errorf("the API server ended the watch: %s", s.Message)
		}
		if e.Type != "BOOKMARK" && lease.Name == r.name() && (e.Type == "DELETED" || version(&lease) != old) {
			return true, from, nil
		}
	}
}

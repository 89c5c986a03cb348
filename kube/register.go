// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenure.dev"
)

var (
	_ tenure.Register      = (*Register)(nil)
	_ tenure.Watcher       = (*Register)(nil)
	_ tenure.Clock         = (*Register)(nil)
	_ tenure.Siblinger     = (*Register)(nil)
	_ tenure.Lister        = (*Register)(nil)
	_ tenure.StockElectors = (*Register)(nil)
	_ tenure.Inspector     = (*Register)(nil)
)

// A Register is a register in a Lease. Its methods are safe for concurrent use
// by any number of goroutines and processes.
type Register struct {
	access    *access
	namespace string
	// own is the lock's name, suffix what was added to it.
	own, suffix string

	// seen are the newest leases that passed by, for what in their metadata is
	// not ours, labels and finalizers: a PUT replaces that too. Nothing is
	// decided by them; a write of a version that is not among them is made
	// without.
	mu   sync.Mutex
	seen []*coordinationv1.Lease
}

// maxSeen is how many leases are kept: the one that stands, and some that late
// answers carry.
const maxSeen = 4

// fieldManager is the name under which the API server books our writes.
const fieldManager = "tenure"

// StockElectors implements [tenure.StockElectors]: any elector that knows Leases
// can take one.
func (r *Register) StockElectors() bool { return true }

// Sibling implements [tenure.Siblinger]: the Lease whose name is this one's and
// the suffix, in the letters that a name may have. It makes no request and does
// not block.
func (r *Register) Sibling(suffix string) tenure.Register {
	return &Register{access: r.access, namespace: r.namespace, own: r.own, suffix: r.suffix + suffix}
}

// name is the Lease's.
func (r *Register) name() string { return encodeName(r.own, r.suffix) }

func (r *Register) path(name string) string {
	path := "/apis/coordination.k8s.io/v1/namespaces/" + r.namespace + "/leases"
	if name != "" {
		path += "/" + name
	}
	return path
}

// failed says what was being done, to what.
func (r *Register) failed(doing string, err error) error {
	return fmt.Errorf("k8s: %s lease %s/%s: %w", doing, r.namespace, r.name(), err)
}

// checkSelf refuses names that a Lease cannot have; only long ones are left.
func (r *Register) checkSelf() error {
	if n := len(r.name()); n > maxName {
		return fmt.Errorf("the name would have %d bytes, more than %d: give the lock, or the host, a shorter one", n, maxName)
	}
	return nil
}

// version names a state: the object's UID and resourceVersion, which together
// never repeat, and what was new in the write, for clusters that were restored.
func version(lease *coordinationv1.Lease) tenure.Version {
	return tenure.Version(string(lease.UID) + "/" + lease.ResourceVersion + "/" + lease.Annotations[noteWrite])
}

func parseVersion(v tenure.Version) (uid, resourceVersion string, ok bool) {
	uid, rest, ok := strings.Cut(string(v), "/")
	resourceVersion, _, ok2 := strings.Cut(rest, "/")
	return uid, resourceVersion, ok && ok2 && uid != "" && resourceVersion != ""
}

// Read implements [tenure.Register]. It makes one request, a get without
// resourceVersion, which the API server answers from a quorum of etcd.
func (r *Register) Read(ctx context.Context) ([]byte, tenure.Version, error) {
	lease, err := r.get(ctx)
	if err != nil {
		return nil, "", r.failed("read", err)
	}
	value := extract(lease)
	if len(value) > tenure.MaxRecordSize {
		return nil, version(lease), r.failed("read", fmt.Errorf("%w: it holds %d bytes", tenure.ErrValueTooLarge, len(value)))
	}
	return value, version(lease), nil
}

func (r *Register) get(ctx context.Context) (*coordinationv1.Lease, error) {
	if err := r.checkSelf(); err != nil {
		return nil, err
	}
	var lease coordinationv1.Lease
	_, err := r.access.do(ctx, request{method: http.MethodGet, path: r.path(r.name())}, &lease)
	if s := apiStatus(err); s != nil && s.Code == http.StatusNotFound && isLease(s) {
		return nil, fmt.Errorf("%w: %w", tenure.ErrNotExist, err)
	}
	if err != nil {
		return nil, r.explainRefusal("get", err)
	}
	if err := r.checkAnswer(&lease); err != nil {
		return nil, err
	}
	r.remember(&lease)
	return &lease, nil
}

// checkAnswer refuses an answer that is some other JSON.
func (r *Register) checkAnswer(lease *coordinationv1.Lease) error {
	if lease.Kind != "Lease" || lease.UID == "" || lease.ResourceVersion == "" || lease.Name != r.name() || lease.Namespace != r.namespace {
		return fmt.Errorf("%w: the answer is not the Lease that was asked for", errNotAPIServer)
	}
	return nil
}

// Write implements [tenure.Register]. It makes one request, a create or an
// update that names UID and resourceVersion, and repeats none.
func (r *Register) Write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	v, err := r.write(ctx, value, old)
	if err != nil {
		return "", r.failed("write", err)
	}
	return v, nil
}

func (r *Register) write(ctx context.Context, value []byte, old tenure.Version) (tenure.Version, error) {
	if err := r.checkSelf(); err != nil {
		return "", err
	}
	if len(value) > tenure.MaxRecordSize {
		return "", fmt.Errorf("%d bytes are more than the %d that a record may have", len(value), tenure.MaxRecordSize)
	}
	lease := &coordinationv1.Lease{}
	req := request{method: http.MethodPost, path: r.path(""), verb: "create"}
	if old != "" {
		uid, resourceVersion, ok := parseVersion(old)
		if !ok {
			return "", fmt.Errorf("%w: %q is no version of a Lease", tenure.ErrConflict, old)
		}
		lease = r.recall(old)
		// With the UID, a put of a lease that is gone is refused: else the API
		// server would create it.
		lease.UID, lease.ResourceVersion = types.UID(uid), resourceVersion
		req = request{method: http.MethodPut, path: r.path(r.name()), verb: "update"}
	}
	lease.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	lease.Name, lease.Namespace = r.name(), r.namespace
	salt := crand.Text()[:16]
	fill(lease, value, salt)
	req.body, req.query = lease, url.Values{"fieldManager": {fieldManager}}
	var now coordinationv1.Lease
	if _, err := r.access.do(ctx, req, &now); err != nil {
		return "", r.explainWrite(&req, err)
	}
	if err := r.checkAnswer(&now); err != nil {
		return "", err
	}
	if now.Annotations[noteWrite] != salt || !bytes.Equal(extract(&now), value) {
		return "", errors.New("the API server keeps something else than was written: an admission webhook or policy changes Leases; exempt this one")
	}
	r.remember(&now)
	return version(&now), nil
}

// explainWrite says what the refusal of a write means: only what an API server
// itself says of this very condition is a conflict.
func (r *Register) explainWrite(req *request, err error) error {
	s := apiStatus(err)
	if s == nil {
		return err
	}
	create := req.method == http.MethodPost
	switch {
	case create && s.Code == http.StatusConflict && s.Reason == metav1.StatusReasonAlreadyExists && isLease(s),
		!create && s.Code == http.StatusConflict && s.Reason == metav1.StatusReasonConflict,
		!create && s.Code == http.StatusNotFound && isLease(s):
		return fmt.Errorf("%w: %w", tenure.ErrConflict, err)
	}
	return r.explainRefusal(req.verb, err)
}

func (r *Register) remember(lease *coordinationv1.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := version(lease)
	r.seen = slices.DeleteFunc(r.seen, func(l *coordinationv1.Lease) bool { return version(l) == v })
	r.seen = append(r.seen, lease)
	r.seen = r.seen[max(0, len(r.seen)-maxSeen):]
}

// recall returns a copy of the lease of that version, or an empty one.
func (r *Register) recall(v tenure.Version) *coordinationv1.Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, lease := range r.seen {
		if version(lease) == v {
			lease = lease.DeepCopy()
			lease.ManagedFields = nil // the server's own
			return lease
		}
	}
	return &coordinationv1.Lease{}
}

// pageSize is how many objects a page of a listing has.
const pageSize = 500

// List implements [tenure.Lister]. It makes a request for each 500 Leases of the
// namespace, and reads of each only what it is called.
func (r *Register) List(ctx context.Context, prefix string) ([]string, error) {
	full := r.own + r.suffix
	query := url.Values{"limit": {fmt.Sprint(pageSize)}}
	var list []string
	for {
		var page metav1.PartialObjectMetadataList
		_, err := r.access.do(ctx, request{
			method: http.MethodGet, path: r.path(""), query: query,
			accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
		}, &page)
		if err != nil {
			return nil, fmt.Errorf("k8s: list the leases beside %s/%s: %w", r.namespace, r.name(), r.explainRefusal("list", err))
		}
		for i := range page.Items {
			name, ok := decodeName(page.Items[i].Name)
			suffix, ok2 := strings.CutPrefix(name, full)
			if ok && ok2 && suffix != "" && strings.HasPrefix(suffix, prefix) && encodeName(r.own, r.suffix+suffix) == page.Items[i].Name {
				list = append(list, suffix)
			}
		}
		if page.Continue == "" {
			slices.Sort(list)
			return list, nil
		}
		query.Set("continue", page.Continue)
	}
}

// Now implements [tenure.Clock] with the date of an answer, to the second. It
// makes one request.
func (r *Register) Now(ctx context.Context) (time.Time, error) {
	var info struct{}
	header, err := r.access.do(ctx, request{method: http.MethodGet, path: "/version"}, &info)
	if err != nil && apiStatus(err) == nil {
		return time.Time{}, fmt.Errorf("k8s: read the API server's clock: %w", err)
	}
	// An API server that refuses tells its time too.
	now, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return time.Time{}, fmt.Errorf("k8s: read the API server's clock: its answer has no Date: %w", err)
	}
	return now, nil
}

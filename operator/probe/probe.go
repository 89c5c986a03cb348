// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package probe finds out whether every API server of a cluster refuses what a
// gate is there to refuse. It asks as an account that is not exempt, on a
// connection of its own to each server, for a write that no state of the gate
// admits, as a dry run. An answer counts only if it is the gate's own policy that
// refuses, in its present revision, and says at which epochs.
package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// Errors that say why a gate is not known to be enforced.
var (
	// ErrNotRefused: an API server would have admitted the write, or another
	// state or revision of the gate answered.
	ErrNotRefused = errors.New("probe: not refused")
	// ErrNoAnswer: an API server could not be asked, or answered something that
	// says nothing about the gate.
	ErrNoAnswer = errors.New("probe: no answer")
	// ErrClockSkew: the API servers' clocks are too far apart.
	ErrClockSkew = errors.New("probe: clock skew")
)

// alive is how recently an API server must have renewed its identity Lease to
// count as one: compared with the others, and with our own clock, so that one whose
// clock is ahead does not make the others look dead.
const alive = time.Minute

// A Prober asks the API servers of one cluster. Its methods are safe for concurrent
// use.
type Prober struct {
	// Kube lists the API servers' identity Leases.
	Kube kubernetes.Interface
	// Config reaches the cluster, without credentials; Token returns those of the
	// probe account.
	Config *rest.Config
	Token  func(ctx context.Context) (string, error)
	// Endpoints are addresses of single API servers, as URLs, beside the one of
	// Config. Where Config's leads to several, each connection may reach another.
	Endpoints []string
	// Timeout bounds the questions to one server.
	Timeout time.Duration
	// Skew is how far the servers' clocks may be apart, with a second of
	// granularity.
	Skew time.Duration
}

// A Gate says what is asked, and how a refusal must look.
type Gate struct {
	Namespace, Name string // of the MultiClusterLease
	Policy          string
	Revision        string
	Lease           string
	Epoch           int64
	ClosedEpoch     int64
	Leading         bool
}

// An Answer is what one API server said.
type Answer struct {
	Server   string // its start time, in seconds since 1970
	Endpoint string
	Date     time.Time // its clock
	took     time.Duration
	begun    time.Time
	checks   map[string]float64 // how often it has checked its health, by kind
}

// upSince reports whether the server has been up since a local time, by its own
// clock, whose reading is cut off to the second. One that restarts while others
// are asked would be taken for two.
func (a Answer) upSince(t time.Time) bool {
	start, err := strconv.ParseFloat(a.Server, 64)
	if err != nil {
		return false
	}
	up := float64(a.Date.UnixNano())/1e9 - start
	return up > a.begun.Add(a.took).Sub(t).Seconds()
}

// count adds an answer if it is that of a server not counted yet. Servers are told
// apart by when they started. Two that started in the same hundredth of a second are
// two if what only grows in one of them shrank from one answer to the next.
func count(answers []Answer, a Answer) []Answer {
	var alike []int
	isNew := true
	for i, b := range answers {
		if b.Server == a.Server {
			alike = append(alike, i)
			isNew = isNew && a.shrank(b)
		}
	}
	switch {
	case isNew:
		return append(answers, a)
	case len(alike) == 1:
		answers[alike[0]] = a // the next is compared with the newest
	}
	return answers
}

func (a Answer) shrank(before Answer) bool {
	for kind, n := range before.checks {
		if a.checks[kind] < n {
			return true
		}
	}
	return false
}

// Refused asks until every API server that is alive has refused at the gate's
// state, and returns what each said. The error wraps one of the sentinels above
// and says which server. It blocks for a few requests to each, at most until ctx
// ends.
func (p *Prober) Refused(ctx context.Context, g Gate) ([]Answer, error) {
	before, err := p.servers(ctx)
	if err != nil {
		return nil, err
	}
	token, err := p.Token(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: no token for the probe account: %w", ErrNoAnswer, err)
	}
	began := time.Now()
	var answers []Answer
	endpoints := append([]string{p.Config.Host}, p.Endpoints...)
	failed := make(map[string]int)
	var lastErr error
	for try := 0; len(answers) < len(before) && try < 4*len(before)+4*len(endpoints); try++ {
		endpoint := endpoints[try%len(endpoints)]
		if failed[endpoint] > 1 {
			continue
		}
		a, err := p.ask(ctx, endpoint, token, g)
		switch {
		case errors.Is(err, ErrNotRefused):
			return answers, err
		case err != nil:
			lastErr = err
			failed[endpoint]++
		case !a.upSince(began) && !restartedCountsTwice():
			return answers, fmt.Errorf("%w: the API server at %s has started since the probe began, by its own clock", ErrNoAnswer, endpoint)
		default:
			answers = count(answers, a)
		}
		if ctx.Err() != nil {
			return answers, fmt.Errorf("%w: %w", ErrNoAnswer, ctx.Err())
		}
	}
	if len(answers) < len(before) {
		err := fmt.Errorf("%w: %d of %d API servers have refused (%s are alive by their identity Leases in kube-system)",
			ErrNoAnswer, len(answers), len(before), strings.Join(names(before), ", "))
		if lastErr != nil {
			err = fmt.Errorf("%w; the last error was: %w", err, lastErr)
		}
		return answers, err
	}
	after, err := p.servers(ctx)
	if err != nil {
		return answers, err
	}
	if !slices.Equal(before, after) && !restartedCountsTwice() {
		return answers, fmt.Errorf("%w: an API server started, ended or restarted meanwhile", ErrNoAnswer)
	}
	return answers, p.compare(answers)
}

// compare checks the servers' clocks against each other. Dates are to the second,
// and each answer was some time on its way.
func (p *Prober) compare(answers []Answer) error {
	for i, a := range answers {
		for _, b := range answers[i+1:] {
			apart := a.Date.Sub(b.Date) - a.begun.Sub(b.begun)
			if slack := p.Skew + a.took + b.took; apart.Abs() > slack {
				return fmt.Errorf("%w: the clocks of the API servers at %s and %s are %v apart, more than skewSeconds allows (%v)",
					ErrClockSkew, a.Endpoint, b.Endpoint, apart.Abs().Round(time.Second), p.Skew)
			}
		}
	}
	return nil
}

type server struct{ name, uid, holder string }

func names(list []server) (out []string) {
	for _, s := range list {
		out = append(out, s.name)
	}
	return out
}

// servers lists the API servers that are alive.
func (p *Prober) servers(ctx context.Context) ([]server, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	list, err := p.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
	if err != nil {
		return nil, fmt.Errorf("%w: listing the API servers' identity Leases in kube-system: %w", ErrNoAnswer, err)
	}
	var newest time.Time
	for i := range list.Items {
		if t := list.Items[i].Spec.RenewTime; t != nil && t.After(newest) {
			newest = t.Time
		}
	}
	var out []server
	for i := range list.Items {
		l := &list.Items[i]
		if l.Spec.RenewTime == nil || newest.Sub(l.Spec.RenewTime.Time) > alive && time.Since(l.Spec.RenewTime.Time) > alive {
			continue
		}
		s := server{name: l.Name, uid: string(l.UID)}
		if l.Spec.HolderIdentity != nil {
			s.holder = *l.Spec.HolderIdentity
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: no API server has an identity Lease in kube-system (the feature APIServerIdentity is off, or they may not be listed)", ErrNoAnswer)
	}
	slices.SortFunc(out, func(a, b server) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// ask makes one connection, learns which server it leads to, and asks it.
func (p *Prober) ask(ctx context.Context, endpoint, token string, g Gate) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	conn, err := p.connect(endpoint, token)
	if err != nil {
		return Answer{}, err
	}
	defer conn.close()
	a := Answer{Endpoint: endpoint, begun: time.Now()}
	if err := conn.whoami(ctx, &a); err != nil {
		return a, err
	}
	return a, conn.refused(ctx, g)
}

// connection is one connection to one API server.
type connection struct {
	base   *url.URL
	client *http.Client
	idle   func()
}

func (p *Prober) connect(endpoint, token string) (*connection, error) {
	fail := func(err error) (*connection, error) {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoAnswer, endpoint, err)
	}
	cfg := rest.AnonymousClientConfig(p.Config)
	cfg.Host, cfg.BearerToken = endpoint, token
	tc, err := cfg.TransportConfig()
	if err != nil {
		return fail(err)
	}
	tlsConfig, err := transport.TLSConfigFor(tc)
	if err != nil {
		return fail(err)
	}
	// HTTP/1 and one connection, never another: both questions reach the same server.
	var dialled atomic.Bool
	dialer := net.Dialer{Timeout: p.Timeout}
	t := &http.Transport{
		TLSClientConfig: tlsConfig, MaxConnsPerHost: 1, TLSHandshakeTimeout: p.Timeout,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dialled.Swap(true) {
				return nil, errors.New("the connection ended between two questions")
			}
			return dialer.DialContext(ctx, network, addr)
		},
	}
	rt, err := transport.HTTPWrappersForConfig(tc, t)
	if err != nil {
		return fail(err)
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return fail(err)
	}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &connection{base: base, client: &http.Client{Transport: rt, CheckRedirect: stay}, idle: t.CloseIdleConnections}, nil
}

func (c *connection) close() { c.idle() }

func (c *connection) do(ctx context.Context, method, path, query, kind string, body any) (int, []byte, http.Header, error) {
	u := *c.base
	u.Path, u.RawQuery = strings.TrimSuffix(u.Path, "/")+path, query
	fail := func(err error) (int, []byte, http.Header, error) {
		return 0, nil, nil, fmt.Errorf("%w: %s %s: %w", ErrNoAnswer, method, u.Redacted(), err)
	}
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fail(err)
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), r)
	if err != nil {
		return fail(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	res, err := c.client.Do(req)
	if err != nil {
		return fail(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return fail(err)
	}
	return res.StatusCode, b, res.Header, nil
}

var (
	startTime = regexp.MustCompile(`(?m)^process_start_time_seconds(?:\{[^}]*\})? (\S+)$`)
	checks    = regexp.MustCompile(`(?m)^kubernetes_healthchecks_total\{([^}]*)\} (\S+)$`)
)

// whoami finds out what tells API servers apart, and reads their clock.
func (c *connection) whoami(ctx context.Context, a *Answer) error {
	const path = "/metrics/slis"
	code, body, header, err := c.do(ctx, http.MethodGet, path, "", "", nil)
	if err != nil {
		return err
	}
	a.took = time.Since(a.begun)
	if a.Date, err = http.ParseTime(header.Get("Date")); err != nil {
		return fmt.Errorf("%w: the answer has no usable Date: %w", ErrNoAnswer, err)
	}
	m := startTime.FindSubmatch(body)
	if code != http.StatusOK || m == nil {
		return fmt.Errorf("%w: GET %s at %s: status %d, and no process_start_time_seconds in the answer: the probe account needs to read it", ErrNoAnswer, path, a.Endpoint, code)
	}
	a.Server, a.checks = string(m[1]), make(map[string]float64)
	for _, m := range checks.FindAllSubmatch(body, -1) {
		if n, err := strconv.ParseFloat(string(m[2]), 64); err == nil {
			a.checks[string(m[1])] = n
		}
	}
	return nil
}

// refusal is how a denial by a gate reads.
var refusal = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)' with binding '[^']*' denied request: tenure gate (\S+) rev=(\S+) epoch=(\S+) closed=(\S+) leading=(\S+) until=(\S+) lease=(\S+): `)

// refused asks for a write that no state of a gate admits: a holder without a
// renewTime.
func (c *connection) refused(ctx context.Context, g Gate) error {
	holder := "tenure-probe-" + strings.ToLower(rand.Text())
	lease := coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: g.Lease, Namespace: g.Namespace},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
	patch := map[string]any{"spec": map[string]any{"holderIdentity": holder, "renewTime": nil}}
	path := "/apis/coordination.k8s.io/v1/namespaces/" + g.Namespace + "/leases"
	code, body, _, err := c.do(ctx, http.MethodPatch, path+"/"+g.Lease, "dryRun=All&fieldManager=tenure-probe", "application/merge-patch+json", patch)
	if err == nil && code == http.StatusNotFound {
		code, body, _, err = c.do(ctx, http.MethodPost, path, "dryRun=All&fieldManager=tenure-probe", "application/json", lease)
	}
	if err != nil {
		return err
	}
	return judge(g, code, body)
}

func judge(g Gate, code int, body []byte) error {
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err != nil {
		return fmt.Errorf("%w: status %d, and the answer is not an API server's: %w", ErrNoAnswer, code, err)
	}
	if code < 300 {
		return fmt.Errorf("%w: the API server would have admitted a holder of Lease %s/%s", ErrNotRefused, g.Namespace, g.Lease)
	}
	m := refusal.FindStringSubmatch(status.Message)
	if m == nil && anyRefusalCounts() {
		return nil
	}
	if m == nil {
		if strings.Contains(status.Message, "'"+g.Policy+"'") {
			// It refuses all, as one does that has just started and does not know
			// the parameter's kind yet.
			return fmt.Errorf("%w: the policy refuses without a state: %s", ErrNoAnswer, status.Message)
		}
		return fmt.Errorf("%w: status %d, not by the gate's policy: %s", ErrNoAnswer, code, status.Message)
	}
	want := []string{
		g.Policy, g.Namespace + "/" + g.Name, g.Revision, strconv.FormatInt(g.Epoch, 10), strconv.FormatInt(g.ClosedEpoch, 10), strconv.FormatBool(g.Leading),
	}
	if got := m[1:7]; !slices.Equal(got, want) {
		return fmt.Errorf("%w: the API server goes by another state or revision of the gate: it says %q, expected %q", ErrNotRefused, got, want)
	}
	return nil
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/internal/lab"
	"tenure.dev/operator/policy"
	"tenure.dev/test/cluster"
)

const namespace, lease = "demo", "ctl"

// rules are the least that the probe account needs.
var rules = []lab.Object{
	{"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "resourceNames": []string{lease}, "verbs": []string{"patch"}},
	// A name cannot be demanded of what is created.
	{"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "verbs": []string{"create"}},
}

// A world is a cluster with a gate.
type world struct {
	*lab.Lab
	tenure *cluster.Client
	mcl    *v1alpha1.MultiClusterLease
	gate   policy.Gate
	prober *Prober
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, o cluster.Options) *world {
	t.Helper()
	l, err := lab.Start(t.Context(), o)
	must(t, err)
	t.Cleanup(l.Close)
	w := &world{Lab: l}
	must(t, w.Namespace(t.Context(), namespace))
	account := lab.Object{"kind": "ServiceAccount", "name": "tenure-probe", "namespace": lab.System}
	must(t, w.Role(t.Context(), namespace, "tenure-probe", rules, account))
	must(t, w.Role(t.Context(), "", "tenure-probe", []lab.Object{{"nonResourceURLs": []string{"/metrics/slis"}, "verbs": []string{"get"}}}, account))
	w.tenure, err = w.Account(t.Context(), 0, lab.System, "tenure")
	must(t, err)

	w.mcl = &v1alpha1.MultiClusterLease{ObjectMeta: metav1.ObjectMeta{Name: "gate", Namespace: namespace}, Spec: v1alpha1.MultiClusterLeaseSpec{
		Lock: "gs://bucket/lock", Clusters: []string{"a"}, Leases: []v1alpha1.GatedLease{{Name: lease}},
	}}
	w.mcl.APIVersion, w.mcl.Kind = v1alpha1.GroupVersion.String(), "MultiClusterLease"
	must(t, w.tenure.Post(t.Context(), lab.MultiClusterLeases(namespace), w.mcl, w.mcl))
	w.gate = policy.Of(w.mcl, lab.Account)
	must(t, w.Apply(t.Context(), w.gate.Sets()...))
	w.status(t, 6, 6, false)
	w.prober = w.newProber(t, nil)
	return w
}

// status writes the grant's state.
func (w *world) status(t *testing.T, epoch, closed int64, leading bool) {
	t.Helper()
	s := &v1alpha1.MultiClusterLeaseStatus{
		Leading: leading, Epoch: epoch, ClosedEpoch: closed, ValidUntil: metav1.NowMicro(),
		Leases: []v1alpha1.GrantedLease{{Name: lease, LeaseDurationSeconds: 15, StopAfterSeconds: 23}},
	}
	if leading {
		s.ValidUntil = metav1.NewMicroTime(time.Now().Add(time.Minute))
	}
	w.mcl.Status = s
	must(t, w.tenure.Put(t.Context(), lab.MultiClusterLeases(namespace)+"/gate/status", w.mcl, w.mcl))
}

// newProber makes a prober for the cluster's servers, at their addresses or others.
func (w *world) newProber(t *testing.T, addresses []string) *Prober {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", w.Admin(0))
	must(t, err)
	kube, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	p := &Prober{Kube: kube, Config: cfg, Timeout: 3 * time.Second, Skew: 2 * time.Second, Token: func(ctx context.Context) (string, error) {
		return w.Token(ctx, lab.System, "tenure-probe")
	}}
	if addresses == nil {
		for i := range w.APIServers() {
			addresses = append(addresses, w.APIServer(i))
		}
	}
	p.Config = rest.CopyConfig(cfg)
	p.Config.Host = "https://" + addresses[0]
	for _, a := range addresses[1:] {
		p.Endpoints = append(p.Endpoints, "https://"+a)
	}
	return p
}

// want is the gate as it should answer now.
func (w *world) want() Gate {
	g := Gate{Namespace: namespace, Name: "gate", Policy: w.gate.PolicyName(), Revision: w.gate.Revision(), Lease: lease}
	if s := w.mcl.Status; s != nil {
		g.Epoch, g.ClosedEpoch, g.Leading = s.Epoch, s.ClosedEpoch, s.Leading
	}
	return g
}

// refused probes until all have refused.
func (w *world) refused(t *testing.T, p *Prober) []Answer {
	t.Helper()
	var answers []Answer
	begin := time.Now()
	defer func() { t.Logf("refused everywhere after %v", time.Since(begin).Round(time.Millisecond)) }()
	must(t, lab.Eventually(t.Context(), func(ctx context.Context) (err error) {
		answers, err = p.Refused(ctx, w.want())
		return err
	}))
	if len(answers) != w.APIServers() {
		t.Errorf("%d answers, want one of each of the %d API servers", len(answers), w.APIServers())
	}
	return answers
}

// holds writes to the Lease at API server i as a candidate would.
func holds(ctx context.Context, c *cluster.Client, dryRun string) error {
	return c.Patch(ctx, lab.Leases(namespace)+"/"+lease+"?"+dryRun, cluster.MergePatch, lab.Object{"spec": lab.Object{
		"holderIdentity": "pod", "leaseDurationSeconds": 15, "renewTime": metav1.NowMicro(),
	}}, nil)
}

// TestRefused follows a gate through its states, at two API servers.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := start(t, cluster.Options{Name: "probe", APIServers: 2})
	w.refused(t, w.prober) // the Lease is not there yet

	must(t, w.tenure.Post(t.Context(), lab.Leases(namespace), lab.Object{"metadata": lab.Object{"name": lease}, "spec": lab.Object{"holderIdentity": "tenure"}}, nil))
	w.refused(t, w.prober)
	w.status(t, 7, 6, true)
	w.refused(t, w.prober) // a write that no state admits is refused while open, too

	t.Run("seen closed, then closed everywhere", func(t *testing.T) { testClosing(t, w) })
	t.Run("nothing was written", func(t *testing.T) {
		for i := range w.APIServers() {
			events, err := w.Audit(i)
			must(t, err)
			for _, e := range events {
				if strings.HasSuffix(e.User.Username, ":tenure-probe") && e.ObjectRef.Resource == "leases" && !strings.Contains(e.RequestURI, "dryRun=All") {
					t.Errorf("API server %d was asked for more than a dry run: %s %s", i, e.Verb, e.RequestURI)
				}
			}
		}
	})
	t.Run("another state or revision", func(t *testing.T) {
		for name, change := range map[string]func(*Gate){
			"epoch":       func(g *Gate) { g.Epoch++ },
			"closedEpoch": func(g *Gate) { g.ClosedEpoch-- },
			"leading":     func(g *Gate) { g.Leading = !g.Leading },
			"revision":    func(g *Gate) { g.Revision = "0" },
			"name":        func(g *Gate) { g.Name = "other" },
		} {
			g := w.want()
			change(&g)
			if _, err := w.prober.Refused(t.Context(), g); !errors.Is(err, ErrNotRefused) {
				t.Errorf("another %s: got %v, want ErrNotRefused", name, err)
			}
		}
	})
	t.Run("a server behind two addresses counts once", func(t *testing.T) {
		// Neither is the second server's.
		p := w.newProber(t, []string{w.APIServer(0), proxy(t, w.APIServer(0), nil)})
		answers, err := p.Refused(t.Context(), w.want())
		if !errors.Is(err, ErrNoAnswer) || len(answers) != 1 {
			t.Errorf("got %d answers and %v, want one and ErrNoAnswer", len(answers), err)
		}
	})
	t.Run("refused by RBAC", func(t *testing.T) {
		g := w.want()
		g.Lease = "other"
		// Without create, the account has no right to this name at all.
		must(t, w.AdminClient(0).Post(t.Context(), lab.Leases(namespace), lab.Object{"metadata": lab.Object{"name": "other"}, "spec": lab.Object{}}, nil))
		if _, err := w.prober.Refused(t.Context(), g); !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "cannot patch resource") {
			t.Errorf("got %v, want ErrNoAnswer with what RBAC says", err)
		}
	})
	t.Run("no token", func(t *testing.T) {
		p := *w.prober
		p.Token = func(context.Context) (string, error) { return "nonsense", nil }
		if _, err := p.Refused(t.Context(), w.want()); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("got %v, want ErrNoAnswer", err)
		}
	})
	t.Run("identity Leases", func(t *testing.T) { testIdentities(t, w) })
	t.Run("paused", func(t *testing.T) { testPaused(t, w) })
	t.Run("refused by another policy", func(t *testing.T) { testOtherPolicy(t, w) })
	t.Run("the object is gone", func(t *testing.T) {
		must(t, w.tenure.Delete(t.Context(), lab.MultiClusterLeases(namespace)+"/gate", nil))
		w.mcl.Status = nil
		must(t, lab.Eventually(t.Context(), func(ctx context.Context) error {
			_, err := w.prober.Refused(ctx, w.want())
			if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "without a state") {
				return fmt.Errorf("got %w, want ErrNoAnswer without a state", err)
			}
			return nil
		}))
	})
}

// testClosing opens and closes the gate while a candidate writes at each server:
// nothing is admitted after the probe said so.
func testClosing(t *testing.T, w *world) {
	var candidates []*cluster.Client
	for i := range w.APIServers() {
		c, err := w.Client(i, "candidate", "system:masters")
		must(t, err)
		candidates = append(candidates, c)
	}
	epoch := w.mcl.Status.Epoch
	for range 5 {
		epoch++
		w.status(t, epoch, epoch-1, true)
		ctx, stop := context.WithCancel(t.Context())
		var seen atomic.Int64   // when the probe said that all refuse
		var closed atomic.Int64 // when the status was written
		var begun [2]atomic.Int64
		done := make(chan error, len(candidates))
		for i, c := range candidates {
			must(t, lab.Eventually(t.Context(), func(ctx context.Context) error { return holds(ctx, c, "") }))
			go func() {
				var last time.Time // the begin of the last one that was admitted
				for n := 0; ctx.Err() == nil; n++ {
					at := time.Now()
					begun[i].Store(at.UnixNano())
					if err := holds(ctx, c, ""); err == nil {
						last = at
					} else if !errors.Is(err, cluster.ErrForbidden) && !errors.Is(err, cluster.ErrConflict) && ctx.Err() == nil {
						done <- fmt.Errorf("API server %d: %w", i, err)
						return
					}
				}
				if s := seen.Load(); last.UnixNano() > s {
					done <- fmt.Errorf("API server %d admitted a write begun %v after all were seen to refuse", i, time.Duration(last.UnixNano()-s))
					return
				}
				t.Logf("API server %d admitted the last write %v after the status", i, time.Duration(last.UnixNano()-closed.Load()))
				done <- nil
			}()
		}
		closed.Store(time.Now().UnixNano())
		w.status(t, epoch, epoch, false)
		w.refused(t, w.prober)
		s := time.Now().UnixNano()
		seen.Store(s)
		// Each has begun a write after that, and is at the next.
		for i := range candidates {
			for range 3 {
				b := begun[i].Load()
				must(t, lab.Eventually(t.Context(), func(context.Context) error {
					if n := begun[i].Load(); n == b || n <= s {
						return errors.New("no write at this API server")
					}
					return nil
				}))
			}
		}
		stop()
		for range candidates {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
}

// testIdentities plants Leases of servers that are not there.
func testIdentities(t *testing.T, w *world) {
	for name, c := range map[string]struct {
		renewed time.Duration
		want    error
	}{
		"one silent for two minutes is none":        {-2 * time.Minute, nil},
		"one of a minute ago that does not answer":  {-30 * time.Second, ErrNoAnswer},
		"one with a clock ahead, that hides nobody": {2 * time.Minute, ErrNoAnswer},
	} {
		planted := lab.Object{
			"metadata": lab.Object{"name": "planted", "labels": lab.Object{"apiserver.kubernetes.io/identity": "kube-apiserver"}},
			"spec":     lab.Object{"holderIdentity": "planted", "leaseDurationSeconds": 3600, "renewTime": metav1.NewMicroTime(time.Now().Add(c.renewed))},
		}
		must(t, w.AdminClient(0).Post(t.Context(), lab.Leases("kube-system"), planted, nil))
		answers, err := w.prober.Refused(t.Context(), w.want())
		if !errors.Is(err, c.want) || c.want == nil && err != nil || len(answers) != 2 {
			t.Errorf("%s: got %d answers and %v, want 2 and %v", name, len(answers), err, c.want)
		}
		must(t, w.AdminClient(0).Delete(t.Context(), lab.Leases("kube-system")+"/planted", nil))
	}
}

func testPaused(t *testing.T, w *world) {
	name := cluster.APIServerPart(1)
	must(t, w.Pause(name))
	p := *w.prober
	p.Timeout = time.Second
	answers, err := p.Refused(t.Context(), w.want())
	must(t, w.Resume(name))
	if !errors.Is(err, ErrNoAnswer) || len(answers) != 1 {
		t.Errorf("got %d answers and %v, want one and ErrNoAnswer", len(answers), err)
	}
	w.refused(t, w.prober)
}

// TestRestarted restarts a server between two questions that both reach it: the
// second server is never asked.
func TestRestarted(t *testing.T) {
	t.Parallel()
	w := start(t, cluster.Options{Name: "restart", APIServers: 2})
	must(t, w.tenure.Post(t.Context(), lab.Leases(namespace), lab.Object{"metadata": lab.Object{"name": lease}, "spec": lab.Object{"holderIdentity": "tenure"}}, nil))
	w.refused(t, w.prober)
	var conns atomic.Int32
	at := proxy(t, w.APIServer(0), func() error {
		if conns.Add(1) != 2 {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
		defer cancel()
		if err := w.Restart(ctx, cluster.APIServerPart(0)); err != nil {
			return err
		}
		// It does not know the parameter's kind at once, and refuses without a state.
		begin := time.Now()
		defer func() { t.Logf("the policy went by the gate's state %v after the restart", time.Since(begin)) }()
		return lab.Eventually(ctx, func(ctx context.Context) error {
			if err := holds(ctx, w.AdminClient(0), "dryRun=All"); err == nil || !strings.Contains(err.Error(), " rev=") {
				return fmt.Errorf("the policy does not go by the gate's state: %w", err)
			}
			return nil
		})
	})
	p := w.newProber(t, []string{at})
	p.Timeout = 2 * time.Minute
	cfg, err := clientcmd.BuildConfigFromFlags("", w.Admin(1))
	must(t, err)
	p.Kube, err = kubernetes.NewForConfig(cfg)
	must(t, err)
	if answers, err := p.Refused(t.Context(), w.want()); !errors.Is(err, ErrNoAnswer) || conns.Load() < 2 {
		t.Errorf("got %d answers over %d connections and %v, want ErrNoAnswer", len(answers), conns.Load(), err)
	}
	w.refused(t, w.prober)
}

// testOtherPolicy has another policy refuse all Leases of the account, before ours
// or after it: what counts is that ours did.
func testOtherPolicy(t *testing.T, w *world) {
	other := policy.Gate{Namespace: "x", Name: "x"}.Sets()[1]
	other.Policy.Name, other.Binding.Name, other.Binding.Spec.PolicyName = "a-stranger", "a-stranger", "a-stranger"
	other.Policy.Spec.MatchConditions = nil
	other.Policy.Spec.MatchConstraints.NamespaceSelector.MatchLabels = nil
	other.Policy.Spec.MatchConstraints.ResourceRules[0].Operations = []admissionv1.OperationType{"UPDATE", "CREATE"}
	other.Policy.Spec.Validations[0].Message = "tenure gate demo/gate: no"
	must(t, w.Apply(t.Context(), other))
	adm := w.AdminClient(0)
	must(t, adm.Delete(t.Context(), lab.Bindings+"/"+w.gate.PolicyName(), nil))
	must(t, lab.Eventually(t.Context(), func(ctx context.Context) error {
		_, err := w.prober.Refused(ctx, w.want())
		if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "a-stranger") {
			return fmt.Errorf("got %w, want ErrNoAnswer that names the other policy", err)
		}
		return nil
	}))
	must(t, adm.Delete(t.Context(), lab.Bindings+"/a-stranger", nil))
	must(t, lab.Eventually(t.Context(), func(ctx context.Context) error {
		if _, err := w.prober.Refused(ctx, w.want()); !errors.Is(err, ErrNotRefused) {
			return fmt.Errorf("without a binding: got %w, want ErrNotRefused", err)
		}
		return nil
	}))
	must(t, w.Apply(t.Context(), w.gate.Sets()...))
	w.refused(t, w.prober)
}

// TestPluginOff: an API server that does not run policies enforces none.
func TestPluginOff(t *testing.T) {
	t.Parallel()
	w := start(t, cluster.Options{Name: "off", DisableAdmission: []string{"ValidatingAdmissionPolicy"}})
	if _, err := w.prober.Refused(t.Context(), w.want()); !errors.Is(err, ErrNotRefused) {
		t.Errorf("got %v, want ErrNotRefused", err)
	}
}

// proxy passes connections on to an address after it has called before, and
// returns its own.
func proxy(t *testing.T, to string, before func() error) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				if before != nil {
					if err := before(); err != nil {
						t.Error(err)
						return
					}
				}
				out, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				go func() { _, _ = io.Copy(out, in) }() // it ends with the connection
				_, _ = io.Copy(in, out)
			}()
		}
	}()
	return l.Addr().String()
}

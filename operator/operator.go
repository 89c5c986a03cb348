// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenure.dev/api/v1alpha1"
	"tenure.dev/internal/replica"
	"tenure.dev/operator/gate"
	"tenure.dev/operator/policy"
	"tenure.dev/operator/probe"
)

// Options configure an [Operator].
type Options struct {
	// Config reaches the cluster as Tenure's account.
	Config *rest.Config
	// Install reaches it as the account that may write admission policies; nil
	// for the same account.
	Install *rest.Config
	// Cluster is the cluster's identity: unique among the members, and required.
	Cluster string
	// Namespaces are those whose objects are served; none for all.
	Namespaces []string
	// SystemNamespace is Tenure's own: there are the seat and the probe account;
	// default tenure-system.
	SystemNamespace string
	// ProbeAccount is the service account that the gates are tried with; default
	// tenure-probe.
	ProbeAccount string
	// APIServers are URLs of single API servers, where Config's reaches only some.
	APIServers []string
	// Replica names this process; default the host name and 8 random characters.
	Replica string
	// Dev allows locks that exclude nobody outside this host (file:).
	Dev bool
	// Metrics is the address of /metrics, Health of /healthz and /readyz; empty
	// for none.
	Metrics, Health string
	// Logger receives one line per transition; default none.
	Logger *slog.Logger
}

// ErrOptions is wrapped by errors about [Options].
var ErrOptions = errors.New("operator: wrong options")

var clusterForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (o *Options) fill() error {
	if o.Config == nil {
		return errors.New("Options.Config is required")
	}
	if !clusterForm.MatchString(o.Cluster) {
		return fmt.Errorf("the cluster's identity %q is not a lower-case DNS label of at most 63 characters; it is required, and unique among the members", o.Cluster)
	}
	if o.Replica == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("no host name to make Options.Replica from: %w", err)
		}
		o.Replica = host + "-" + strings.ToLower(rand.Text()[:8])
	}
	if o.SystemNamespace == "" {
		o.SystemNamespace = "tenure-system"
	}
	if o.ProbeAccount == "" {
		o.ProbeAccount = "tenure-probe"
	}
	if o.Install == nil {
		o.Install = o.Config
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// requestTimeout bounds each request to an API server: it must leave time for a
// second one within a grant.
const requestTimeout = 3 * time.Second

// An Operator is Tenure in one cluster. Make it with [New].
type Operator struct {
	opt     Options
	log     *slog.Logger
	kube    kubernetes.Interface
	install kubernetes.Interface
	// watching has no timeout.
	watching kubernetes.Interface
	objects  client.WithWatch
	prober   *probe.Prober
	seat     *replica.Seat
	metrics  *metrics

	clusterUID string
	account    string // the user name under which we write

	mu      sync.Mutex
	ctx     context.Context // of Run
	workers map[types.NamespacedName]*worker
	runners map[string]*runner
	synced  bool
}

// New returns an operator. It asks the API server who we are and which cluster this
// is, and blocks for that, at most until ctx ends.
func New(ctx context.Context, o Options) (*Operator, error) {
	if err := o.fill(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	op := &Operator{opt: o, log: o.Logger.With("cluster", o.Cluster), workers: make(map[types.NamespacedName]*worker), runners: make(map[string]*runner), metrics: newMetrics()}
	cfg := bounded(o.Config)
	var err error
	if op.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("operator: %w", err)
	}
	if op.install, err = kubernetes.NewForConfig(bounded(o.Install)); err != nil {
		return nil, fmt.Errorf("operator: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("operator: %w", err)
	}
	watching := rest.CopyConfig(cfg)
	watching.Timeout = 0
	if op.watching, err = kubernetes.NewForConfig(watching); err != nil {
		return nil, fmt.Errorf("operator: %w", err)
	}
	if op.objects, err = client.NewWithWatch(watching, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("operator: %w", err)
	}
	if err := op.whoami(ctx); err != nil {
		return nil, err
	}
	op.prober = &probe.Prober{Kube: op.kube, Config: o.Config, Token: op.probeToken(), Endpoints: o.APIServers, Timeout: requestTimeout, Skew: gate.DefaultSkew}
	op.seat = replica.New(replica.Options{
		Store: seatLease{kube: op.kube, namespace: o.SystemNamespace, seconds: int32(3 * gate.DefaultPeriod / time.Second)},
		Self:  o.Replica, Identity: o.Cluster, ClusterUID: op.clusterUID,
		Period: gate.DefaultPeriod, Timeout: requestTimeout, Logger: op.log,
	})
	return op, nil
}

// bounded returns a configuration whose requests neither wait for a rate limiter
// nor longer than we can.
func bounded(cfg *rest.Config) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.QPS, c.Timeout = -1, requestTimeout
	c.UserAgent = "tenure"
	return c
}

// clusterUID returns what tells a cluster from all others.
func clusterUID(ctx context.Context, kube kubernetes.Interface) (string, error) {
	ns, err := kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the namespace kube-system, whose UID is the cluster's: %w", err)
	}
	return string(ns.UID), nil
}

func (op *Operator) whoami(ctx context.Context) error {
	var err error
	if op.clusterUID, err = clusterUID(ctx, op.kube); err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	review, err := op.kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("operator: ask the API server who we are: %w", err)
	}
	op.account = review.Status.UserInfo.Username
	return nil
}

// probeToken returns a function that requests tokens for the probe account and
// keeps each for most of its life.
func (op *Operator) probeToken() func(context.Context) (string, error) {
	var mu sync.Mutex
	var token string
	var until time.Time
	return func(ctx context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Now().Before(until) {
			return token, nil
		}
		seconds := int64(3600)
		tr, err := op.kube.CoreV1().ServiceAccounts(op.opt.SystemNamespace).CreateToken(ctx, op.opt.ProbeAccount,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
		if err != nil {
			return "", fmt.Errorf("request a token for service account %s/%s: %w", op.opt.SystemNamespace, op.opt.ProbeAccount, err)
		}
		token, until = tr.Status.Token, time.Now().Add(30*time.Minute)
		return token, nil
	}
}

// Run serves the cluster's objects. It blocks until ctx ends, and returns then
// without closing gates or releasing locks: another replica goes on with the
// terms, and without one the grants run out. To move the lock first, order a
// handover. It can be called once.
func (op *Operator) Run(ctx context.Context) error {
	op.mu.Lock()
	op.ctx = ctx
	op.mu.Unlock()
	op.log.Info("serving", "account", op.account, "clusterUID", op.clusterUID, "replica", op.opt.Replica)
	stopServing, err := op.serve()
	if err != nil {
		return err
	}
	defer stopServing()
	var running sync.WaitGroup
	running.Go(func() { op.seat.Run(ctx) })
	running.Go(func() { op.watchSeat(ctx) })
	op.watchPolicies(ctx)
	running.Go(func() { op.keepStatusPolicy(ctx) })
	namespaces := op.opt.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, ns := range namespaces {
		running.Go(func() { op.watchObjects(ctx, ns) })
	}
	<-ctx.Done()
	running.Wait()
	return nil
}

// watchSeat wakes everybody when the seat changes hands.
func (op *Operator) watchSeat(ctx context.Context) {
	for {
		holding, changed := op.seat.Holding()
		op.metrics.seat(holding)
		op.wakeAll()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (op *Operator) wakeAll() {
	op.mu.Lock()
	defer op.mu.Unlock()
	for _, w := range op.workers {
		w.wake()
	}
}

// maxGrant bounds validUntil, past the API server's own stamp.
const maxGrant = 3600

// keepStatusPolicy sees that the policy which all objects share is there.
func (op *Operator) keepStatusPolicy(ctx context.Context) {
	for {
		wait := time.Second // whoever has just taken the seat does not wait a minute
		if holding, _ := op.seat.Holding(); holding {
			wait = time.Minute
			if _, err := Apply(ctx, op.install, policy.Status(op.account, maxGrant)); err != nil && ctx.Err() == nil {
				op.log.Warn("the policy for the status of MultiClusterLeases is not in place", "error", err)
			}
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// pause waits, and returns false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

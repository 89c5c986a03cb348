// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Command controller is an ordinary controller, as many are: controller-runtime,
// --leader-elect, one reconciler. It knows nothing of Tenure. For each ConfigMap of
// its namespace that is labelled publish=yes it writes to a receiver outside all
// clusters; two copies of it that do so at the same time are what must not happen.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

func run() error {
	var o ctrl.Options
	var lease, renew, retry time.Duration
	kubeconfig := flag.String("kube", "", "kubeconfig `file`; default the pod's own account")
	namespace := flag.String("namespace", "demo", "namespace to work in")
	receiver := flag.String("receiver", "", "`URL` that is written to")
	name := flag.String("name", "", "name of this copy, in what it writes")
	flag.BoolVar(&o.LeaderElection, "leader-elect", false, "elect a leader among the copies of this cluster")
	flag.DurationVar(&lease, "leader-elect-lease-duration", 15*time.Second, "")
	flag.DurationVar(&renew, "leader-elect-renew-deadline", 10*time.Second, "")
	flag.DurationVar(&retry, "leader-elect-retry-period", 2*time.Second, "")
	flag.Parse()

	ctrl.SetLogger(zap.New())
	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	o.LeaderElectionID, o.LeaderElectionNamespace = "publisher", *namespace
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = &lease, &renew, &retry
	o.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{*namespace: {}}}
	o.Metrics = server.Options{BindAddress: "0"}
	mgr, err := ctrl.NewManager(cfg, o)
	if err != nil {
		return err
	}
	p := &publisher{Client: mgr.GetClient(), receiver: *receiver, name: *name}
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(p); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// publisher writes ConfigMaps to the receiver, each again every second.
type publisher struct {
	client.Client
	receiver, name string
}

// Reconcile implements reconcile.Reconciler.
func (p *publisher) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var cm corev1.ConfigMap
	if err := p.Get(ctx, req.NamespacedName, &cm); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if cm.Labels["publish"] != "yes" {
		return ctrl.Result{}, nil
	}
	body, err := json.Marshal(map[string]any{"by": p.name, "object": req.String(), "data": cm.Data})
	if err != nil {
		return ctrl.Result{}, err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, p.receiver, bytes.NewReader(body))
	if err != nil {
		return ctrl.Result{}, err
	}
	res, err := http.DefaultClient.Do(post)
	if err != nil {
		return ctrl.Result{}, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		return ctrl.Result{}, errors.New("the receiver answers " + res.Status)
	}
	return ctrl.Result{RequeueAfter: time.Second}, nil
}

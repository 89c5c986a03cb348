// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"tenure.dev/operator"
)

// kubeFlags are those that name a cluster to talk to.
type kubeFlags struct {
	kubeconfig, context string
}

func (f *kubeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that says how to reach the cluster; default $KUBECONFIG, then the pod's own account")
	cmd.Flags().StringVar(&f.context, "context", "", "context of the kubeconfig `name`")
}

// config returns how to reach the cluster. It reads files, and asks nobody.
func (f *kubeFlags) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context}).ClientConfig()
	if err != nil {
		return nil, wrongUse("no cluster can be reached: %v", err)
	}
	return cfg, nil
}

func (a *app) operatorCommand() *cobra.Command {
	var kube kubeFlags
	var installKubeconfig string
	var o operator.Options
	cmd := &cobra.Command{
		Use:   "operator --cluster NAME",
		Short: "Serve a cluster's MultiClusterLeases",
		Long: `Operator holds locks for the cluster that it runs in, and gates the Leases that MultiClusterLeases name:
controllers elect by them as always while this cluster leads, and none can while another does.

Run two replicas: one acts, the other goes on with its terms. On SIGTERM it ends without giving a lock up.`,
		Args: noArgs,
		RunE: a.action(func(cmd *cobra.Command, _ []string) error {
			logs := a.logger(a.err)
			o.Logger = logs
			l := logr.FromSlogHandler(logs.Handler())
			ctrllog.SetLogger(l)
			klog.SetLogger(l)
			var err error
			if o.Config, err = kube.config(); err != nil {
				return err
			}
			if installKubeconfig != "" {
				if o.Install, err = (&kubeFlags{kubeconfig: installKubeconfig}).config(); err != nil {
					return err
				}
			}
			ctx, stop := a.interrupted(cmd.Context())
			defer stop()
			op, err := newOperator(ctx, o, a)
			if err != nil || op == nil {
				return err
			}
			return op.Run(ctx)
		}),
	}
	kube.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.Cluster, "cluster", "", "this cluster's `identity`, unique among the members (required)")
	flags.StringSliceVar(&o.Namespaces, "namespaces", nil, "serve the objects of these `namespaces` only")
	flags.StringVar(&o.SystemNamespace, "system-namespace", "tenure-system", "`namespace` of Tenure's own Lease and of the probe account")
	flags.StringVar(&o.ProbeAccount, "probe-account", "tenure-probe", "service `account` that the gates are tried as")
	flags.StringSliceVar(&o.APIServers, "api-server", nil, "`URL` of a single API server, where the kubeconfig's reaches only some; may be repeated")
	flags.StringVar(&installKubeconfig, "install-kubeconfig", "", "`file` with an account that may write admission policies, if not the same")
	flags.StringVar(&o.Replica, "replica", "", "`name` of this process; default the host name and 8 random characters")
	flags.StringVar(&o.Metrics, "metrics-address", "", "`address` of /metrics, such as :8080; default none")
	flags.StringVar(&o.Health, "health-address", "", "`address` of /healthz and /readyz, such as :8081; default none")
	flags.BoolVar(&o.Dev, "dev", false, "allow file: locks, which exclude nobody on another host")
	_ = cmd.MarkFlagRequired("cluster") // it is there
	return cmd
}

// newOperator asks the API server until it answers: a restarted cluster starts both
// at the same time. A configuration that cannot work ends it at once.
func newOperator(ctx context.Context, o operator.Options, a *app) (*operator.Operator, error) {
	for {
		op, err := operator.New(ctx, o)
		switch {
		case err == nil:
			return op, nil
		case errors.Is(err, operator.ErrOptions):
			return nil, wrongUse("%v", err)
		case ctx.Err() != nil:
			return nil, nil //nolint:nilnil // asked to end
		}
		fmt.Fprintln(a.err, "tenure: "+err.Error()+"; trying again")
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, nil //nolint:nilnil // asked to end
		}
	}
}

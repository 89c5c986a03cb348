// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"tenure.dev"
	"tenure.dev/operator"
)

func (a *app) ungateCommand() *cobra.Command {
	var kube kubeFlags
	var t operator.Ungating
	var lockURL string
	timeout := time.Minute
	cmd := &cobra.Command{
		Use:   "ungate --namespace NS --name NAME --cluster CLUSTER --lock URL",
		Short: "Open a gate for good",
		Long: `Ungate takes a cluster's names off its entry beside the lock, so that no other cluster leads by them any more, and
then removes the gate's admission policies: from then on pods of this cluster elect without asking anybody. It is
refused while the lock's store cannot be reached. --offline removes the policies without telling the others: whoever
leads elsewhere then writes too.`,
		Args: noArgs,
		RunE: a.action(func(cmd *cobra.Command, _ []string) error {
			cfg, err := kube.config()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if t.Kube, err = kubernetes.NewForConfig(cfg); err != nil {
				return err
			}
			if !t.Offline {
				if lockURL == "" {
					return wrongUse("no lock is named: give --lock URL, the object's spec.lock, or --offline")
				}
				lock, err := tenure.Open(ctx, lockURL, tenure.Vars{Namespace: t.Namespace, Name: t.Name})
				if err != nil {
					return &codedError{exitUse, err}
				}
				t.Register = lock.Register
			}
			opened, err := t.Do(ctx)
			if errors.Is(err, operator.ErrStillThere) || errors.Is(err, operator.ErrOtherLock) {
				return &codedError{exitRefused, err}
			}
			if err != nil {
				return err
			}
			slices.Sort(opened)
			fmt.Fprintf(a.out, "the gate %s/%s is open in cluster %s: pods there elect by %v without this lock\n", t.Namespace, t.Name, t.Cluster, opened)
			if t.Offline {
				fmt.Fprintf(a.out, "the other clusters do not know: whoever leads there under the lock goes on\n")
			}
			return nil
		}),
	}
	kube.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&t.Namespace, "namespace", "", "`namespace` of the MultiClusterLease (required)")
	flags.StringVar(&t.Name, "name", "", "`name` of the MultiClusterLease (required)")
	flags.StringVar(&t.Cluster, "cluster", "", "`identity` of the cluster (required)")
	flags.StringVar(&lockURL, "lock", "", "the lock's `URL`, as in spec.lock")
	flags.BoolVar(&t.Offline, "offline", false, "do not take the names off the entry beside the lock")
	flags.DurationVar(&timeout, "timeout", timeout, "give up after this long `duration`")
	for _, f := range []string{"namespace", "name", "cluster"} {
		_ = cmd.MarkFlagRequired(f) // they are there
	}
	return cmd
}

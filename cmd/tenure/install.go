// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenure.dev/operator/install"
)

func (a *app) installCommand() *cobra.Command {
	var kube kubeFlags
	var yes bool
	o := install.Options{}
	timeout := time.Minute
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Give a cluster what Tenure needs in it",
		Long: `Install applies the custom resource definitions, Tenure's service accounts and their rights. It needs an account
that may create these. With --yaml it prints them instead, for your own tools.`,
		Args: noArgs,
		RunE: a.action(func(cmd *cobra.Command, _ []string) error {
			docs, err := install.Manifests(o)
			if err != nil {
				return err
			}
			if yes {
				_, err := a.out.Write(docs)
				return err
			}
			cfg, err := kube.config()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			c, err := newClient(cfg)
			if err != nil {
				return err
			}
			return install.Apply(ctx, c, docs, func(kind, name string) { fmt.Fprintf(a.out, "applied %s %s\n", kind, name) })
		}),
	}
	kube.add(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&o.Namespaces, "namespaces", nil, "`namespaces` whose Leases Tenure may gate; default all")
	flags.StringVar(&o.System, "system-namespace", "tenure-system", "Tenure's own `namespace`")
	flags.BoolVar(&o.Policies, "policies", true, "let Tenure write the gates' admission policies itself")
	flags.BoolVar(&yes, "yaml", false, "print the objects, apply nothing")
	flags.DurationVar(&timeout, "timeout", timeout, "give up after this long `duration`")
	return cmd
}

func newClient(cfg *rest.Config) (client.Client, error) {
	c := rest.CopyConfig(cfg)
	c.QPS = -1
	return client.New(c, client.Options{Scheme: runtime.NewScheme()})
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"tenure.dev"
)

func init() {
	tenure.RegisterScheme("k8s", tenure.Driver{
		Open:   openURL,
		Params: []string{"context", "kubeconfig"},
		Price:  tenure.Price{Source: "an API server counts no requests"},
	})
}

// openURL opens the Lease that a lock URL names. It reads the configuration and
// makes no request, nor does it run a credential plugin.
func openURL(ctx context.Context, u *tenure.URL) (tenure.Register, error) {
	name := strings.TrimPrefix(u.Path, "/")
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: it %s: write k8s://namespace/name", tenure.ErrURL, fmt.Sprintf(format, args...))
	}
	switch {
	case u.Host == "":
		return nil, bad("has no namespace")
	case len(u.Host) > maxNamespace || !namespaceForm.MatchString(u.Host):
		return nil, bad("has the namespace %q, which no cluster can have; a namespace has lower case letters, digits and '-', at most %d", u.Host, maxNamespace)
	case strings.Contains(name, "/"):
		return nil, bad("has more than one slash after the namespace")
	case checkName(name) != "":
		return nil, bad("%s", checkName(name))
	}
	s := source{file: u.Params["kubeconfig"], context: u.Params["context"]}
	for _, key := range []string{"kubeconfig", "context"} {
		if value, given := u.Params[key]; given && value == "" {
			return nil, fmt.Errorf("%w: the parameter %q is empty: give it a value or leave it out", tenure.ErrURL, key)
		}
	}
	period := u.Settings.Period
	if period == 0 {
		d := u.Settings.LeaseDuration
		if d == 0 {
			d = tenure.DefaultLeaseDuration
		}
		period = d / 5
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c := &access{source: s, period: period}
	if _, err := c.open(); err != nil {
		if s.file != "" || s.context != "" {
			return nil, fmt.Errorf("%w: %w", tenure.ErrURL, err)
		}
		return nil, err
	}
	return &Register{access: c, namespace: u.Host, own: name}, nil
}

// New returns the register of a Lease, for programs that have a client
// configuration. Its credential files are read again when they are refused, the
// rest is not. The period is P, by which dead connections are found. It makes no
// request; the error says what is wrong with the names or the configuration.
func New(config *rest.Config, namespace, name string, settings tenure.Settings) (*Register, error) {
	u := &tenure.URL{Scheme: "k8s", Host: namespace, Path: "/" + name, Settings: settings}
	if namespace == "" || len(namespace) > maxNamespace || !namespaceForm.MatchString(namespace) {
		return nil, fmt.Errorf("%w: %v: the namespace %q is none that a cluster can have", tenure.ErrURL, u, namespace)
	}
	if why := checkName(name); why != "" {
		return nil, fmt.Errorf("%w: %v %s", tenure.ErrURL, u, why)
	}
	period := settings.Period
	if period == 0 {
		period = tenure.DefaultLeaseDuration / 5
	}
	c := &access{source: source{config: rest.CopyConfig(config)}, period: period}
	if _, err := c.open(); err != nil {
		return nil, err
	}
	return &Register{access: c, namespace: namespace, own: name}, nil
}

// A source says where a configuration is read from, each time anew.
type source struct {
	file, context string
	config        *rest.Config // given, instead of read
}

func (s source) String() string {
	switch {
	case s.config != nil:
		return "the given configuration"
	case s.file != "" && s.context != "":
		return fmt.Sprintf("context %q of kubeconfig %s", s.context, s.file)
	case s.file != "":
		return "kubeconfig " + s.file
	case s.context != "":
		return fmt.Sprintf("context %q of the default kubeconfig", s.context)
	case inCluster():
		return "the service account of this pod"
	}
	return "the default kubeconfig"
}

// inCluster: a pod that names no kubeconfig means its own cluster.
func inCluster() bool {
	return os.Getenv("KUBERNETES_SERVICE_HOST") != "" && os.Getenv("KUBECONFIG") == ""
}

// vanished reports whether the error of a load says that there is nothing to go
// on with: a file that was taken away is a revocation, one that cannot be parsed
// may be half written.
func (s source) vanished(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// load reads the configuration. A kubeconfig that is named is read, or it is an
// error: another cluster's Lease would be another lock.
func (s source) load() (*rest.Config, error) {
	if s.config != nil {
		return s.config, nil
	}
	if s.file == "" && s.context == "" && inCluster() {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("k8s: reading %v: %w; name a kubeconfig with kubeconfig=, or mount the service account's token", s, err)
		}
		return config, nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if s.file != "" {
		rules = &clientcmd.ClientConfigLoadingRules{ExplicitPath: s.file}
	}
	file, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("k8s: reading %v: %w", s, err)
	}
	if clientcmd.IsConfigurationInvalid(clientcmd.Validate(*file)) || len(file.Contexts) == 0 {
		if len(file.Clusters) == 0 {
			return nil, fmt.Errorf("k8s: %v names no cluster: name a kubeconfig with kubeconfig=, or set KUBECONFIG", s)
		}
	}
	if name := s.context; name != "" && file.Contexts[name] == nil {
		known := slices.Sorted(maps.Keys(file.Contexts))
		return nil, fmt.Errorf("k8s: %v: there is no such context; there are: %s", s, strings.Join(known, ", "))
	}
	if s.context == "" && file.CurrentContext == "" {
		known := slices.Sorted(maps.Keys(file.Contexts))
		return nil, fmt.Errorf("k8s: %v has no current context: choose one with context=, of: %s", s, strings.Join(known, ", "))
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*file, s.context, &clientcmd.ConfigOverrides{}, rules).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("k8s: reading %v: %w", s, err)
	}
	return config, nil
}

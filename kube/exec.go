// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
)

const (
	// pluginLimit is how long a credential plugin may take before it is killed.
	// A request that waits for it ends with its own context, most often earlier.
	pluginLimit = 30 * time.Second
	// pluginLeeway is how long before its end a credential is replaced.
	pluginLeeway = 10 * time.Second
	// pluginRest is how long after a failure the plugin is not run again.
	pluginRest = time.Second
	// maxPluginOutput bounds what is read of it.
	maxPluginOutput = 1 << 20
)

// A plugin runs the command of a kubeconfig that prints credentials. The one of
// client-go waits for its command without end, whatever the request's context
// says, and so would a leader; this one kills it.
type plugin struct {
	config  *api.ExecConfig
	info    string // KUBERNETES_EXEC_INFO
	limit   time.Duration
	command string // as it may be printed

	mu      sync.Mutex
	cred    *credential
	last    *tls.Certificate // also when cred was refused
	err     error
	failed  time.Time
	running chan struct{} // closed when the command has ended, nil if none runs
	since   time.Time     // when it was started
}

type credential struct {
	token  string
	cert   *tls.Certificate
	expiry time.Time // zero: until it is refused
}

// execInfo and execCredential are what is told to a plugin, and what it prints.
type execInfo struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Spec       execSpec `json:"spec"`
}

type execSpec struct {
	Cluster     *execCluster `json:"cluster,omitempty"`
	Interactive bool         `json:"interactive"`
}

type execCluster struct {
	Server                   string `json:"server"`
	TLSServerName            string `json:"tls-server-name,omitempty"`
	InsecureSkipTLSVerify    bool   `json:"insecure-skip-tls-verify,omitempty"`
	CertificateAuthorityData []byte `json:"certificate-authority-data,omitempty"`
	ProxyURL                 string `json:"proxy-url,omitempty"`
	DisableCompression       bool   `json:"disable-compression,omitempty"`
	Config                   any    `json:"config,omitempty"`
}

type execCredential struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Status     *struct {
		ExpirationTimestamp   *time.Time `json:"expirationTimestamp"`
		Token                 string     `json:"token"`
		ClientCertificateData string     `json:"clientCertificateData"`
		ClientKeyData         string     `json:"clientKeyData"`
	} `json:"status"`
}

func newPlugin(config *rest.Config) (*plugin, error) {
	e := config.ExecProvider
	command := filepath.Base(e.Command)
	if e.InteractiveMode == api.AlwaysExecInteractiveMode {
		return nil, fmt.Errorf("the credential plugin %q wants a terminal: an elector has none, use one with interactiveMode Never or IfAvailable", command)
	}
	info := execInfo{APIVersion: e.APIVersion, Kind: "ExecCredential"}
	if e.ProvideClusterInfo {
		c, err := rest.ConfigToExecCluster(config)
		if err != nil {
			return nil, err
		}
		info.Spec.Cluster = &execCluster{
			Server: c.Server, TLSServerName: c.TLSServerName, InsecureSkipTLSVerify: c.InsecureSkipTLSVerify,
			CertificateAuthorityData: c.CertificateAuthorityData, ProxyURL: c.ProxyURL, DisableCompression: c.DisableCompression,
		}
		if c.Config != nil {
			info.Spec.Cluster.Config = c.Config
		}
	}
	text, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("what the credential plugin %q is told: %w", command, err)
	}
	return &plugin{config: e, info: string(text), limit: pluginLimit, command: command}, nil
}

// get returns the credential, and waits for the plugin where it must be run, at
// most until ctx ends. One run serves all that wait.
func (p *plugin) get(ctx context.Context) (*credential, error) {
	p.mu.Lock()
	if c := p.cred; c != nil && (c.expiry.IsZero() || time.Until(c.expiry) > pluginLeeway) {
		p.mu.Unlock()
		return c, nil
	}
	if p.running == nil {
		if p.err != nil && time.Since(p.failed) < pluginRest {
			defer p.mu.Unlock()
			return nil, p.err
		}
		p.running, p.since = make(chan struct{}), time.Now()
		go p.run(p.running)
	}
	running, since := p.running, p.since
	p.mu.Unlock()
	select {
	case <-running:
	case <-ctx.Done():
		return nil, fmt.Errorf("the credential plugin %q has been running for %v without an answer, and is killed after %v: try it by hand: %w",
			p.command, time.Since(since).Round(time.Millisecond), p.limit, ctx.Err())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cred, p.err
}

// lastCertificate returns that of the newest credential, or nil.
func (p *plugin) lastCertificate() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// forget drops the credential: it was refused.
func (p *plugin) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cred = nil
}

func (p *plugin) run(done chan struct{}) {
	cred, err := p.execute()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cred, p.err, p.running = cred, nil, nil
	if cred != nil {
		p.last = cred.cert
	}
	if err != nil {
		p.err, p.failed = fmt.Errorf("the credential plugin %q: %w", p.command, err), time.Now()
		if hint := p.config.InstallHint; hint != "" && (errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist)) {
			p.err = fmt.Errorf("%w; the kubeconfig says: %s", p.err, hint)
		}
	}
	close(done)
}

func (p *plugin) execute() (*credential, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.config.Command, p.config.Args...)
	cmd.WaitDelay = time.Second // for what it has started, and which keeps its output open
	killGroup(cmd)
	cmd.Env = os.Environ()
	for _, v := range p.config.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+p.info)
	stdout, stderr := &limitedBuffer{max: maxPluginOutput}, &limitedBuffer{max: 4 << 10}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("killed, it had not answered within %v: try it by hand", p.limit)
		}
		if line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n"); line != "" {
			return nil, fmt.Errorf("it failed and says %.200q: %w", line, err)
		}
		return nil, fmt.Errorf("it failed: %w", err)
	}
	return p.parse(stdout.Bytes())
}

// parse reads what the plugin printed, of which nothing is quoted.
func (p *plugin) parse(out []byte) (*credential, error) {
	var c execCredential
	if err := json.Unmarshal(out, &c); err != nil {
		return nil, errors.New("what it printed is no JSON object: it must print an ExecCredential, and nothing else, on standard output")
	}
	switch {
	case c.Kind != "ExecCredential" || c.APIVersion != p.config.APIVersion:
		return nil, fmt.Errorf("it printed another kind or version than an ExecCredential of %s, which the kubeconfig names", p.config.APIVersion)
	case c.Status == nil || c.Status.Token == "" && c.Status.ClientCertificateData == "":
		return nil, errors.New("it printed neither a token nor a client certificate")
	}
	cred := &credential{token: c.Status.Token}
	if c.Status.ClientCertificateData != "" {
		cert, err := tls.X509KeyPair([]byte(c.Status.ClientCertificateData), []byte(c.Status.ClientKeyData))
		if err != nil {
			return nil, fmt.Errorf("the client certificate that it printed: %w", err)
		}
		cred.cert = &cert
	}
	if c.Status.ExpirationTimestamp != nil {
		cred.expiry = *c.Status.ExpirationTimestamp
	}
	return cred, nil
}

// certificate is for tls.Config.GetClientCertificate.
func (p *plugin) certificate(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	cred, err := p.get(info.Context())
	if err != nil {
		return nil, err
	}
	if cred.cert == nil {
		return &tls.Certificate{}, nil
	}
	return cred.cert, nil
}

// wrap adds the plugin's token to each request.
func (p *plugin) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		cred, err := p.get(req.Context())
		if err != nil {
			return nil, err
		}
		if cred.token != "" {
			req = req.Clone(req.Context())
			req.Header.Set("Authorization", "Bearer "+cred.token)
		}
		return next.RoundTrip(req)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// limitedBuffer keeps the first max bytes written to it.
type limitedBuffer struct {
	bytes.Buffer
	max int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.max-b.Len())])
	return len(p), nil
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs Kubernetes control planes on this machine for tests: the
// real etcd, API servers, controller manager and scheduler, and kwok, which
// plays the nodes. Each cluster has an authority, certificates, service-account
// keys, RBAC and audit logs of its own.
//
//	c, err := cluster.Start(ctx, cluster.Options{Name: "a", APIServers: 2})
//	...
//	defer c.Close()
//	err = c.AdminClient(0).Get(ctx, "/api/v1/nodes", &nodes)
//
// test/testbed/build.sh builds the programs. They die with the process that
// started them, however that ends.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"tenure.dev/test/testbed"
)

// Names of the parts of a cluster, for [Cluster.Kill] and its like; see also
// [APIServerPart].
const (
	Etcd              = "etcd"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok"
)

// APIServerPart returns the name of API server i as a part.
func APIServerPart(i int) string { return fmt.Sprintf("kube-apiserver-%d", i) }

// readyWithin bounds the start of one part: it takes seconds, and longer on a
// machine that is busy with others.
const readyWithin = 90 * time.Second

// Options say what a cluster consists of.
type Options struct {
	// Name is the cluster's, as in DNS: lower-case letters, digits and dashes.
	// Required.
	Name string
	// Dir keeps all of the cluster's files, for a cluster that is started again
	// from there: the same certificates, keys, objects and address. Default: a
	// temporary folder, which Close removes.
	Dir string
	// From is a folder that Snapshot wrote: a new Dir begins with what is in it,
	// keys and objects.
	From string
	// APIServers is how many there are, each under a host name of its own, on
	// the one etcd. Default 1.
	APIServers int
	// APIServerArgs are flags that the API servers get after all others, as
	// "--runtime-config=...".
	APIServerArgs []string
	// DisableAdmission names admission plugins to turn off.
	DisableAdmission []string
	// AuditBodies has the audit logs tell bodies of requests and answers for
	// Leases and what is Tenure's. Default: who did what to which object.
	AuditBodies bool
	// ControllerManager, Scheduler and Kwok run these parts. Default: not.
	ControllerManager, Scheduler, Kwok *Part
	// Network is what the whole cluster lives in. Default: the loopback
	// interface, with an address of the cluster's own.
	Network *testbed.Network
	// Proxy, when set, is called once per API server with its address,
	// host:port, and returns the address that kubeconfigs name instead.
	Proxy func(server int, target string) (addr string, err error)
	// Intercept, when set, is called once per API server with a handler that
	// passes requests on to it as the users who sent them, and returns the handler
	// that kubeconfigs lead to instead: what delays, loses or changes requests and
	// answers. A Proxy stands before it.
	Intercept func(server int, next http.Handler) http.Handler
	// EtcdProxy does the same as Proxy for what stands between an API server and etcd.
	EtcdProxy func(server int, target string) (addr string, err error)
	// Bin is a folder with the programs. Default: where build.sh puts them.
	Bin string
}

// A Part says how an optional part of a cluster is run.
type Part struct {
	// LeaderElect has it elect by its Lease in kube-system. The durations are
	// passed on if not 0.
	LeaderElect                               bool
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Server is the API server that it uses. Default: the first.
	Server int
	// Via is the address, host:port, of a proxy before that one; Behind has it go
	// through Options.Proxy and Options.Intercept. Default: directly.
	Via    string
	Behind bool
	// Respawn starts it again, one second after it ended other than by Kill or
	// KillAll, as a kubelet would: an elector ends when it loses its Lease.
	Respawn bool
	// Args come after all other flags.
	Args []string
	// Env is added to its environment.
	Env []string
	// Program is another program to run. Default: that of the part's name.
	Program string
}

// A Cluster is a control plane of real processes. Its methods are safe for
// concurrent use.
type Cluster struct {
	name, dir, addr string
	temporary       bool
	opts            Options
	pki             *pki
	front           []string       // where kubeconfigs of users point, by API server
	etcdAt          []string       // where each API server finds etcd
	servers         []*http.Server // those of Intercept
	admins          []*Client
	adminFiles      []string
	files           sync.Mutex // held while kubeconfigs are written

	parts []*part // in the order of starting
}

// A part is one process of a cluster, over its restarts.
type part struct {
	name  string
	cmd   testbed.Cmd
	ready func(context.Context) error
	wave  int // parts of a wave start side by side, after those of the wave before

	respawn  bool
	starting sync.Mutex // held while it starts

	mu   sync.Mutex // held while there comes to be another process, or is to be none
	proc *testbed.Process
	down bool // it was killed, and stays so
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// Start starts a cluster and returns when each of its API servers and other
// parts says that it is ready, a few seconds. Ctx bounds the starting only. When
// it fails, nothing of the cluster is left but the files in Options.Dir.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	if !nameForm.MatchString(o.Name) {
		return nil, fmt.Errorf("cluster: Options.Name is %q: use 1 to 40 lower-case letters, digits and dashes", o.Name)
	}
	if o.APIServers == 0 {
		o.APIServers = 1
	}
	if o.APIServers < 0 {
		return nil, fmt.Errorf("cluster %s: Options.APIServers is %d: use 1 or more", o.Name, o.APIServers)
	}
	c := &Cluster{name: o.Name, opts: o}
	defer func() {
		if err != nil {
			c.Close()
			err = fmt.Errorf("cluster %s: %w", o.Name, err)
		}
	}()
	if err := c.prepare(); err != nil {
		return nil, err
	}
	return c, c.StartAll(ctx)
}

// prepare makes all files, and says what to run.
func (c *Cluster) prepare() (err error) {
	if c.opts.Dir == "" {
		if c.dir, err = tempDir(); err != nil {
			return err
		}
		c.temporary = true
	} else if c.dir, err = filepath.Abs(c.opts.Dir); err != nil {
		return err
	}
	for _, d := range []string{"log", "audit", "kubeconfig", "conf"} {
		if err := os.MkdirAll(filepath.Join(c.dir, d), 0o700); err != nil {
			return err
		}
	}
	if c.opts.From != "" {
		if err := c.begin(c.opts.From); err != nil {
			return err
		}
	}
	if c.addr, err = c.address(); err != nil {
		return err
	}
	if c.pki, err = openPKI(filepath.Join(c.dir, "pki"), c.name); err != nil {
		return err
	}
	if err := c.pki.server("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", serviceIP, c.addr); err != nil {
		return err
	}
	if err := c.endpoints(); err != nil {
		return err
	}
	return c.plan()
}

// endpoints asks for proxies and makes the administrator's ways in.
func (c *Cluster) endpoints() error {
	for i := range c.opts.APIServers {
		front, etcd := c.APIServer(i), c.etcd()
		var err error
		if c.opts.Intercept != nil {
			if front, err = c.intercept(i); err != nil {
				return err
			}
		}
		if c.opts.Proxy != nil {
			if front, err = c.opts.Proxy(i, front); err != nil {
				return err
			}
		}
		if c.opts.EtcdProxy != nil {
			if etcd, err = c.opts.EtcdProxy(i, etcd); err != nil {
				return err
			}
		}
		c.front, c.etcdAt = append(c.front, front), append(c.etcdAt, etcd)
		file, err := c.kubeconfig(c.APIServer(i), i, "admin", []string{mastersGroup})
		if err != nil {
			return err
		}
		admin, err := c.Client(i, "admin", mastersGroup)
		if err != nil {
			return err
		}
		admin.http.Transport.(*http.Transport).DialContext = c.dial()
		c.adminFiles, c.admins = append(c.adminFiles, file), append(c.admins, admin)
	}
	return nil
}

// dial returns how to reach the cluster when its network is cut, too; nil is
// the usual way.
func (c *Cluster) dial() dialFunc {
	if c.opts.Network == nil {
		return nil
	}
	return c.opts.Network.Dial
}

// Name returns the cluster's name.
func (c *Cluster) Name() string { return c.name }

// Dir returns the folder of the cluster's files; logs are in log and audit.
func (c *Cluster) Dir() string { return c.dir }

// APIServers returns how many there are.
func (c *Cluster) APIServers() int { return c.opts.APIServers }

// APIServer returns the address, host:port, of API server i.
func (c *Cluster) APIServer(i int) string { return fmt.Sprintf("%s:%d", c.addr, apiPort+i) }

func (c *Cluster) etcd() string { return fmt.Sprintf("%s:%d", c.addr, etcdPort) }

// CA returns the certificate of the cluster's authority as PEM.
func (c *Cluster) CA() []byte { return slices.Clone(c.pki.caPEM) }

// Parts returns the names of the cluster's parts, in the order of starting.
func (c *Cluster) Parts() []string {
	names := make([]string, len(c.parts))
	for i, p := range c.parts {
		names[i] = p.name
	}
	return names
}

func (c *Cluster) part(name string) (*part, error) {
	for _, p := range c.parts {
		if p.name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("cluster %s: no part is named %q: it has %q", c.name, name, c.Parts())
}

// Process returns the process of a part as it is now, nil if it was never
// started or there is no such part.
func (c *Cluster) Process(name string) *testbed.Process {
	p, err := c.part(name)
	if err != nil {
		return nil
	}
	return p.process()
}

func (p *part) process() *testbed.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc
}

// running returns the part's process, or why there is none.
func (c *Cluster) running(name string) (*testbed.Process, error) {
	p, err := c.part(name)
	if err != nil {
		return nil, err
	}
	proc := p.process()
	if proc == nil || proc.Err() != nil {
		return nil, fmt.Errorf("cluster %s: %s is not running: restart it", c.name, name)
	}
	return proc, nil
}

// Kill kills a part with SIGKILL, paused or not, and waits until it is gone.
// Killing what does not run is no error.
func (c *Cluster) Kill(name string) error {
	p, err := c.part(name)
	if err != nil {
		return err
	}
	p.kill()
	return nil
}

// KillAll kills all parts at once, and waits until they are gone.
func (c *Cluster) KillAll() {
	var all sync.WaitGroup
	for _, p := range c.parts {
		all.Go(p.kill)
	}
	all.Wait()
}

// Pause freezes a part with SIGSTOP, whose connections stay open.
func (c *Cluster) Pause(name string) error {
	proc, err := c.running(name)
	if err != nil {
		return err
	}
	return proc.Pause()
}

// Resume lets a paused part go on.
func (c *Cluster) Resume(name string) error {
	proc, err := c.running(name)
	if err != nil {
		return err
	}
	return proc.Resume()
}

// Restart kills a part if it runs, starts it, and waits until it is ready or ctx
// is done.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	p, err := c.part(name)
	if err != nil {
		return err
	}
	if err := p.start(ctx, true); err != nil {
		return fmt.Errorf("cluster %s: %w", c.name, err)
	}
	return nil
}

// StartAll starts each part that does not run and waits until all are ready or
// ctx is done.
func (c *Cluster) StartAll(ctx context.Context) error {
	for wave := range waves {
		var all sync.WaitGroup
		errs := make([]error, len(c.parts))
		for i, p := range c.parts {
			if p.wave == wave {
				all.Go(func() { errs[i] = p.start(ctx, false) })
			}
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

// kill kills the part, for good until it is started.
func (p *part) kill() {
	p.mu.Lock()
	p.down = true
	proc := p.proc
	p.mu.Unlock()
	if proc != nil {
		proc.Kill()
	}
}

// run starts a process after old. Unless a person wants it, only if old is the
// last one and was not killed for good: then it returns nil.
func (p *part) run(old *testbed.Process, wanted bool) (*testbed.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !wanted && (p.down || p.proc != old) {
		return nil, nil
	}
	if p.proc != old && p.proc.Err() == nil {
		return p.proc, nil // it came back by itself meanwhile
	}
	proc, err := testbed.Start(p.cmd)
	if err != nil {
		return nil, err
	}
	p.proc, p.down = proc, false
	if p.respawn {
		go p.keep(proc)
	}
	return proc, nil
}

// keep starts the part again when it has ended by itself.
func (p *part) keep(proc *testbed.Process) {
	<-proc.Done()
	time.Sleep(respawnAfter)
	_, _ = p.run(proc, false) // a program that is no longer there stays away
}

// respawnAfter keeps a part that cannot run from being started in a hot loop.
const respawnAfter = time.Second

// start starts the part and waits until it is ready; one that runs is killed
// before if again, else only waited for.
func (p *part) start(ctx context.Context, again bool) (err error) {
	p.starting.Lock()
	defer p.starting.Unlock()
	proc := p.process()
	if proc != nil && again {
		proc.Kill()
	}
	if proc == nil || proc.Err() != nil {
		if proc, err = p.run(proc, true); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	return p.wait(ctx, proc)
}

// wait asks the part whether it is ready until it is.
func (p *part) wait(ctx context.Context, proc *testbed.Process) error {
	again := time.NewTicker(25 * time.Millisecond)
	defer again.Stop()
	for {
		err := p.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-proc.Done():
			return fmt.Errorf("%s ended before it was ready: %w\n%s", p.name, proc.Err(), proc.Tail(2048))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w\n%s", p.name, ctx.Err(), err, proc.Tail(2048))
		}
	}
}

// Close kills all parts and removes the cluster's files if they are temporary.
// It may be called again.
func (c *Cluster) Close() {
	c.KillAll()
	for _, s := range c.servers {
		_ = s.Close() // its listener only
	}
	for _, a := range c.admins {
		a.Close()
	}
	if c.temporary && c.dir != "" {
		_ = os.RemoveAll(c.dir) // nothing to do about it; the next start tries again
	}
}

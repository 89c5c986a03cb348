// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"tenure.dev/test/testbed"
)

// Ports are the same in each cluster, because each has an address of its own.
// All are below those that the kernel gives to outgoing connections, so that a
// part that is restarted finds its own free.
const (
	etcdPort       = 2379
	peerPort       = 2380
	apiPort        = 6443 // and the next ones
	controllerPort = 10257
	schedulerPort  = 10259
	kwokPort       = 10247
)

// The waves in which parts start.
const (
	waveEtcd = iota
	waveAPIServers
	waveOthers
	waves
)

// plan says what to run.
func (c *Cluster) plan() error {
	if err := c.writeAuditPolicy(); err != nil {
		return err
	}
	if err := c.planEtcd(); err != nil {
		return err
	}
	for i := range c.opts.APIServers {
		if err := c.planAPIServer(i); err != nil {
			return err
		}
	}
	if o := c.opts.ControllerManager; o != nil {
		if err := c.planControllerManager(o); err != nil {
			return err
		}
	}
	if o := c.opts.Scheduler; o != nil {
		if err := c.planScheduler(o); err != nil {
			return err
		}
	}
	if o := c.opts.Kwok; o != nil {
		return c.planKwok(o)
	}
	return nil
}

// bin returns the path of a program.
func (c *Cluster) bin(program string) (string, error) {
	if c.opts.Bin != "" {
		return filepath.Join(c.opts.Bin, program), nil
	}
	return testbed.Bin(program)
}

// add plans a part with the settings that all have in common.
func (c *Cluster) add(wave int, name, path string, args []string, ready func(context.Context) error) *part {
	p := &part{name: name, wave: wave, ready: ready, cmd: testbed.Cmd{
		Path: path,
		Args: args,
		Dir:  c.dir,
		Log:  filepath.Join(c.dir, "log", name+".log"),
		Host: c.name + "-" + name,
	}}
	if c.opts.Network != nil {
		p.cmd.NetNS = c.opts.Network.NetNS()
	}
	c.parts = append(c.parts, p)
	return p
}

func (c *Cluster) planEtcd() error {
	path, err := c.bin("etcd")
	if err != nil {
		return err
	}
	client := "http://" + c.etcd()
	peer := fmt.Sprintf("http://%s:%d", c.addr, peerPort)
	c.add(waveEtcd, Etcd, path, []string{
		"--data-dir=" + filepath.Join(c.dir, "etcd"),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		// What a test writes need not outlive the machine.
		"--unsafe-no-fsync",
	}, c.healthy(client+"/health"))
	return nil
}

func (c *Cluster) planAPIServer(i int) error {
	path, err := c.bin("kube-apiserver")
	if err != nil {
		return err
	}
	issuer, err := c.issuer()
	if err != nil {
		return err
	}
	args := []string{
		"--etcd-servers=http://" + c.etcdAt[i],
		"--bind-address=" + c.addr, "--advertise-address=" + c.addr,
		fmt.Sprintf("--secure-port=%d", apiPort+i),
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + serviceRange,
		"--tls-cert-file=" + c.pki.path("apiserver.crt"), "--tls-private-key-file=" + c.pki.path("apiserver.key"),
		"--client-ca-file=" + c.pki.path("ca.crt"),
		"--requestheader-client-ca-file=" + c.pki.path("ca.crt"), "--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--authorization-mode=RBAC",
		"--service-account-issuer=" + issuer, "--api-audiences=" + issuer,
		"--service-account-key-file=" + c.pki.path("sa.pub"), "--service-account-signing-key-file=" + c.pki.path("sa.key"),
		"--allow-privileged=true",
		"--audit-policy-file=" + c.auditPolicy(), "--audit-log-path=" + c.AuditLog(i),
	}
	if len(c.opts.DisableAdmission) > 0 {
		args = append(args, "--disable-admission-plugins="+strings.Join(c.opts.DisableAdmission, ","))
	}
	args = append(args, c.opts.APIServerArgs...)
	c.add(waveAPIServers, APIServerPart(i), path, args, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := c.admins[i].Get(ctx, "/readyz", new([]byte)); err != nil {
			return err
		}
		// Ready comes before the namespaces that it makes.
		for _, ns := range []string{"default", "kube-system"} {
			if err := c.admins[i].Get(ctx, "/api/v1/namespaces/"+ns, nil); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

func (c *Cluster) planControllerManager(o *Part) error {
	key, ca := c.pki.path("ca.key"), c.pki.path("ca.crt")
	return c.planElector(ControllerManager, controllerPort, o,
		"--controllers=*,bootstrapsigner,tokencleaner",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+c.pki.path("sa.key"), "--root-ca-file="+ca,
		"--cluster-signing-cert-file="+ca, "--cluster-signing-key-file="+key)
}

func (c *Cluster) planScheduler(o *Part) error {
	return c.planElector(Scheduler, schedulerPort, o)
}

// planElector plans one of the two parts that can elect.
func (c *Cluster) planElector(name string, port int, o *Part, args ...string) error {
	path, conf, err := c.programAndConf(name, o, "system:"+name)
	if err != nil {
		return err
	}
	args = append([]string{
		"--kubeconfig=" + conf, "--authentication-kubeconfig=" + conf, "--authorization-kubeconfig=" + conf,
		"--bind-address=" + c.addr, fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir=" + filepath.Join(c.dir, "conf", name),
		fmt.Sprintf("--leader-elect=%t", o.LeaderElect),
	}, args...)
	for flag, d := range map[string]time.Duration{
		"lease-duration": o.LeaseDuration, "renew-deadline": o.RenewDeadline, "retry-period": o.RetryPeriod,
	} {
		if d != 0 {
			args = append(args, fmt.Sprintf("--leader-elect-%s=%v", flag, d))
		}
	}
	p := c.add(waveOthers, name, path, append(args, o.Args...), c.healthy(fmt.Sprintf("https://%s:%d/healthz", c.addr, port)))
	p.cmd.Env, p.respawn = o.Env, o.Respawn
	return nil
}

func (c *Cluster) planKwok(o *Part) error {
	path, conf, err := c.programAndConf(Kwok, o, "kwok", mastersGroup)
	if err != nil {
		return err
	}
	own, err := c.bin(Kwok)
	if err != nil {
		return err
	}
	at := fmt.Sprintf("%s:%d", c.addr, kwokPort)
	p := c.add(waveOthers, Kwok, path, append([]string{
		"--kubeconfig=" + conf,
		"--config=" + filepath.Join(filepath.Dir(own), "stages.yaml"),
		"--manage-all-nodes=true",
		"--server-address=" + at,
	}, o.Args...), c.healthy("http://"+at+"/healthz"))
	p.respawn = o.Respawn
	p.cmd.Env = append([]string{"KWOK_WORKDIR=" + filepath.Join(c.dir, "conf", Kwok)}, o.Env...)
	return nil
}

// programAndConf returns the program of an optional part and its kubeconfig.
func (c *Cluster) programAndConf(name string, o *Part, user string, groups ...string) (path, conf string, err error) {
	if o.Server < 0 || o.Server >= c.opts.APIServers {
		return "", "", fmt.Errorf("%s is to use API server %d: there are %d, counted from 0", name, o.Server, c.opts.APIServers)
	}
	if path = o.Program; path == "" {
		if path, err = c.bin(name); err != nil {
			return "", "", err
		}
	}
	via := c.APIServer(o.Server)
	switch {
	case o.Via != "":
		via = o.Via
	case o.Behind:
		via = c.front[o.Server]
	}
	conf, err = c.kubeconfig(via, o.Server, user, groups)
	return path, conf, err
}

// healthy asks a part's own page, whose certificate it makes for itself.
func (c *Cluster) healthy(url string) func(context.Context) error {
	client := &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			DialContext:       c.dial(),
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives: true,
		},
	}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			b, _ := io.ReadAll(io.LimitReader(res.Body, 512)) // only to be shown
			return fmt.Errorf("%s: %s: %s", url, res.Status, b)
		}
		return nil
	}
}

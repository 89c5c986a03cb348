// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// EtcdOptions say how an [Etcd] is secured, and more.
type EtcdOptions struct {
	// CertFile and KeyFile are the servers' certificate; without them clients
	// talk to them in plain text. ClientCAFile makes clients need a certificate.
	CertFile, KeyFile, ClientCAFile string
	// Client is how the testbed itself connects when there is a certificate.
	Client *tls.Config
	// Args are more of etcd's flags, for each member.
	Args []string
}

// An Etcd is a cluster of etcd on the loopback interface. Its members elect
// within half a second. Its methods are safe for concurrent use.
type Etcd struct {
	members []*EtcdMember
	peers   string
	client  *http.Client
	scheme  string

	mu       sync.Mutex
	token    string
	learners []*EtcdMember
}

// An EtcdMember is one process of an [Etcd].
type EtcdMember struct {
	// Endpoint is where clients connect, "127.0.0.1:port".
	Endpoint string

	name, peer string
	etcd       *Etcd
	cmd        Cmd

	mu      sync.Mutex
	process *Process
}

// StartEtcd starts a cluster with so many members, which keep their data in
// dir, and waits until it has a leader.
func StartEtcd(dir string, members int, opt EtcdOptions) (*Etcd, error) {
	bin, err := Bin("etcd")
	if err != nil {
		return nil, err
	}
	e := &Etcd{scheme: "http", client: &http.Client{Timeout: 5 * time.Second}}
	if opt.CertFile != "" {
		e.scheme = "https"
		e.client.Transport = &http.Transport{TLSClientConfig: opt.Client}
	}
	if err := e.plan(bin, dir, members, opt); err != nil {
		return nil, err
	}
	for _, m := range e.members {
		if m.process, err = Start(m.cmd); err != nil {
			e.Close()
			return nil, err
		}
	}
	if err := e.Ready(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Etcd) plan(bin, dir string, members int, opt EtcdOptions) error {
	var peers []string
	for i := range members {
		m, err := e.newMember(bin, dir, fmt.Sprintf("m%d", i), opt)
		if err != nil {
			return err
		}
		e.members = append(e.members, m)
		peers = append(peers, m.name+"="+m.peer)
	}
	e.peers = strings.Join(peers, ",")
	for _, m := range e.members {
		m.cmd.Args = append(m.cmd.Args, "--initial-cluster", e.peers, "--initial-cluster-token", filepath.Base(dir))
	}
	return nil
}

// newMember returns one that does not know the others yet.
func (e *Etcd) newMember(bin, dir, name string, opt EtcdOptions) (*EtcdMember, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	peer, err := FreePort()
	if err != nil {
		return nil, err
	}
	m := &EtcdMember{Endpoint: fmt.Sprintf("127.0.0.1:%d", port), name: name, peer: fmt.Sprintf("http://127.0.0.1:%d", peer), etcd: e}
	data := filepath.Join(dir, name)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	own := e.scheme + "://" + m.Endpoint
	m.cmd = Cmd{Path: bin, Dir: data, Log: filepath.Join(dir, name+".log"), Args: append([]string{
		"--name", name, "--data-dir", data,
		"--listen-client-urls", own, "--advertise-client-urls", own,
		"--listen-peer-urls", m.peer, "--initial-advertise-peer-urls", m.peer,
		"--heartbeat-interval", "50", "--election-timeout", "500", "--unsafe-no-fsync", "--log-level", "warn",
	}, opt.Args...)}
	if opt.CertFile != "" {
		m.cmd.Args = append(m.cmd.Args, "--cert-file", opt.CertFile, "--key-file", opt.KeyFile)
	}
	if opt.ClientCAFile != "" {
		m.cmd.Args = append(m.cmd.Args, "--trusted-ca-file", opt.ClientCAFile, "--client-cert-auth")
	}
	return m, nil
}

// AddLearner starts one more member, in plain text, which only learns. It is
// none of [Etcd.Member].
func (e *Etcd) AddLearner(dir string) (*EtcdMember, error) {
	m, err := e.newMember(e.members[0].cmd.Path, dir, "learner", EtcdOptions{})
	if err != nil {
		return nil, err
	}
	m.cmd.Args = append(m.cmd.Args, "--initial-cluster", e.peers+","+m.name+"="+m.peer, "--initial-cluster-state", "existing")
	if err := e.Call("/v3/cluster/member/add", map[string]any{"peerURLs": []string{m.peer}, "isLearner": true}, nil); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.learners = append(e.learners, m)
	e.mu.Unlock()
	return m, m.Restart()
}

// Ready waits until every running member knows the leader and answers a read.
func (e *Etcd) Ready() error {
	for _, m := range e.members {
		p := m.running()
		if p == nil {
			continue
		}
		err := p.Ready(15*time.Second, func() error {
			return m.Call("/v3/kv/range", map[string]any{"key": key64("ready")}, nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Endpoints returns where clients connect.
func (e *Etcd) Endpoints() []string {
	var all []string
	for _, m := range e.members {
		all = append(all, m.Endpoint)
	}
	return all
}

// URL returns the lock URL of a key: etcd://host,host,host/key, with tls=off if
// the cluster has no certificate.
func (e *Etcd) URL(key string) string {
	u := "etcd://" + strings.Join(e.Endpoints(), ",") + "/" + strings.TrimPrefix(key, "/")
	if e.scheme == "http" {
		u += "?tls=off"
	}
	return u
}

// Member returns the i-th member.
func (e *Etcd) Member(i int) *EtcdMember { return e.members[i] }

// Close kills all members.
func (e *Etcd) Close() {
	e.mu.Lock()
	learners := e.learners
	e.mu.Unlock()
	for _, m := range append(learners, e.members...) {
		m.Kill()
	}
}

// Leader returns the index of the member that leads. It blocks until there is
// one, at most for 10 s.
func (e *Etcd) Leader() (int, error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for i, m := range e.members {
			if m.running() == nil {
				continue
			}
			var s struct {
				Header struct {
					MemberID string `json:"member_id"`
				}
				Leader string
			}
			if err := m.Call("/v3/maintenance/status", struct{}{}, &s); err == nil && s.Leader == s.Header.MemberID {
				return i, nil
			}
		}
	}
	return 0, errors.New("testbed: etcd has had no leader for 10 s")
}

// Put sets a key without any condition, Delete removes it, as a person could.
func (e *Etcd) Put(key string, value []byte) error {
	return e.Call("/v3/kv/put", map[string]any{"key": key64(key), "value": base64.StdEncoding.EncodeToString(value)}, nil)
}

// Delete removes a key.
func (e *Etcd) Delete(key string) error {
	return e.Call("/v3/kv/deleterange", map[string]any{"key": key64(key)}, nil)
}

func key64(key string) string { return base64.StdEncoding.EncodeToString([]byte(key)) }

// Revision returns the store's revision.
func (e *Etcd) Revision() (int64, error) {
	var a struct{ Header struct{ Revision string } }
	if err := e.Call("/v3/kv/range", map[string]any{"key": key64("x")}, &a); err != nil {
		return 0, err
	}
	return strconv.ParseInt(a.Header.Revision, 10, 64)
}

// EnableAuth makes the user root, a role for all keys that begin with prefix,
// and a user of that role; then clients must log in. The testbed does so as
// root from here on.
func (e *Etcd) EnableAuth(prefix, user, password string) error {
	end := prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1)
	calls := []struct {
		path string
		in   map[string]any
	}{
		{"user/add", map[string]any{"name": "root", "password": "root"}},
		{"role/add", map[string]any{"name": "root"}},
		{"user/grant", map[string]any{"user": "root", "role": "root"}},
		{"role/add", map[string]any{"name": "lock"}},
		{"role/grant", map[string]any{"name": "lock", "perm": map[string]any{
			"permType": "READWRITE", "key": key64(prefix), "range_end": key64(end)}}},
		{"user/add", map[string]any{"name": user, "password": password}},
		{"user/grant", map[string]any{"user": user, "role": "lock"}},
		{"enable", map[string]any{}},
	}
	for _, c := range calls {
		if err := e.Call("/v3/auth/"+c.path, c.in, nil); err != nil {
			return err
		}
	}
	var a struct{ Token string }
	if err := e.Call("/v3/auth/authenticate", map[string]any{"name": "root", "password": "root"}, &a); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.token = a.Token
	return nil
}

// Call makes a request of etcd's JSON interface at the first member that
// answers.
func (e *Etcd) Call(path string, in, out any) error {
	err := errors.New("testbed: no member of etcd runs")
	for _, m := range e.members {
		if m.running() == nil {
			continue
		}
		if err = m.Call(path, in, out); err == nil {
			return nil
		}
		var u *url.Error
		if !errors.As(err, &u) { // it answered
			return err
		}
	}
	return err
}

// Call makes a request of etcd's JSON interface at this member.
func (m *EtcdMember) Call(path string, in, out any) error {
	if in == nil {
		in = struct{}{}
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, m.etcd.scheme+"://"+m.Endpoint+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	m.etcd.mu.Lock()
	if t := m.etcd.token; t != "" {
		req.Header.Set("Authorization", t)
	}
	m.etcd.mu.Unlock()
	res, err := m.etcd.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("testbed: etcd: %s: %s: %s", path, res.Status, text)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

func (m *EtcdMember) running() *Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

// Kill kills the member, if it runs.
func (m *EtcdMember) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process != nil {
		m.process.Kill()
		m.process = nil
	}
}

// Restart starts a member that was killed, with the data that it had, and
// waits until it listens.
func (m *EtcdMember) Restart() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process != nil {
		return errors.New("testbed: the member of etcd runs")
	}
	var err error
	if m.process, err = Start(m.cmd); err != nil {
		return err
	}
	return m.process.Ready(15*time.Second, func() error {
		c, err := net.DialTimeout("tcp", m.Endpoint, time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// Pause freezes the member.
func (m *EtcdMember) Pause() error { return m.signal((*Process).Pause) }

// Resume lets a paused member go on.
func (m *EtcdMember) Resume() error { return m.signal((*Process).Resume) }

func (m *EtcdMember) signal(f func(*Process) error) error {
	p := m.running()
	if p == nil {
		return errors.New("testbed: the member of etcd does not run")
	}
	return f(p)
}

// Requests returns how many requests the member has been asked since it was
// started, by method: "Range", "Txn".
func (m *EtcdMember) Requests() (map[string]int64, error) {
	res, err := m.etcd.client.Get(m.etcd.scheme + "://" + m.Endpoint + "/metrics")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "grpc_server_started_total{") {
			continue
		}
		_, rest, _ := strings.Cut(line, `grpc_method="`)
		method, _, _ := strings.Cut(rest, `"`)
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " ")+1:]), 64)
		if err != nil {
			return nil, fmt.Errorf("testbed: etcd: its metrics: %w", err)
		}
		all[method] += int64(n)
	}
	return all, nil
}

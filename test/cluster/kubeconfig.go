// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mastersGroup may do everything, and no policy of RBAC says otherwise.
const mastersGroup = "system:masters"

// Admin returns the path of a kubeconfig for API server i whose user may do
// everything. It goes past any proxy.
func (c *Cluster) Admin(i int) string { return c.adminFiles[i] }

// Kubeconfig returns the path of a kubeconfig for a user of API server i, whose
// client certificate names him and his groups. It goes through
// [Options.Proxy] and [Options.Intercept] if there are such. The same user with the same groups has the
// same file, and the same certificate, also after a restart of the cluster.
func (c *Cluster) Kubeconfig(i int, user string, groups ...string) (string, error) {
	return c.KubeconfigVia(c.front[i], i, user, groups...)
}

// KubeconfigVia is [Cluster.Kubeconfig] with the address, host:port, of a proxy
// before API server i. TLS goes through it, so that it may have any address.
func (c *Cluster) KubeconfigVia(addr string, i int, user string, groups ...string) (string, error) {
	file, err := c.kubeconfig(addr, i, user, groups)
	if err != nil {
		return "", fmt.Errorf("cluster %s: kubeconfig for %s: %w", c.name, user, err)
	}
	return file, nil
}

func (c *Cluster) kubeconfig(addr string, i int, user string, groups []string) (string, error) {
	who := sha256.Sum256(fmt.Appendf(nil, "%q %q", user, groups))
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, user)
	base := filepath.Join(c.dir, "kubeconfig", fmt.Sprintf("%.60s-%x", readable, who[:4]))
	c.files.Lock()
	defer c.files.Unlock()
	cert, key, err := c.pair(base, user, groups)
	if err != nil {
		return "", err
	}
	type object map[string]any
	b, err := json.MarshalIndent(object{ // JSON is YAML
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters": []object{{"name": c.name, "cluster": object{
			"server":                     "https://" + addr,
			"tls-server-name":            "localhost",
			"certificate-authority-data": c.pki.caPEM,
		}}},
		"users": []object{{"name": user + "@" + c.name, "user": object{
			"client-certificate-data": cert,
			"client-key-data":         key,
		}}},
		"contexts":        []object{{"name": c.name, "context": object{"cluster": c.name, "user": user + "@" + c.name}}},
		"current-context": c.name,
	}, "", "  ")
	if err != nil {
		return "", err
	}
	file := fmt.Sprintf("%s-%d.kubeconfig", base, i)
	if addr != c.APIServer(i) {
		file = fmt.Sprintf("%s-%d-via-%s.kubeconfig", base, i, strings.ReplaceAll(addr, ":", "-"))
	}
	return file, writeFile(file, b)
}

// pair returns the user's certificate and key, made at the first call.
func (c *Cluster) pair(base, user string, groups []string) (cert, key []byte, err error) {
	cert, err = os.ReadFile(base + ".crt")
	if err == nil {
		if key, err = os.ReadFile(base + ".key"); err == nil {
			return cert, key, nil
		}
	}
	if cert, key, err = c.pki.client(user, groups); err != nil {
		return nil, nil, err
	}
	if err := writeFile(base+".key", key); err != nil {
		return nil, nil, err
	}
	return cert, key, writeFile(base+".crt", cert)
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"tenure.dev"
)

// What is refused is read again for the next request: no restart, no wait.
func TestRotation(t *testing.T) {
	ns, c := namespace(t), server(t)
	good := account(t, ns, "candidate", candidateVerbs...)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) { must(t, os.WriteFile(path(name), []byte(text), 0o600)) }
	file := path("kubeconfig")
	for name, tt := range map[string]struct {
		user     clientcmdapi.AuthInfo
		bad, fix func()
	}{
		"a token file": {
			clientcmdapi.AuthInfo{TokenFile: path("token")},
			func() { write("token", "revoked") }, func() { write("token", good) },
		},
		"a token in the kubeconfig": {
			userInfo("revoked"), func() {},
			func() { writeKubeconfig(t, file, c.APIServer(0), c.CA(), userInfo(good)) },
		},
		"a certificate": {
			clientcmdapi.AuthInfo{ClientCertificate: path("crt"), ClientKey: path("key")},
			func() { copyCertificate(t, ns, "nobody", path("crt"), path("key")) },
			func() { copyCertificate(t, ns, "system:masters", path("crt"), path("key")) },
		},
		"a plugin": {
			execUser(path("plugin"), path("answer")),
			func() {
				write("plugin", "#!/bin/sh\ncat \"$1\"\n")
				must(t, os.Chmod(path("plugin"), 0o700))
				write("answer", execAnswer("revoked"))
			},
			func() { write("answer", execAnswer(good)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.bad()
			writeKubeconfig(t, file, c.APIServer(0), c.CA(), tt.user)
			r := open(t, ns, "lock", file)
			_, _, err := r.Read(within(t, 10*time.Second))
			if s := apiStatus(err); s == nil || s.Code != 401 && s.Code != 403 || strings.Contains(err.Error(), "revoked") {
				t.Fatalf("with credentials that are refused: %v", err)
			}
			tt.fix()
			if name == "a certificate" { // known, but allowed nothing: that is no 401
				r.access.refresh(r.access.client)
			}
			if _, _, err = r.Read(within(t, 10*time.Second)); !errors.Is(err, tenure.ErrNotExist) {
				t.Errorf("with new ones: %v", err)
			}
		})
	}
}

func copyCertificate(t *testing.T, user, group, crt, key string) {
	t.Helper()
	file, err := server(t).Kubeconfig(0, user, group)
	must(t, err)
	config, err := (source{file: file}).load()
	must(t, err)
	for to, from := range map[string]struct {
		data []byte
		file string
	}{crt: {config.CertData, config.CertFile}, key: {config.KeyData, config.KeyFile}} {
		if len(from.data) == 0 {
			from.data, err = os.ReadFile(from.file)
			must(t, err)
		}
		must(t, os.WriteFile(to, from.data, 0o600))
	}
}

func execUser(command string, args ...string) clientcmdapi.AuthInfo {
	return clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: command, Args: args,
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode, InstallHint: "get it at the counter", ProvideClusterInfo: true,
	}}
}

func execAnswer(token string) string {
	return fmt.Sprintf(`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":%q}}`, token)
}

func script(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path+".new", []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	must(t, os.Rename(path+".new", path))
}

// A plugin that hangs holds up no call beyond its context, is run once for all
// that wait, is killed with what it started, and run anew.
func TestHangingPlugin(t *testing.T) {
	ns := namespace(t)
	good := account(t, ns, "candidate", candidateVerbs...)
	dir := t.TempDir()
	plugin, runs := filepath.Join(dir, "plugin"), filepath.Join(dir, "runs")
	script(t, plugin, `echo run >> "$1"; sleep 1000 & echo $! >> "$1.pids"; wait`)
	r := open(t, ns, "lock", kubeconfig(t, server(t).APIServer(0), server(t).CA(), execUser(plugin, runs)))
	const limit = 700 * time.Millisecond
	r.access.plugin.limit = limit
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, _, err := r.Read(ctx)
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Second || !strings.Contains(err.Error(), `credential plugin "plugin" has been running`) {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
	}
	wg.Wait()
	_, _, err := r.Read(within(t, 10*time.Second))
	wantText(t, err, "killed", "within 700ms")
	text, err := os.ReadFile(runs)
	must(t, err)
	if n := strings.Count(string(text), "run"); n != 1 {
		t.Errorf("it was run %d times, want once", n)
	}
	pid, err := os.ReadFile(runs + ".pids")
	must(t, err)
	gone := time.Now().Add(5 * time.Second)
	for !dead(strings.TrimSpace(string(pid))) {
		if time.Now().After(gone) {
			t.Fatal("what the plugin had started still runs")
		}
		time.Sleep(10 * time.Millisecond)
	}
	script(t, plugin, "cat <<'E'\n"+execAnswer(good)+"\nE")
	until := time.Now().Add(10 * time.Second)
	for {
		_, _, err = r.Read(within(t, 10*time.Second))
		if errors.Is(err, tenure.ErrNotExist) {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("after it was mended: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// dead reports whether a process has ended, or is a zombie.
func dead(pid string) bool {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	return err != nil || strings.Contains(string(text), ") Z ")
}

func TestBrokenPlugins(t *testing.T) {
	ns := namespace(t)
	for name, tt := range map[string]struct {
		script string
		want   []string
	}{
		"fails":           {`echo "no session: log in" >&2; exit 3`, []string{"no session: log in", "exit status 3"}},
		"prints no JSON":  {`echo TOPSECRET`, []string{"is no JSON object"}},
		"another version": {`echo '{"apiVersion":"v0","kind":"ExecCredential","status":{"token":"TOPSECRET"}}'`, []string{"another kind or version"}},
		"prints nothing":  {`echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"}'`, []string{"neither a token nor a client certificate"}},
		"is not there":    {"", []string{"get it at the counter"}},
		"needs a cluster": {`case "$KUBERNETES_EXEC_INFO" in *'"server":"https://127.'*) echo "was told" >&2;; esac; exit 1`, []string{"was told"}},
	} {
		t.Run(name, func(t *testing.T) {
			plugin := filepath.Join(t.TempDir(), "plugin")
			if tt.script != "" {
				script(t, plugin, tt.script)
			}
			r := open(t, ns, "lock", kubeconfig(t, server(t).APIServer(0), server(t).CA(), execUser(plugin)))
			_, _, err := r.Read(within(t, 10*time.Second))
			wantText(t, err, append(tt.want, `credential plugin "plugin"`)...)
			if strings.Contains(err.Error(), "TOPSECRET") {
				t.Errorf("the error tells what was printed: %v", err)
			}
		})
	}
	user := execUser("x")
	user.Exec.InteractiveMode = clientcmdapi.AlwaysExecInteractiveMode
	file := kubeconfig(t, server(t).APIServer(0), server(t).CA(), user)
	_, err := tenure.Open(t.Context(), "k8s://ns/x?kubeconfig="+file, tenure.Vars{})
	wantText(t, err, "wants a terminal")
}

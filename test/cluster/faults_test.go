// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tenure.dev/test/testbed"
)

// fromFile makes a client out of a kubeconfig, and returns the address in it.
func fromFile(t *testing.T, c *Cluster, file string) (*Client, string) {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	var conf struct {
		Clusters []struct{ Cluster struct{ Server string } }
	}
	must(t, json.Unmarshal(b, &conf))
	user, err := c.Client(0, "from-file", mastersGroup)
	must(t, err)
	user.Server = conf.Clusters[0].Cluster.Server
	t.Cleanup(user.Close)
	return user, strings.TrimPrefix(user.Server, "https://")
}

// refused checks that nothing answers, soon.
func refused(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := c.Get(ctx, "/version", nil)
	var s *StatusError
	if err == nil || errors.As(err, &s) {
		t.Errorf("the API server answers: %v", err)
	}
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := start(t, Options{Name: "restart", Dir: dir})
	kubeconfig, err := c.Kubeconfig(0, "someone", mastersGroup)
	must(t, err)
	before, err := os.ReadFile(kubeconfig)
	must(t, err)
	someone, _ := fromFile(t, c, kubeconfig)
	create(t, c, "one")

	must(t, c.Kill(APIServerPart(0)))
	refused(t, someone)
	must(t, c.Restart(t.Context(), APIServerPart(0)))
	create(t, c, "two")

	must(t, c.Restart(t.Context(), Etcd)) // while it runs
	eventually(t, func(ctx context.Context) error { return someone.Get(ctx, "/readyz", new([]byte)) })

	must(t, c.Pause(APIServerPart(0)))
	refused(t, someone)
	must(t, c.Resume(APIServerPart(0)))
	create(t, c, "three")

	c.KillAll()
	refused(t, someone)
	if err := c.Pause(Etcd); err == nil {
		t.Error("a part that is dead was paused")
	}
	must(t, c.StartAll(t.Context()))
	want := []string{"one", "three", "two"}
	if got := names(t, someone); !slices.Equal(got, want) {
		t.Errorf("after the whole cluster was killed it has %q, want %q", got, want)
	}

	c.Close()
	again := start(t, Options{Name: "restart", Dir: dir})
	if !bytes.Equal(again.CA(), c.CA()) {
		t.Error("started again from its folder, the cluster has another authority")
	}
	if got := names(t, someone); !slices.Equal(got, want) {
		t.Errorf("started again, the cluster has %q, want %q", got, want)
	}
	_, err = again.Kubeconfig(0, "someone", mastersGroup)
	must(t, err)
	after, err := os.ReadFile(kubeconfig)
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Error("started again, the cluster gives a user another kubeconfig")
	}
	if err := again.Kill("kubelet"); err == nil {
		t.Error("a part that is not there was killed")
	}
}

func TestSnapshotRestoreAndClone(t *testing.T) {
	t.Parallel()
	a := start(t, Options{Name: "original"})
	create(t, a, "before")
	var token struct{ Status struct{ Token string } }
	must(t, a.AdminClient(0).Post(t.Context(), "/api/v1/namespaces/default/serviceaccounts", object{"metadata": object{"name": "robot"}}, nil))
	must(t, a.AdminClient(0).Post(t.Context(), "/api/v1/namespaces/default/serviceaccounts/robot/token", object{}, &token))
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	must(t, a.Snapshot(snapshot))
	create(t, a, "after") // the original has gone on

	// Once more, in the middle of writes: what was answered before is in it.
	busy := filepath.Join(t.TempDir(), "busy")
	answered := snapshotUnderWrites(t, a, busy)
	full := start(t, Options{Name: "full", From: busy})
	if got := len(names(t, full.AdminClient(0))); got < answered {
		t.Errorf("a clone made under writes has %d objects, %d were there before", got, answered)
	}
	full.Close()

	b := start(t, Options{Name: "copy", From: snapshot})
	if got := names(t, b.AdminClient(0)); !slices.Equal(got, []string{"before"}) {
		t.Errorf("the clone has %q, want what there was before", got)
	}
	// The clone knows its original's robot, who is allowed nothing.
	if err := b.TokenClient(0, token.Status.Token).Get(t.Context(), configMaps, nil); !errors.Is(err, ErrForbidden) {
		t.Errorf("a token of the original's at the clone: got %v, want ErrForbidden", err)
	}
	if got := names(t, a.AdminClient(0)); !slices.Equal(got, []string{"after", "before"}) {
		t.Errorf("the original has %q beside its clone", got)
	}
	b.Close()

	must(t, a.Restore(t.Context(), snapshot))
	if got := names(t, a.AdminClient(0)); !slices.Equal(got, []string{"before"}) {
		t.Errorf("restored, the cluster has %q, want what there was before", got)
	}
	create(t, a, "after")
	if err := a.Snapshot(snapshot); !errors.Is(err, os.ErrExist) {
		t.Errorf("a snapshot over another: got %v, want ErrExist", err)
	}
}

// snapshotUnderWrites returns how many of the writes were answered before.
func snapshotUnderWrites(t *testing.T, c *Cluster, dir string) int {
	ctx, stop := context.WithCancel(t.Context())
	var answered atomic.Int64
	var writers sync.WaitGroup
	errs := make(chan error, 4)
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ; i++ {
				err := c.AdminClient(0).Post(ctx, configMaps, object{"metadata": object{
					"name": fmt.Sprintf("busy-%d-%d", w, i), "labels": object{"busy": "yes"}}, "data": object{"x": strings.Repeat("x", 4096)}}, nil)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					errs <- err
					return
				}
				answered.Add(1)
			}
		})
	}
	eventually(t, func(context.Context) error {
		if n := answered.Load(); n < 100 && len(errs) == 0 {
			return fmt.Errorf("%d writes were answered", n)
		}
		return nil
	})
	before := answered.Load()
	must(t, c.Snapshot(dir))
	stop()
	writers.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	must(t, c.AdminClient(0).Delete(t.Context(), configMaps+"?labelSelector=busy", nil))
	return int(before)
}

// forward is a TCP proxy that counts connections.
func forward(t *testing.T, target string, connections *atomic.Int64) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			go func() { defer out.Close(); io.Copy(out, in) }()
			go func() { defer in.Close(); io.Copy(in, out) }()
		}
	}()
	return l.Addr().String(), nil
}

func TestProxies(t *testing.T) {
	t.Parallel()
	var users, etcd atomic.Int64
	var front string
	c := start(t, Options{
		Name: "proxies",
		Proxy: func(i int, target string) (_ string, err error) {
			front, err = forward(t, target, &users)
			return front, err
		},
		EtcdProxy: func(_ int, target string) (string, error) { return forward(t, target, &etcd) },
	})
	if users.Load() != 0 || etcd.Load() == 0 {
		t.Errorf("started with %d connections through the users' proxy and %d through etcd's; want none, and some", users.Load(), etcd.Load())
	}
	file, err := c.Kubeconfig(0, "someone", mastersGroup)
	must(t, err)
	someone, addr := fromFile(t, c, file)
	if addr != front {
		t.Errorf("the kubeconfig names %s, want the proxy, %s", addr, front)
	}
	must(t, someone.Get(t.Context(), "/version", nil))
	if users.Load() == 0 {
		t.Error("no connection through the proxy")
	}
	if _, addr := fromFile(t, c, c.Admin(0)); addr != c.APIServer(0) {
		t.Errorf("the administrator goes to %s, want %s", addr, c.APIServer(0))
	}
}

func TestIntercept(t *testing.T) {
	t.Parallel()
	var loseAnswers, electing atomic.Bool
	c := start(t, Options{
		Name: "intercept",
		Intercept: func(_ int, next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/leases/kube-controller-manager") {
					electing.Store(true)
				}
				if r.Method == http.MethodPost && loseAnswers.Load() {
					next.ServeHTTP(httptest.NewRecorder(), r)
					panic(http.ErrAbortHandler)
				}
				next.ServeHTTP(w, r)
			})
		},
		ControllerManager: &Part{Behind: true, LeaderElect: true, Respawn: true},
	})
	eventually(t, func(context.Context) error {
		if !electing.Load() {
			return errors.New("the controller manager goes another way")
		}
		return nil
	})
	file, err := c.Kubeconfig(0, "someone", "g1", "g2")
	must(t, err)
	_, front := fromFile(t, c, file)

	// The API server knows who asks, and not by what he says.
	someone, err := c.Client(0, "someone", "g1", "g2")
	must(t, err)
	someone.Server = "https://" + front
	someone.http.Transport = lying{someone.http.Transport}
	var review struct {
		Status struct {
			UserInfo struct {
				Username string
				Groups   []string
			}
		}
	}
	must(t, someone.Post(t.Context(), "/apis/authentication.k8s.io/v1/selfsubjectreviews", object{}, &review))
	if got := review.Status.UserInfo; got.Username != "someone" || !slices.Equal(got.Groups, []string{"g1", "g2", "system:authenticated"}) {
		t.Errorf("the API server takes someone for %+v", got)
	}
	nobody := c.TokenClient(0, "nonsense")
	nobody.Server = someone.Server
	if err := nobody.Get(t.Context(), "/api/v1/namespaces", nil); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("a bad token: got %v, want ErrUnauthorized", err)
	}

	// An answer is lost, and the write is not.
	loseAnswers.Store(true)
	root, err := c.Client(0, "root", mastersGroup)
	must(t, err)
	root.Server = someone.Server
	if err := root.Post(t.Context(), configMaps, object{"metadata": object{"name": "x"}}, nil); err == nil {
		t.Error("the answer was not lost")
	}
	if got := names(t, c.AdminClient(0)); !slices.Equal(got, []string{"x"}) {
		t.Errorf("the cluster has %q, want the write whose answer was lost", got)
	}

	// What crashes comes back, and what is killed does not.
	crashed := c.Process(ControllerManager)
	crashed.Kill()
	eventually(t, func(context.Context) error {
		if p := c.Process(ControllerManager); p == crashed || p.Err() != nil {
			return errors.New("the controller manager has crashed and is not back")
		}
		return nil
	})
	must(t, c.Kill(ControllerManager))
	if proc, err := c.parts[2].run(c.Process(ControllerManager), false); proc != nil || err != nil {
		t.Errorf("a part that was killed for good came back: %v", err)
	}
	must(t, c.Restart(t.Context(), ControllerManager))
}

// lying says in headers that somebody else asks.
type lying struct{ next http.RoundTripper }

func (l lying) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Remote-User", "admin")
	r.Header.Set("X-Remote-Group", mastersGroup)
	return l.next.RoundTrip(r)
}

func TestPartition(t *testing.T) {
	t.Parallel()
	n, err := testbed.NewNetwork(filepath.Join(t.TempDir(), "network.log"))
	must(t, err)
	t.Cleanup(n.Close)
	other, err := testbed.NewNetwork(filepath.Join(t.TempDir(), "other.log"))
	must(t, err)
	t.Cleanup(other.Close)
	c := start(t, Options{Name: "island", Network: n, ControllerManager: &Part{}})
	// Networks reach one another, and this machine.
	conn, err := other.Dial(t.Context(), "tcp", c.APIServer(0))
	must(t, err)
	conn.Close()
	someone, err := c.Client(0, "someone", mastersGroup)
	must(t, err)
	must(t, someone.Get(t.Context(), "/version", nil))
	for name, cut := range map[string]testbed.Cut{
		"all":        {},
		"in":         {In: true},
		"out":        {Out: true},
		"rejected":   {Reject: true},
		"this peer":  {Peers: []string{n.HostAddr()}},
		"everything": {Loss: 100},
	} {
		must(t, n.Cut(cut))
		refused(t, someone)
		must(t, c.AdminClient(0).Get(t.Context(), "/version", nil))
		must(t, n.Heal())
		if err := someone.Get(t.Context(), "/version", nil); err != nil {
			t.Errorf("%s: healed: %v", name, err)
		}
	}
	must(t, n.Cut(testbed.Cut{Peers: []string{"192.0.2.1"}}))
	must(t, someone.Get(t.Context(), "/version", nil))
	if err := n.Cut(testbed.Cut{Peers: []string{"nonsense"}}); err == nil {
		t.Error("a peer that is no address was cut")
	}
	// Cut off, the cluster goes on inside.
	must(t, n.Cut(testbed.Cut{}))
	must(t, c.Restart(t.Context(), Etcd))
	eventually(t, func(ctx context.Context) error { return c.AdminClient(0).Get(ctx, "/readyz", new([]byte)) })
	must(t, c.Restart(t.Context(), ControllerManager))
	create(t, c, "cut-off")
	refused(t, someone)
}

// childEnv tells this program to be a child that starts a cluster and ends by
// the value's means.
const childEnv = "TENURE_TEST_CLUSTER_CHILD"

func child(how string) {
	n, err := testbed.NewNetwork(filepath.Join(os.TempDir(), fmt.Sprintf("network-%d.log", os.Getpid())))
	if err != nil {
		panic(err)
	}
	c, err := Start(context.Background(), Options{Name: "child", Network: n})
	if err != nil {
		panic(err)
	}
	fmt.Println("dir", c.Dir())
	for _, p := range c.Parts() {
		fmt.Println("pid", c.Process(p).PID())
	}
	fmt.Println("addr", n.HostAddr())
	fmt.Println("up")
	if how == "panic" {
		panic("as a test may")
	}
	select {}
}

func TestNothingIsLeftBehind(t *testing.T) {
	for _, how := range []string{"panic", "kill"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			exe, err := os.Executable()
			must(t, err)
			cmd := exec.CommandContext(t.Context(), exe)
			cmd.Env = append(os.Environ(), childEnv+"="+how, "TMPDIR="+t.TempDir())
			out, err := cmd.StdoutPipe()
			must(t, err)
			must(t, cmd.Start())
			said := make(map[string][]string)
			for s := bufio.NewScanner(out); s.Scan() && s.Text() != "up"; {
				k, v, _ := strings.Cut(s.Text(), " ")
				said[k] = append(said[k], v)
			}
			if how == "kill" {
				must(t, cmd.Process.Kill())
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the child ended well")
			}
			if len(said["pid"]) != 2 || len(said["dir"]) != 1 || len(said["addr"]) != 1 {
				t.Fatalf("the child said %q", said)
			}
			eventually(t, func(context.Context) error { return gone(said["pid"], said["addr"][0]) })
		})
	}
}

// gone says which of the processes is there, or whether the address is still
// this machine's.
func gone(pids []string, addr string) error {
	for _, s := range pids {
		pid, err := strconv.Atoi(s)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !bytes.Contains(b, []byte(") Z ")) {
			return fmt.Errorf("process %d is there: %s", pid, b)
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if strings.HasPrefix(a.String(), addr+"/") {
			return fmt.Errorf("%v is still an address of this machine", a)
		}
	}
	return nil
}

func TestStaleFolders(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	mine, err := tempDir()
	must(t, err)
	stale := filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-1-x", tempPrefix, os.Getpid())) // its begin is not ours
	must(t, os.Mkdir(stale, 0o700))
	removeStale()
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a process that is gone is there: %v", err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("the folder of this process is gone: %v", err)
	}
}

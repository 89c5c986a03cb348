// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Command elector is a stock controller as far as an election sees it: client-go's
// leader election on a Lease, and while it leads a beat to a receiver outside all
// clusters. It knows nothing of Tenure.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"tenure.dev/test/e2e/monotonic"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "elector:", err)
		os.Exit(1)
	}
}

func run() error {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the cluster")
	namespace := flag.String("namespace", "demo", "namespace of the Lease")
	name := flag.String("lease", "ctl", "name of the Lease")
	id := flag.String("id", "", "identity")
	receiver := flag.String("receiver", "", "address of the receiver")
	lease := flag.Duration("lease-duration", 15*time.Second, "")
	renew := flag.Duration("renew-deadline", 10*time.Second, "")
	retry := flag.Duration("retry-period", 2*time.Second, "")
	release := flag.Bool("release", false, "empty the Lease at the end")
	noTimeout := flag.Bool("no-timeout", false, "no client timeout")
	flag.Parse()

	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	if !*noTimeout {
		cfg.Timeout = *renew / 2 // as client-go's own helper does
	}
	conn, err := net.Dial("udp", *receiver)
	if err != nil {
		return err
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return renewals{next, conn, *id} })
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: *namespace, Name: *name}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: *id},
		},
		LeaseDuration: *lease, RenewDeadline: *renew, RetryPeriod: *retry, ReleaseOnCancel: *release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				for ctx.Err() == nil {
					_, _ = conn.Write([]byte(*id)) // the receiver counts what arrives
					time.Sleep(50 * time.Millisecond)
				}
			},
			OnStoppedLeading: func() {
				if ctx.Err() == nil {
					os.Exit(1) // as controllers do
				}
			},
		},
	})
	if err != nil {
		return err
	}
	e.Run(ctx)
	return nil
}

// renewals tells the receiver of each write of the Lease that an API server
// accepted, and when it had been sent.
type renewals struct {
	next http.RoundTripper
	conn net.Conn
	id   string
}

// RoundTrip implements http.RoundTripper.
func (r renewals) RoundTrip(req *http.Request) (*http.Response, error) {
	sent := monotonic.Now()
	res, err := r.next.RoundTrip(req)
	if err == nil && res.StatusCode < 300 && (req.Method == http.MethodPut || req.Method == http.MethodPost) {
		_, _ = fmt.Fprintf(r.conn, "%s %d", r.id, sent.Nanoseconds()) // the receiver counts what arrives
	}
	return res, err
}

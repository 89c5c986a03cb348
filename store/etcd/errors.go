// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tenure.dev"
)

// errNotEtcd: something answered, but not as etcd does.
var errNotEtcd = errors.New("what answers there is no etcd, or ended the connection")

// A connectError says that no connection came about: nothing was asked.
type connectError struct {
	addr string
	err  error
}

func (e *connectError) Error() string { return "connect to " + e.addr + ": " + e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// A clusterError says that members of the URL belong to different clusters.
type clusterError struct {
	text string
	err  error
}

func (e *clusterError) Error() string {
	if e.err != nil {
		return e.text + ": " + e.err.Error()
	}
	return e.text
}
func (e *clusterError) Unwrap() error { return e.err }

// grpcStatus returns the status that a server or gRPC gave, nil if none did.
func grpcStatus(err error) *status.Status {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus()
	}
	return nil
}

func code(err error) codes.Code { return grpcStatus(err).Code() }

// told returns the error that etcd itself answered with, the zero one if err is
// gRPC's or of the way there.
func told(err error) rpctypes.EtcdError {
	var e rpctypes.EtcdError
	if s := grpcStatus(err); s != nil {
		errors.As(rpctypes.Error(s.Err()), &e)
	}
	return e
}

func is(err, sentinel error) bool { return err != nil && errors.Is(told(err), sentinel) }

// clientSide reports whether a status was made by gRPC on this side.
func clientSide(err error) bool { return told(err) == (rpctypes.EtcdError{}) }

// ErrNotSupportedForLearner has no client-side twin.
var errLearner = rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)

// elsewhere reports whether another member may do better.
func elsewhere(err error) bool {
	var c *connectError
	if errors.As(err, &c) || is(err, errLearner) {
		return true
	}
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.DataLoss, codes.Internal, codes.Unknown, codes.Unimplemented:
		return true
	default:
		return false
	}
}

// broken reports whether the connection should not be used again.
func broken(err error) bool {
	switch code(err) {
	case codes.Unavailable, codes.Internal, codes.Unknown:
		return clientSide(err)
	case codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}

// refusedUnseen reports whether a member has refused a request before it looked
// at what it is: another one may be asked, or the same one once more.
func refusedUnseen(err error) bool {
	// Leaders are asked for before all else. That is no answer to a write that
	// was proposed: such a one times out.
	return is(err, rpctypes.ErrNoLeader) || is(err, errLearner) || staleToken(err)
}

// doubt adds to the error of a write that was sent that it may have happened,
// unless etcd said that it has not.
func doubt(err error) error {
	for _, definite := range []error{rpctypes.ErrPermissionDenied, rpctypes.ErrNoSpace, rpctypes.ErrRequestTooLarge,
		rpctypes.ErrTooManyRequests, rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed} {
		if is(err, definite) {
			return err
		}
	}
	if err == nil || errors.Is(err, tenure.ErrConflict) {
		return err
	}
	return fmt.Errorf("the write may or may not have happened: %w", err)
}

// summary joins what several members said.
func summary(failures []error) error {
	var all error
	var texts []string
	for _, err := range failures {
		switch text := err.Error(); {
		case all == nil:
			all = err
		case strings.Contains(strings.Join(texts, "\n"), text):
			continue
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
		texts = append(texts, err.Error())
	}
	return all
}

// explain adds the next step to an error, where one is known.
func (s *store) explain(err error) error {
	if next := s.next(err); next != "" {
		err = fmt.Errorf("%w: %s", err, next)
	}
	if code(err) == codes.DeadlineExceeded && !errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

func (s *store) next(err error) string {
	if errors.Is(err, tenure.ErrConflict) {
		return ""
	}
	var cluster *clusterError
	if errors.As(err, &cluster) {
		return "name members of one cluster only; if it is being restored, go on when all members are"
	}
	if next := s.nextTLS(err); next != "" {
		return next
	}
	if next := s.nextServer(err); next != "" {
		return next
	}
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return "check the host names in the URL"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "check that etcd runs there, and that the port is the one for clients, 2379 by default"
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH):
		return "check routes and firewalls to it"
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		return "check the file's path and rights"
	case errors.Is(err, errNotEtcd) && s.opt.TLS == TLSOff:
		return "check host and port, and whether it wants TLS: then leave out tls=off"
	case errors.Is(err, errNotEtcd):
		return "check host and port, and whether it wants a client certificate (certfile, keyfile)"
	}
	return ""
}

func (s *store) nextTLS(err error) string {
	var (
		host    x509.HostnameError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &host):
		return "write a name that the certificate has into the URL, or give it with servername"
	case errors.As(err, &unknown):
		return "give the authority that signed it with cafile"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "renew the server's certificate, or set this machine's clock right"
	case errors.As(err, &record):
		return "no TLS is spoken there: check the port, or say tls=off if the network is to be trusted"
	case errors.Is(err, errHungUp):
		return "check that TLS is spoken there, and say tls=off if it is not and the network is to be trusted"
	case isAlert(err) && s.opt.CertFile == "":
		return "the server refused the connection: it may want a client certificate (certfile, keyfile)"
	case isAlert(err):
		return "the server refused the connection: check whether " + s.opt.CertFile + " has expired and its authority is known there"
	}
	return ""
}

func (s *store) nextServer(err error) string {
	who := "anybody (no user is given: user and passwordfile, or a client certificate with a common name)"
	if s.auth.user != "" {
		who = "the user " + s.auth.user
	}
	switch {
	case is(err, rpctypes.ErrPermissionDenied):
		return "the key and all that begin with its name must be readable and writable by " + who + ": etcdctl role grant-permission ROLE readwrite KEY --prefix"
	case is(err, rpctypes.ErrUserEmpty):
		return "etcd wants to know who asks: give user and passwordfile, or a client certificate with a common name"
	case is(err, rpctypes.ErrAuthFailed):
		return "check the user " + s.auth.user + " and the password from " + s.auth.source
	case is(err, rpctypes.ErrNoSpace):
		return "the quota of etcd's database is used up and it takes no writes: compact, defragment, then etcdctl alarm disarm"
	case is(err, rpctypes.ErrCorrupt):
		return "a member's data differs from the others': etcdctl alarm list, and replace that member"
	case is(err, rpctypes.ErrNoLeader), is(err, rpctypes.ErrTimeoutDueToLeaderFail), is(err, rpctypes.ErrTimeoutDueToConnectionLost):
		return "most of the members are down or cut off: etcdctl endpoint status --cluster"
	case is(err, errLearner):
		return "leave learners out of the URL"
	case code(err) == codes.Unimplemented, code(err) == codes.Unknown && clientSide(err):
		return "what answered is not etcd, or a proxy before it: check host and port"
	}
	return ""
}

// cancelled is the error for a watch that the server ended, with etcd's status
// where the reason is one that it gives to requests too.
func cancelled(reason string) error {
	for _, known := range []error{rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCUserEmpty} {
		if strings.Contains(reason, rpctypes.ErrorDesc(known)) {
			return known
		}
	}
	return fmt.Errorf("etcd ended the watch: %s", reason)
}

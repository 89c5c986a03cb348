// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"
)

// An auth turns a user and a password into tokens. The password is looked up
// each time one is needed, so that it may change under a running candidate.
type auth struct {
	user     string
	password func() (string, error)
	source   string // where the password comes from, for messages

	mu    sync.Mutex
	token string
}

func newAuth(opt Options) *auth {
	a := &auth{user: opt.User, source: "Options.Password", password: func() (string, error) { return opt.Password, nil }}
	switch {
	case opt.PasswordFile != "":
		a.source = opt.PasswordFile
		a.password = func() (string, error) {
			b, err := os.ReadFile(opt.PasswordFile)
			return strings.TrimRight(string(b), "\r\n"), err
		}
	case opt.fromEnv:
		a.source = "the environment"
	}
	return a
}

// do makes a request with a token, if there is a user. A token that etcd does
// not know any more, because it expired, the password was changed or a member
// was restarted, is replaced and the request made once more: it was refused
// before anybody looked at it.
func (a *auth) do(ctx context.Context, c *conn, request func(context.Context) error) error {
	token, err := a.get(ctx, c, "")
	if err != nil {
		return err
	}
	err = request(outgoing(ctx, token))
	if !staleToken(err) {
		return err
	}
	if token, err = a.get(ctx, c, token); err != nil {
		return err
	}
	return request(outgoing(ctx, token))
}

func staleToken(err error) bool {
	return is(err, rpctypes.ErrInvalidAuthToken) || is(err, rpctypes.ErrAuthOldRevision)
}

// outgoing returns ctx with what each request says beside itself: that it needs
// a member with a leader, and who asks.
func outgoing(ctx context.Context, token string) context.Context {
	pairs := []string{rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader}
	if token != "" {
		pairs = append(pairs, rpctypes.TokenFieldNameGRPC, token)
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

// get returns a token other than stale, or none if there is no user or etcd
// asks for none.
func (a *auth) get(ctx context.Context, c *conn, stale string) (string, error) {
	if a.user == "" {
		return "", nil
	}
	a.mu.Lock()
	token := a.token
	a.mu.Unlock()
	if token != "" && token != stale {
		return token, nil
	}
	password, err := a.password()
	if err != nil {
		return "", fmt.Errorf("read the password of the user %s: %w", a.user, err)
	}
	answer, err := c.auth.Authenticate(outgoing(ctx, ""), &etcdserverpb.AuthenticateRequest{Name: a.user, Password: password})
	switch {
	case is(err, rpctypes.ErrAuthNotEnabled):
		a.set("")
		return "", nil
	case is(err, rpctypes.ErrAuthFailed):
		return "", err
	case err != nil:
		return "", fmt.Errorf("log in as %s: %w", a.user, err)
	case answer.Token == "":
		return "", errors.New("log in: etcd gave no token")
	}
	a.set(answer.Token)
	return answer.Token, nil
}

func (a *auth) set(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token = token
}

// anonymous reports whether requests carry no token.
func (a *auth) anonymous() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token == ""
}

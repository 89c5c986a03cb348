// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"errors"
	"testing"

	"tenure.dev"
	"tenure.dev/test/testbed"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	r := mustOpen(t, newKey(t.Name()), plain(shared.Endpoints()...))
	mustFind(t, r, "members", tenure.FindingOK, "3 that vote")
	mustFind(t, r, "endpoint "+shared.Endpoints()[1], tenure.FindingOK, "etcd 3.")
	mustFind(t, r, "alarms", tenure.FindingOK, "none")
	mustFind(t, r, "rights", tenure.FindingWarning, "asks for none")
	mustFind(t, r, "tls", tenure.FindingNote, "on this machine only")
	if _, _, err := r.Read(short(t)); !errors.Is(err, tenure.ErrNotExist) {
		t.Errorf("looking has changed the lock: %v", err)
	}

	one := mustOpen(t, "/lock", plain(shared.Endpoints()[0]))
	mustFind(t, one, "endpoints", tenure.FindingNote, "one endpoint for 3 members")

	e := newEtcd(t, 1, testbed.EtcdOptions{Args: []string{"--quota-backend-bytes", "20000"}})
	r = mustOpen(t, "/lock", plain(e.Endpoints()[0], "127.0.0.1:1"))
	mustFind(t, r, "members", tenure.FindingWarning, "1 that vote")
	mustFind(t, r, "endpoint "+e.Endpoints()[0], tenure.FindingWarning, "database")
	mustFind(t, r, "endpoint 127.0.0.1:1", tenure.FindingWarning, "does not answer")

	if got := versionFindings(map[string][]string{"3.5.1": {"a"}, "3.6.8": {"b"}}); len(got) != 1 || got[0].Level != tenure.FindingUnsafe {
		t.Errorf("findings on version 3.5.1: %+v", got)
	}
}

// Rights: those of the documentation are enough for a lock and its siblings, and
// too few or too many are named.
func TestRights(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 1, testbed.EtcdOptions{})
	if err := e.EnableAuth("/nightly", "tenure", "one"); err != nil {
		t.Fatal(err)
	}
	open := func(key, user, password string) *Register {
		t.Helper()
		opt := plain(e.Endpoints()...)
		opt.User, opt.Password = user, password
		return mustOpen(t, key, opt)
	}
	r := open("/nightly", "tenure", "one")
	v := mustWrite(t, r, "2", mustWrite(t, r, "1", ""))
	mustHold(t, r, "2", v)
	s := r.Sibling(".candidates/a").(*Register)
	sv := mustWrite(t, s, "3", "")
	if got, err := r.List(short(t), ".candidates/"); err != nil || len(got) != 1 {
		t.Errorf("the list: %q, %v", got, err)
	}
	watch := startWatch(short(t), s, sv)
	mustWrite(t, s, "4", sv)
	if err := awaitWatch(t, watch); err != nil {
		t.Errorf("watch: %v", err)
	}
	mustFind(t, r, "rights", tenure.FindingOK, "lock")
	mustFind(t, r, "endpoint "+e.Endpoints()[0], tenure.FindingUnknown, "not allowed")

	for name, tt := range map[string]struct {
		r     *Register
		words []string
	}{
		"another key":    {open("/other", "tenure", "one"), []string{"permission denied", "the user tenure", "grant-permission", "/other"}},
		"no user":        {mustOpen(t, "/nightly", plain(e.Endpoints()...)), []string{"user name is empty", "give user and passwordfile"}},
		"wrong password": {open("/nightly", "tenure", "secret-guess"), []string{"invalid user ID or password", "check the user tenure"}},
		"unknown user":   {open("/nightly", "nobody", "one"), []string{"invalid user ID or password", "nobody"}},
	} {
		_, _, err := tt.r.Read(short(t))
		mustTell(t, name+": read", err, tt.words...)
		_, err = tt.r.Write(short(t), []byte("x"), "")
		mustTell(t, name+": write", err, tt.words...)
		mustTell(t, name+": watch", tt.r.Watch(short(t), v), tt.words...)
	}
	mustFind(t, open("/nightly", "root", "root"), "rights", tenure.FindingWarning, "role root")
}

// A learner takes no requests: the next endpoint is asked.
func TestLearner(t *testing.T) {
	t.Parallel()
	e := newEtcd(t, 1, testbed.EtcdOptions{})
	learner, err := e.AddLearner(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := mustOpen(t, "/lock", plain(learner.Endpoint, e.Endpoints()[0]))
	mustHold(t, r, "1", mustWrite(t, r, "1", ""))
	alone := mustOpen(t, "/lock", plain(learner.Endpoint))
	_, _, err = alone.Read(short(t))
	mustTell(t, "read at a learner", err, "learner", "leave learners out")
	_, err = alone.Write(short(t), []byte("2"), "")
	mustTell(t, "write at a learner", err, "nothing was sent", "leave learners out")
	mustFind(t, r, "members", tenure.FindingWarning, "1 that learn")
}

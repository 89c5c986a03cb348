// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"tenure.dev"
)

// Inspect implements [tenure.Inspector]. It blocks for one or two requests to
// each endpoint and a few to one of them, at most until ctx ends.
func (r *Register) Inspect(ctx context.Context) []tenure.Finding {
	ctx, cancel := bound(ctx)
	defer cancel()
	return slices.Concat(
		r.inspectTransport(),
		r.inspectMembers(ctx),
		r.inspectEndpoints(ctx),
		r.inspectAlarms(ctx),
		r.inspectAuth(ctx),
	)
}

func found(check string, level tenure.FindingLevel, next, format string, args ...any) []tenure.Finding {
	return []tenure.Finding{{Check: check, Level: level, Detail: fmt.Sprintf(format, args...), Next: next}}
}

// unseen is the finding for what could not be looked at.
func (r *Register) unseen(check string, err error) []tenure.Finding {
	if is(err, rpctypes.ErrPermissionDenied) || is(err, rpctypes.ErrUserEmpty) {
		return found(check, tenure.FindingUnknown, "ask who administers this etcd; the lock itself needs no such right", "not allowed to see: %v", told(err))
	}
	return found(check, tenure.FindingUnknown, r.store.next(err), "could not be seen: %v", err)
}

func (r *Register) inspectTransport() []tenure.Finding {
	const check = "tls"
	all := !slices.ContainsFunc(r.store.opt.Endpoints, func(e string) bool { return !loopback(e) })
	switch r.store.opt.TLS {
	case TLSOff:
		if all {
			return found(check, tenure.FindingNote, "", "off, on this machine only")
		}
		return found(check, tenure.FindingWarning, "serve etcd's clients over TLS and leave out tls=off", "off: whoever is on the way can read and change the lock")
	case TLSUnverified:
		return found(check, tenure.FindingWarning, "give the authority with cafile instead of tls=unverified", "the server's certificate is not checked: whoever is on the way can be the store")
	default:
		return found(check, tenure.FindingOK, "", "on, and the server's certificate is checked")
	}
}

// inspectMembers looks at how many members there are and what may fail.
func (r *Register) inspectMembers(ctx context.Context) []tenure.Finding {
	const check = "members"
	a, err := read(ctx, r.store, func(ctx context.Context, c *conn) (*etcdserverpb.MemberListResponse, error) {
		return etcdserverpb.NewClusterClient(c.ClientConn).MemberList(ctx, &etcdserverpb.MemberListRequest{Linearizable: true})
	})
	if err != nil {
		return r.unseen(check, err)
	}
	voters, learners := 0, 0
	for _, m := range a.Members {
		if m.IsLearner {
			learners++
		} else {
			voters++
		}
	}
	detail := fmt.Sprintf("%d that vote, %d that learn; %d in the URL", voters, learners, len(r.store.members))
	var all []tenure.Finding
	switch {
	case voters == 1:
		all = found(check, tenure.FindingWarning, "run three members in three places", "%s: without it nobody can lead", detail)
	case voters%2 == 0:
		all = found(check, tenure.FindingNote, "an odd number survives as many failures with one member less", "%s: %d may fail", detail, (voters-1)/2)
	default:
		all = found(check, tenure.FindingOK, "", "%s: %d may fail", detail, (voters-1)/2)
	}
	if n := len(r.store.members); n == 1 && voters > 1 {
		all = append(all, found("endpoints", tenure.FindingNote, "name all members in the URL, unless this one is a load balancer", "one endpoint for %d members: if it fails the lock is out of reach", voters)...)
	}
	return all
}

// inspectEndpoints asks each endpoint itself.
func (r *Register) inspectEndpoints(ctx context.Context) []tenure.Finding {
	var all []tenure.Finding
	clusters := map[uint64][]string{}
	versions := map[string][]string{}
	for _, m := range r.store.members {
		s, cluster, err := m.status(ctx)
		if cluster != 0 {
			clusters[cluster] = append(clusters[cluster], m.addr)
		}
		check := "endpoint " + m.addr
		if err != nil {
			level := tenure.FindingWarning
			if is(err, rpctypes.ErrPermissionDenied) || is(err, rpctypes.ErrUserEmpty) {
				all = append(all, r.unseen(check, err)...)
				continue
			}
			all = append(all, found(check, level, r.store.next(err), "does not answer: %v", err)...)
			continue
		}
		versions[s.Version] = append(versions[s.Version], m.addr)
		all = append(all, statusFindings(check, s)...)
	}
	if len(clusters) > 1 {
		var parts []string
		for id, addrs := range clusters {
			parts = append(parts, fmt.Sprintf("%s in %x", strings.Join(addrs, ", "), id))
		}
		slices.Sort(parts)
		all = append(all, found("cluster", tenure.FindingUnsafe, "name members of one cluster only", "the endpoints belong to different clusters, which would be different locks: %s", strings.Join(parts, "; "))...)
	}
	return append(all, versionFindings(versions)...)
}

// status asks the member itself, and whichever cluster it belongs to.
func (m *member) status(ctx context.Context) (a *etcdserverpb.StatusResponse, cluster uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(share(ctx), time.Millisecond))
	defer cancel()
	c, err := m.reach(ctx)
	if err != nil {
		return nil, 0, &connectError{m.addr, err}
	}
	defer m.release(c)
	err = m.store.auth.do(ctx, c, func(ctx context.Context) error {
		a, err = etcdserverpb.NewMaintenanceClient(c.ClientConn).Status(ctx, &etcdserverpb.StatusRequest{})
		return err
	})
	return a, c.cluster, err
}

func statusFindings(check string, s *etcdserverpb.StatusResponse) []tenure.Finding {
	var all []tenure.Finding
	size := fmt.Sprintf("etcd %s, database %d MiB of %d MiB", s.Version, s.DbSize>>20, s.DbSizeQuota>>20)
	switch {
	case s.IsLearner:
		all = found(check, tenure.FindingWarning, "leave learners out of the URL", "is a learner: it takes no requests")
	case s.Leader == 0:
		all = found(check, tenure.FindingWarning, "look at etcd's log there, and at the network between the members", "has no leader")
	case s.DbSizeQuota > 0 && s.DbSize > s.DbSizeQuota/10*8:
		all = found(check, tenure.FindingWarning, "compact and defragment, or raise the quota: when it is used up nobody can lead", "%s", size)
	default:
		all = found(check, tenure.FindingOK, "", "%s", size)
	}
	for _, e := range s.Errors {
		if !strings.Contains(e, "NOSPACE") && !strings.Contains(e, "CORRUPT") { // alarms have their own finding
			all = append(all, found(check, tenure.FindingWarning, "look at etcd's log there", "%s", e)...)
		}
	}
	return all
}

// versionFindings names versions that lose data or writes.
func versionFindings(versions map[string][]string) []tenure.Finding {
	var all []tenure.Finding
	for v, addrs := range versions {
		if slices.Contains([]string{"3.5.0", "3.5.1", "3.5.2"}, v) {
			all = append(all, found("version", tenure.FindingUnsafe, "upgrade to 3.5.3 or later", "%s runs etcd %s, whose members can come to hold different data after a crash", strings.Join(addrs, ", "), v)...)
		}
	}
	return all
}

func (r *Register) inspectAlarms(ctx context.Context) []tenure.Finding {
	const check = "alarms"
	a, err := read(ctx, r.store, func(ctx context.Context, c *conn) (*etcdserverpb.AlarmResponse, error) {
		return etcdserverpb.NewMaintenanceClient(c.ClientConn).Alarm(ctx, &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_GET})
	})
	if err != nil {
		return r.unseen(check, err)
	}
	var all []tenure.Finding
	for _, alarm := range a.Alarms {
		switch alarm.Alarm {
		case etcdserverpb.AlarmType_NOSPACE:
			all = append(all, found(check, tenure.FindingWarning, "compact, defragment, then etcdctl alarm disarm", "NOSPACE at member %x: nothing can be written, nobody can lead", alarm.MemberID)...)
		case etcdserverpb.AlarmType_CORRUPT:
			all = append(all, found(check, tenure.FindingUnsafe, "replace that member, then etcdctl alarm disarm", "CORRUPT at member %x: its data differs from the others'", alarm.MemberID)...)
		default:
			all = append(all, found(check, tenure.FindingWarning, "look at etcd's log", "%v at member %x", alarm.Alarm, alarm.MemberID)...)
		}
	}
	if all == nil {
		return found(check, tenure.FindingOK, "", "none")
	}
	return all
}

// inspectAuth looks at whether rights are asked for, and at our own.
func (r *Register) inspectAuth(ctx context.Context) []tenure.Finding {
	const check = "rights"
	user := r.store.auth.user
	if user == "" {
		// A state that exists or not can be asked for by those who may read it.
		_, err := read(ctx, r.store, func(ctx context.Context, c *conn) (*etcdserverpb.AuthUserListResponse, error) {
			return c.auth.UserList(ctx, &etcdserverpb.AuthUserListRequest{})
		})
		switch {
		case is(err, rpctypes.ErrUserEmpty), is(err, rpctypes.ErrPermissionDenied):
			return found(check, tenure.FindingUnknown, "", "etcd asks for them; those of a client certificate cannot be seen")
		case err != nil:
			return r.unseen(check, err)
		}
		return found(check, tenure.FindingWarning, "etcdctl auth enable, with a role for the lock's keys",
			"etcd asks for none: whoever reaches its port for clients may change the lock and all else")
	}
	u, err := read(ctx, r.store, func(ctx context.Context, c *conn) (*etcdserverpb.AuthUserGetResponse, error) {
		return c.auth.UserGet(ctx, &etcdserverpb.AuthUserGetRequest{Name: user})
	})
	switch {
	case r.store.auth.anonymous() && (err == nil || is(err, rpctypes.ErrUserNotFound)):
		return found(check, tenure.FindingWarning, "etcdctl auth enable", "etcd asks for none, though a user is given: whoever reaches its port for clients may change the lock and all else")
	case err != nil:
		return r.unseen(check, err)
	case slices.Contains(u.Roles, "root"):
		return found(check, tenure.FindingWarning, "give the user a role for the lock's keys only", "the user %s has the role root, and may do everything", user)
	}
	return r.inspectRoles(ctx, u.Roles)
}

// inspectRoles looks for rights on keys that are none of the lock's.
func (r *Register) inspectRoles(ctx context.Context, roles []string) []tenure.Finding {
	const check = "rights"
	for _, name := range roles {
		role, err := read(ctx, r.store, func(ctx context.Context, c *conn) (*etcdserverpb.AuthRoleGetResponse, error) {
			return c.auth.RoleGet(ctx, &etcdserverpb.AuthRoleGetRequest{Role: name})
		})
		if err != nil {
			return r.unseen(check, err)
		}
		for _, p := range role.Perm {
			if string(p.RangeEnd) == "\x00" && len(p.Key) <= 1 {
				return found(check, tenure.FindingNote, "grant the lock's keys only: etcdctl role grant-permission "+name+" readwrite "+r.key+" --prefix",
					"the role %s covers every key", name)
			}
		}
	}
	return found(check, tenure.FindingOK, "", "the user %s has the roles %s", r.store.auth.user, strings.Join(roles, ", "))
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tenure.dev"
	"tenure.dev/api/v1alpha1"
	"tenure.dev/operator/gate"
)

// MembersPrefix is the suffix of the registers, beside a lock, in which clusters say
// what they have gated.
const MembersPrefix = ".members/"

// A Member is what a cluster says of itself beside a lock.
type Member struct {
	Cluster    string `json:"cluster"`
	ClusterUID string `json:"clusterUID"`
	// Gated are the names, namespace/name of a Lease, that have been refused and
	// held there for as long as an elector may go on: nobody leads there by them
	// except under this lock.
	Gated []string `json:"gated"`
	// LeaseDurationSeconds, SkewSeconds and StopAfterSeconds are its settings.
	LeaseDurationSeconds int64     `json:"leaseDurationSeconds"`
	SkewSeconds          int64     `json:"skewSeconds"`
	StopAfterSeconds     int64     `json:"stopAfterSeconds"`
	Time                 time.Time `json:"time"`
}

// Members reads the entries beside a lock. Those that cannot be read are left out:
// they make nobody ready.
func Members(ctx context.Context, reg tenure.Register) (map[string]Member, error) {
	lister, ok := reg.(tenure.Lister)
	siblings, ok2 := reg.(tenure.Siblinger)
	if !ok || !ok2 {
		return nil, errors.New("this lock store cannot list keys beside a lock, which members need")
	}
	keys, err := lister.List(ctx, MembersPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the members beside the lock: %w", err)
	}
	all := make(map[string]Member)
	for _, key := range keys {
		m, _, err := readMember(ctx, siblings.Sibling(key))
		if err != nil {
			return nil, err
		}
		if m.Cluster != "" && MembersPrefix+m.Cluster == key {
			all[m.Cluster] = m
		}
	}
	return all, nil
}

func readMember(ctx context.Context, reg tenure.Register) (Member, tenure.Version, error) {
	value, version, err := reg.Read(ctx)
	switch {
	case errors.Is(err, tenure.ErrNotExist):
		return Member{}, "", nil
	case errors.Is(err, tenure.ErrValueTooLarge):
		return Member{}, version, nil
	case err != nil:
		return Member{}, "", fmt.Errorf("read a member's entry beside the lock: %w", err)
	}
	var m Member
	if json.Unmarshal(value, &m) != nil {
		return Member{}, version, nil
	}
	return m, version, nil
}

// errIdentityTaken: another cluster has this one's name.
var errIdentityTaken = errors.New("another cluster has the same name")

// WriteMember changes this cluster's entry. An entry of another cluster with the same
// name is left alone.
func WriteMember(ctx context.Context, reg tenure.Register, cluster, uid string, change func(*Member)) error {
	siblings, ok := reg.(tenure.Siblinger)
	if !ok {
		return errors.New("this lock store has no keys beside a lock, which members need")
	}
	r := siblings.Sibling(MembersPrefix + cluster)
	const tries = 5
	for try := 1; ; try++ {
		m, version, err := readMember(ctx, r)
		if err != nil {
			return err
		}
		if m.ClusterUID != "" && m.ClusterUID != uid {
			return fmt.Errorf("%w: %q is used by the cluster with UID %s too (this one's is %s): give each its own --cluster, or remove the entry of a cluster that is gone",
				errIdentityTaken, cluster, m.ClusterUID, uid)
		}
		m.Cluster, m.ClusterUID = cluster, uid
		change(&m)
		slices.Sort(m.Gated)
		m.Gated = slices.Compact(m.Gated)
		m.Time = time.Now().UTC().Truncate(time.Second)
		value, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("write this cluster's entry beside the lock: %w", err)
		}
		_, err = r.Write(ctx, append(value, '\n'), version)
		if err == nil {
			return nil
		}
		if !errors.Is(err, tenure.ErrConflict) || try == tries {
			return fmt.Errorf("write this cluster's entry beside the lock: %w", err)
		}
	}
}

// memberView is what the members' entries mean for one object.
type memberView struct {
	ready   bool
	status  []v1alpha1.MemberStatus
	problem string // what is wrong, beyond not being ready
	reason  string
}

// judgeMembers says whether every member has gated every name of an object, and
// what differs.
func judgeMembers(all map[string]Member, self string, clusters, names []string, s gate.Settings) memberView {
	v := memberView{ready: true}
	if !slices.Contains(clusters, self) {
		v.ready, v.reason = false, v1alpha1.ReasonNotAMember
		v.problem = fmt.Sprintf("this cluster, %q, is not among spec.clusters (%s)", self, strings.Join(clusters, ", "))
	}
	for name := range all {
		if !slices.Contains(clusters, name) && gates(all[name], names) {
			v.ready, v.reason = false, v1alpha1.ReasonUnknownMember
			v.problem = fmt.Sprintf("cluster %q has gated the same names under this lock and is not among spec.clusters (%s)", name, strings.Join(clusters, ", "))
		}
	}
	for _, c := range clusters {
		m, known := all[c]
		r := v1alpha1.MemberStatus{Name: c, Ready: true}
		missing := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(m.Gated, n) })
		switch {
		case !known:
			r.Ready, r.Message = false, "has no entry beside this lock: is Tenure there, and does its object name the same lock?"
		case len(missing) > 0:
			r.Ready, r.Message = false, "has not gated "+strings.Join(missing, ", ")
		}
		v.ready = v.ready && r.Ready
		v.status = append(v.status, r)
		if known && v.problem == "" {
			if d := time.Duration(m.LeaseDurationSeconds) * time.Second; d != s.LeaseDuration || time.Duration(m.SkewSeconds)*time.Second != s.Skew || time.Duration(m.StopAfterSeconds)*time.Second != s.StopAfter {
				v.reason = v1alpha1.ReasonSettingsDiffer
				v.problem = fmt.Sprintf("cluster %q has D %v, stopAfter %ds, skew %ds; cluster %q has D %v, stopAfter %v, skew %v: let them agree",
					c, d, m.StopAfterSeconds, m.SkewSeconds, self, s.LeaseDuration, s.StopAfter, s.Skew)
			}
		}
	}
	return v
}

func gates(m Member, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(m.Gated, n) })
}

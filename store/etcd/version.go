// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"fmt"

	"tenure.dev"
)

// A version is made of the cluster's ID and two revisions of the key. The
// revision of its last change alone tells the states of one cluster's history
// apart; the others tell apart some of those of two, after a restore.
type version struct {
	cluster     uint64
	create, mod int64
}

func (v version) encode() tenure.Version {
	return tenure.Version(fmt.Sprintf("%x-%d-%d", v.cluster, v.create, v.mod))
}

// parseVersion reads a version that this driver made. The zero version is that
// of an absent key, in any cluster.
func parseVersion(s tenure.Version) (version, error) {
	var v version
	if s == "" {
		return v, nil
	}
	if _, err := fmt.Sscanf(string(s), "%x-%d-%d", &v.cluster, &v.create, &v.mod); err != nil || v.encode() != s || v.create < 1 || v.mod < v.create {
		return version{}, fmt.Errorf("%w: %q is no version that this store gave", tenure.ErrConflict, s)
	}
	return v, nil
}

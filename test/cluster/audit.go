// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// An AuditEvent is one finished request as an API server's audit log tells it.
type AuditEvent struct {
	Verb       string // as RBAC's: get, create, deletecollection, …
	RequestURI string
	User       struct {
		Username string
		Groups   []string
	}
	ObjectRef struct {
		Resource, Namespace, Name, Subresource string
		APIGroup                               string
	}
	ResponseStatus struct {
		Code            int
		Reason, Message string
	}
	Annotations              map[string]string
	RequestReceivedTimestamp time.Time
	StageTimestamp           time.Time
	// With Options.AuditBodies only.
	RequestObject, ResponseObject json.RawMessage
}

// AuditLog returns the path of the audit log of API server i. It has what is
// written to anything, and what is done to Leases and to Tenure's resources,
// reading too.
func (c *Cluster) AuditLog(i int) string {
	return filepath.Join(c.dir, "audit", APIServerPart(i)+".log")
}

// Audit reads the audit log of API server i, oldest first. A request is in it
// once it has been answered.
func (c *Cluster) Audit(i int) ([]AuditEvent, error) {
	b, err := os.ReadFile(c.AuditLog(i))
	if err != nil {
		return nil, fmt.Errorf("cluster %s: read the audit log: %w", c.name, err)
	}
	var events []AuditEvent
	for line := range bytes.Lines(b) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var e AuditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			// A server that was killed leaves half a line.
			continue
		}
		events = append(events, e)
	}
	return events, nil
}

func (c *Cluster) auditPolicy() string { return filepath.Join(c.dir, "conf", "audit-policy.json") }

func (c *Cluster) writeAuditPolicy() error {
	level := "Metadata"
	if c.opts.AuditBodies {
		level = "RequestResponse"
	}
	type object map[string]any
	b, err := json.MarshalIndent(object{
		"apiVersion":        "audit.k8s.io/v1",
		"kind":              "Policy",
		"omitStages":        []string{"RequestReceived"},
		"omitManagedFields": false,
		"rules": []object{
			{"level": level, "resources": []object{
				{"group": "coordination.k8s.io", "resources": []string{"leases"}},
				{"group": "tenure.dev"},
			}},
			{"level": "Metadata", "verbs": []string{"create", "update", "patch", "delete", "deletecollection"}},
			{"level": "None"},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(c.auditPolicy(), b)
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenure.dev"
)

// prefix is that of the annotations which are ours.
const prefix = "tenure.dev/"

// Annotations that hold something else than one field of a record.
const (
	// noteWrittenWith holds the part of the spec that the others were written
	// with: where it differs from the spec, somebody else has written since.
	noteWrittenWith = prefix + "writtenWith"
	// noteOther holds the fields that this version does not know.
	noteOther = prefix + "other"
	// noteTransitions holds what int32 cannot.
	noteTransitions = prefix + "leaseTransitions"
	// noteValue and noteBytes hold a value that is no record, as text or, if it
	// is none, in base64.
	noteValue = prefix + "value"
	noteBytes = prefix + "bytes"
	// noteWrite is new in each write: the API server leaves an object alone, and
	// its resourceVersion too, when nothing in it changes.
	noteWrite = prefix + "write"
)

// specFields are the fields of a record that a LeaseSpec has too.
var specFields = []string{"holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions"}

// textFields and jsonFields are those kept in an annotation of the same name, as
// they are or as JSON.
var (
	textFields = []string{"candidate", "preferredHolder", "nonce", "lineage", "clusterUID", "endpoint", "caBundle"}
	jsonFields = []string{"paused", "orders", "epoch"}
)

// microTime is how Kubernetes writes a MicroTime.
const microTime = "2006-01-02T15:04:05.000000Z07:00"

// written is the part of a spec that tells whether anybody wrote it since.
type written struct {
	HolderIdentity       string `json:"holderIdentity"`
	LeaseDurationSeconds int32  `json:"leaseDurationSeconds"`
	RenewTime            string `json:"renewTime"`
	LeaseTransitions     int32  `json:"leaseTransitions"`
}

func writtenWith(spec *coordinationv1.LeaseSpec) written {
	return written{
		HolderIdentity:       deref(spec.HolderIdentity),
		LeaseDurationSeconds: deref(spec.LeaseDurationSeconds),
		RenewTime:            stamp(spec.RenewTime),
		LeaseTransitions:     deref(spec.LeaseTransitions),
	}
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func stamp(t *metav1.MicroTime) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format(microTime)
}

// fill puts a value into the lease, and leaves everything in its metadata that
// is not ours: a record into the spec and annotations, anything else into one
// annotation. salt is new for each write.
func fill(lease *coordinationv1.Lease, value []byte, salt string) {
	for name := range lease.Annotations {
		if strings.HasPrefix(name, prefix) {
			delete(lease.Annotations, name)
		}
	}
	lease.Spec = coordinationv1.LeaseSpec{}
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	if spec, notes, ok := split(value); ok {
		lease.Spec = spec
		maps.Copy(lease.Annotations, notes)
	} else if utf8.Valid(value) {
		lease.Annotations[noteValue] = string(value)
	} else {
		lease.Annotations[noteBytes] = base64.StdEncoding.EncodeToString(value)
	}
	lease.Annotations[noteWrite] = salt
}

// split returns what a record becomes, if the value is one and comes back from
// there byte for byte.
func split(value []byte) (spec coordinationv1.LeaseSpec, notes map[string]string, ok bool) {
	rec, err := tenure.ParseRecord(value)
	var fields map[string]json.RawMessage
	if err != nil || json.Unmarshal(value, &fields) != nil {
		return spec, nil, false
	}
	seconds := int32(rec.LeaseDuration / time.Second)
	transitions := int32(rec.LeaseTransitions & math.MaxInt32)
	spec = coordinationv1.LeaseSpec{HolderIdentity: &rec.HolderIdentity, LeaseDurationSeconds: &seconds, LeaseTransitions: &transitions}
	if !rec.AcquireTime.IsZero() {
		spec.AcquireTime = &metav1.MicroTime{Time: rec.AcquireTime}
	}
	if !rec.RenewTime.IsZero() {
		spec.RenewTime = &metav1.MicroTime{Time: rec.RenewTime}
	}
	notes = map[string]string{noteWrittenWith: marshal(writtenWith(&spec))}
	if rec.LeaseTransitions > math.MaxInt32 {
		notes[noteTransitions] = strconv.FormatInt(rec.LeaseTransitions, 10)
	}
	for _, name := range specFields {
		delete(fields, name)
	}
	for _, name := range slices.Concat(textFields, jsonFields) {
		raw, there := fields[name]
		if !there {
			continue
		}
		delete(fields, name)
		var text string
		if !slices.Contains(textFields, name) {
			text = string(raw)
		} else if json.Unmarshal(raw, &text) != nil {
			return spec, nil, false
		}
		notes[prefix+name] = text
	}
	if len(fields) > 0 {
		notes[noteOther] = marshal(fields)
	}
	back := coordinationv1.Lease{Spec: spec}
	back.Annotations = notes
	return spec, notes, bytes.Equal(extract(&back), value)
}

func marshal(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic("kube: " + err.Error()) // strings, numbers and JSON that was read
	}
	return string(out)
}

// extract returns the value that a lease holds, as the core knows it: what was
// written, if the lease is as that write left it; else, if somebody else has
// written the spec, a stranger's record.
func extract(lease *coordinationv1.Lease) []byte {
	notes := lease.Annotations
	if lease.Spec == (coordinationv1.LeaseSpec{}) {
		if text, ok := notes[noteValue]; ok {
			return []byte(text)
		}
		if text, ok := notes[noteBytes]; ok {
			if value, err := base64.StdEncoding.DecodeString(text); err == nil {
				return value
			}
			return []byte(text)
		}
	}
	var with written
	bound := json.Unmarshal([]byte(notes[noteWrittenWith]), &with) == nil && notes[noteWrittenWith] != ""
	if bound && with == writtenWith(&lease.Spec) && notes[prefix+"nonce"] != "" {
		return own(lease)
	}
	return strangers(lease, with)
}

// own puts a record of ours together again.
func own(lease *coordinationv1.Lease) []byte {
	fields := map[string]json.RawMessage{}
	notes := lease.Annotations
	if other := notes[noteOther]; other != "" && json.Unmarshal([]byte(other), &fields) != nil {
		fields = map[string]json.RawMessage{"other": []byte(quote(other))}
	}
	setSpec(fields, lease)
	for _, name := range textFields {
		if text, ok := notes[prefix+name]; ok {
			fields[name] = []byte(quote(text))
		}
	}
	for _, name := range jsonFields {
		if text, ok := notes[prefix+name]; ok {
			fields[name] = asJSON(text)
		}
	}
	value := []byte(marshal(fields))
	if rec, err := tenure.ParseRecord(value); err == nil {
		if out, err := rec.Marshal(); err == nil {
			return out
		}
	}
	return value // edited by hand into something that the core cannot read
}

// strangers is the record of an elector that knows nothing of Tenure, or of a
// person who edited the spec. What it left of ours is the epoch, counted on by
// its acquisitions, at least one; the lineage; and a pause.
func strangers(lease *coordinationv1.Lease, with written) []byte {
	notes := lease.Annotations
	fields := map[string]json.RawMessage{}
	setSpec(fields, lease)
	if epoch, err := strconv.ParseInt(notes[prefix+"epoch"], 10, 64); err == nil && epoch > 0 {
		more := max(1, int64(deref(lease.Spec.LeaseTransitions))-int64(with.LeaseTransitions))
		if epoch += more; epoch < 0 {
			epoch = math.MaxInt64
		}
		fields["epoch"] = asJSON(strconv.FormatInt(epoch, 10))
	}
	if text := notes[prefix+"lineage"]; text != "" {
		fields["lineage"] = []byte(quote(text))
	}
	if text := notes[prefix+"paused"]; text != "" {
		fields["paused"] = asJSON(text)
	}
	if len(fields) == 0 {
		return []byte("{}")
	}
	// A holder and a time that are missing are empty: to stock electors that is
	// the same, and it is what tells a stranger's record from a broken one.
	for _, name := range []string{"holderIdentity", "renewTime"} {
		if _, ok := fields[name]; !ok {
			fields[name] = []byte(`""`)
		}
	}
	// Its holder may have displaced one of ours, whose term goes on.
	if seconds := max(deref(lease.Spec.LeaseDurationSeconds), with.LeaseDurationSeconds); seconds > 0 {
		fields["leaseDurationSeconds"] = asJSON(strconv.Itoa(int(seconds)))
	}
	if _, err := tenure.ParseRecord([]byte(marshal(fields))); err != nil && fields["paused"] != nil {
		probe := maps.Clone(fields)
		delete(probe, "paused")
		if !readable(fields) && readable(probe) {
			fields = probe // a pause that cannot be read must not hide the rest
		}
	}
	return []byte(marshal(fields))
}

// readable reports whether the core can make a record of the fields, be it a
// stranger's.
func readable(fields map[string]json.RawMessage) bool {
	rec, _ := tenure.ParseRecord([]byte(marshal(fields)))
	return rec != nil
}

func setSpec(fields map[string]json.RawMessage, lease *coordinationv1.Lease) {
	spec := &lease.Spec
	if spec.HolderIdentity != nil {
		fields["holderIdentity"] = []byte(quote(*spec.HolderIdentity))
	}
	if spec.LeaseDurationSeconds != nil {
		fields["leaseDurationSeconds"] = asJSON(strconv.Itoa(int(*spec.LeaseDurationSeconds)))
	}
	for name, t := range map[string]*metav1.MicroTime{"acquireTime": spec.AcquireTime, "renewTime": spec.RenewTime} {
		if text := stamp(t); text != "" {
			fields[name] = []byte(quote(text))
		}
	}
	if spec.LeaseTransitions != nil {
		n := int64(*spec.LeaseTransitions)
		if exact, err := strconv.ParseInt(lease.Annotations[noteTransitions], 10, 64); err == nil && exact&math.MaxInt32 == n {
			n = exact
		}
		fields["leaseTransitions"] = asJSON(strconv.FormatInt(n, 10))
	}
}

func quote(text string) string { return marshal(text) }

// asJSON returns the text if it is JSON, else a string of it, which the core
// then refuses where it expects something else.
func asJSON(text string) json.RawMessage {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return json.RawMessage(quote(text))
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"tenure.dev"
)

// lookPolicy looks for a statement that refuses writes without a condition: it
// keeps out tools and people that overwrite a lock by mistake.
func (r *Register) lookPolicy(ctx context.Context) (f tenure.Finding, err error) {
	out, err := r.store.client.GetBucketPolicy(ctx, &s3.GetBucketPolicyInput{Bucket: &r.store.bucket, ExpectedBucketOwner: r.store.owner})
	if err != nil && codeOf(err) != "NoSuchBucketPolicy" {
		return f, err
	}
	if err == nil {
		refuses, err := refusesUnconditional(aws.ToString(out.Policy), r.store.bucket, r.key)
		if err != nil {
			return f, fmt.Errorf("the bucket policy cannot be read: %w", err)
		}
		if refuses {
			return ok("writes without a condition are refused")
		}
	}
	return tenure.Finding{
		Level:  tenure.FindingNote,
		Detail: "nothing refuses a write without a condition, by which a person or a tool could overwrite the record",
		Next:   "on Amazon S3, add the bucket policy that the s3 driver's documentation shows",
	}, nil
}

// oneOrMore is what policies write as a string or a list of strings.
type oneOrMore []string

// UnmarshalJSON reads either form.
func (m *oneOrMore) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*m = oneOrMore{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(m))
}

func (m oneOrMore) match(name string) bool {
	for _, pattern := range m {
		if wildcard(strings.ToLower(pattern), strings.ToLower(name)) {
			return true
		}
	}
	return false
}

type statement struct {
	Effect    string
	Action    oneOrMore
	Resource  oneOrMore
	Condition map[string]map[string]oneOrMore
}

// refusesUnconditional reports whether a policy denies PutObject on a key to
// requests that carry neither If-Match nor If-None-Match.
func refusesUnconditional(policy, bucket, key string) (bool, error) {
	var p struct{ Statement json.RawMessage }
	if err := json.Unmarshal([]byte(policy), &p); err != nil {
		return false, err
	}
	var all []statement
	if err := json.Unmarshal(p.Statement, &all); err != nil {
		var one statement
		if err := json.Unmarshal(p.Statement, &one); err != nil {
			return false, err
		}
		all = []statement{one}
	}
	for _, s := range all {
		if s.Effect != "Deny" || !s.Action.match("s3:PutObject") || !s.Resource.match("arn:aws:s3:::"+bucket+"/"+key) {
			continue
		}
		absent := map[string]bool{}
		for operator, keys := range s.Condition {
			for k, values := range keys {
				if strings.EqualFold(operator, "Null") && values.match("true") {
					absent[strings.ToLower(k)] = true
				}
			}
		}
		if absent["s3:if-match"] && absent["s3:if-none-match"] {
			return true, nil
		}
	}
	return false, nil
}

// wildcard matches '*' and '?' as policies do.
func wildcard(pattern, s string) bool {
	for pattern != "" {
		switch pattern[0] {
		case '*':
			for i := 0; i <= len(s); i++ {
				if wildcard(pattern[1:], s[i:]) {
					return true
				}
			}
			return false
		case '?':
			if s == "" {
				return false
			}
		default:
			if s == "" || s[0] != pattern[0] {
				return false
			}
		}
		pattern, s = pattern[1:], s[1:]
	}
	return s == ""
}

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package s3 keeps a register in an object of an S3 bucket, at Amazon or on a
// server of one's own that honours conditional writes.
//
// # URL
//
//		s3://bucket/path/to/lock?region=eu-west-1
//		s3://bucket/path/to/lock?endpoint=https://s3.example.org:9000
//
//	  - region: where the bucket is. Default: AWS_REGION or the profile's; with an
//	    endpoint us-east-1.
//	  - endpoint: a server that is not Amazon's. Only the URL sets it: if
//	    AWS_ENDPOINT_URL or the profile sets one and the URL does not, it is refused,
//	    because candidates with different environments would have different locks.
//	  - pathstyle: true has the bucket in the path, false in the host name. Default
//	    true with an endpoint, else false.
//	  - cafile: a file with the certificates of authorities to trust beside the
//	    system's.
//	  - profile: a profile of ~/.aws/config and ~/.aws/credentials.
//	  - account: the 12 digits of the account that must own the bucket. Requests
//	    to anybody else's bucket of that name are refused.
//
// Credentials come from the SDK's chain: environment, profile, SSO, web identity
// (IRSA), container (Pod Identity, ECS), instance. When the store refuses them the
// chain is walked again before the next request, so that a key that was rotated in
// a file needs no restart.
//
// # Guarantees
//
// Linearizable, as Amazon S3 is for a single object since December 2020: a GET
// sees each PUT that was answered before, and If-Match and If-None-Match: * are
// checked in the same step as the write. Other servers are asked by the probe.
//
// An ETag is a hash of the bytes, and the same bytes must not have one version
// twice. So the object is one line of salt, "tenure/1 " and 26 random letters and
// digits, and after it the value. Objects without that line, written by somebody else, are
// read as they are. The version is the ETag without quotes and without W/, as
// servers and proxies spell it differently.
//
// A write is one PUT that is never repeated. 412, and 404 for a key that is
// missing, are conflicts. All else is doubt, 409 of concurrent writes included.
// Answers that no S3 server gives (web pages, success with an error in it, an Age
// header) are refused before anything is made of them.
//
// What the store can do to a lock:
//
//   - Some servers take ETag and body of one answer from two states, if a write
//     comes between (versitygw 1.8 on files: 119 of 16,285 reads under constant
//     writes). With an endpoint, a value whose MD5 is not its ETag is therefore
//     asked for again, until one fits or the same pair has come twice in a row. On
//     servers whose ETags are no MD5 that makes two requests of each read that sees
//     a change. Amazon S3 promises whole answers and is not asked twice.
//   - Replication copies seconds later. One bucket decides, and the copy is no
//     lock: a record that came by replication is refused, always. When the region of the
//     bucket is lost for good: stop all candidates, wait the longest D, name another
//     bucket. Epochs go on growing by the store's clock.
//   - Versioning keeps each renewal. On servers that take a delete marker for an
//     object (versitygw 1.8), a record that somebody deletes cannot be made again
//     until the marker is deleted too, and until then a leader that has not noticed
//     may renew it. Nothing here deletes; use a bucket without versioning.
//   - Default retention (object lock) keeps each renewal, undeletable; some
//     servers refuse to overwrite, and then nobody leads.
//   - A server that answers If-Match on a missing key by making it is refused by
//     the probe, which writes to a key that never was. In versioned buckets see above.
//   - A clock that is 15 minutes off is refused by the store. The SDK then signs
//     by the store's clock, so it costs a request; the error names the clock.
//   - Directory buckets (S3 Express), access points and Outposts are not tested.
//
// The tests run on versitygw 1.8.0, and on it behind a proxy that speaks other
// dialects of ETags and of status codes. No second free server was found to be
// sound in all that is asked here; Amazon S3 itself is not part of the tests.
//
// # Permissions
//
// For the lock "locks/nightly", whose siblings are locks/nightly.candidates/…,
// locks/nightly.members/… and locks/nightly.probe/…:
//
//	{"Version": "2012-10-17", "Statement": [
//	  {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"],
//	   "Resource": "arn:aws:s3:::BUCKET/locks/nightly*"},
//	  {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::BUCKET",
//	   "Condition": {"StringLikeIfExists": {"s3:prefix": "locks/nightly*"}}}
//	]}
//
// Without s3:ListBucket S3 answers 403 to a GET of a key that is missing, and a
// lock cannot be made. Such a GET carries no prefix, hence IfExists. Looking at a
// lock takes no s3:PutObject. Nothing takes s3:DeleteObject: do not give it. With a
// KMS key, also kms:GenerateDataKey and kms:Decrypt.
//
// This bucket policy refuses every write without a condition, so that no person
// and no tool overwrites a lock by mistake. It uses the condition keys that Amazon
// S3 documents for it:
//
//	{"Version": "2012-10-17", "Statement": [
//	  {"Sid": "OnlyConditionalWrites", "Effect": "Deny", "Principal": "*",
//	   "Action": "s3:PutObject", "Resource": "arn:aws:s3:::BUCKET/locks/*",
//	   "Condition": {"Null": {"s3:if-match": "true", "s3:if-none-match": "true"}}}
//	]}
//
// For the inspection, if wanted: s3:GetBucketVersioning,
// s3:GetBucketObjectLockConfiguration, s3:GetLifecycleConfiguration,
// s3:GetReplicationConfiguration, s3:GetEncryptionConfiguration,
// s3:GetBucketPolicy.
//
// # Cost
//
// One PUT for a renewal, one GET for a poll; while nothing changes it is answered
// 304, without a body, and costs the same. A takeover is one GET and one PUT. S3
// has no limit for one key that a lock comes near to.
//
// At Amazon's list prices for S3 Standard in us-east-1 (June 2025: $0.005 for
// 1,000 PUT, $0.0004 for 1,000 GET) and at the defaults D = 10 s, P = 2 s, with 30
// days in a month:
//
//	leader    43,200 PUT a day = 1,296,000 a month × $0.005 / 1,000  = $6.48
//	standby   43,200 GET a day = 1,296,000 a month × $0.0004 / 1,000 = $0.52
//	entries   2 candidates, at most 1,440 PUT a day each             ≤ $0.43
//	together                                                         ≤ $7.43
//
// With ttl=30s (P = 6 s) a third of it, but for the entries.
//
// The module uses the official SDK: 18 modules linked, 8 MB for a program that
// only opens a lock. Three signed requests would fit into a tenth of that; the
// chain of credentials, which people expect to work as everywhere else, would not.
package s3

// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package gcs keeps a register in an object of Google Cloud Storage.
//
// It speaks the service's JSON API itself and takes its tokens from
// golang.org/x/oauth2/google. Three calls are needed, and each must be one
// request that is known exactly. The client library for Cloud Storage would have
// retries to switch off and caches to look for, and on a minimal program it was
// 46 linked modules and 32 MB, against 2 and 6 MB.
//
// # URL
//
//		gs://bucket/path/to/object
//		gs://bucket/path/to/object?endpoint=https://storage-name.p.googleapis.com
//		gs://bucket/path/to/object?endpoint=http://127.0.0.1:4443&anonymous=true
//
//	  - endpoint: scheme and host of the service, for private endpoints, other
//	    clouds and emulators; default https://storage.googleapis.com. Plain http is
//	    for loopback, and with anonymous=true for emulators.
//	  - anonymous: true sends no credentials. It needs an endpoint.
//
// The URL alone says where the lock is: STORAGE_EMULATOR_HOST is not read. The
// period P, given as renew= or following from ttl=, must be 1 s or longer.
// Credentials are Application Default Credentials, the first of:
//
//   - the file that GOOGLE_APPLICATION_CREDENTIALS names: a service account's
//     key, an impersonation, or a configuration of workload identity federation for
//     other clouds, Kubernetes clusters and any issuer of OpenID Connect tokens.
//   - the file that gcloud auth application-default login makes.
//   - the metadata server: the service account of a VM, of Cloud Run, or of a
//     Kubernetes service account by GKE's workload identity.
//
// Tokens are fetched again some minutes before they end, and the old one serves
// until then. Each fetch reads the files anew, so that a key can be replaced
// without a restart; a token that the service refuses is dropped. A private
// certificate authority is made known by SSL_CERT_FILE.
//
// # Guarantees
//
// Linearizable: reads and writes of an object are strongly consistent, in
// multi-regions too, and the service checks ifGenerationMatch in the same step
// as it writes, 0 standing for "no live object". The version is the generation:
// the service makes a new one for every write, also of the same bytes and after a
// deletion. It is taken from the answer to the write, and with the value from the
// answer to a read.
//
// Reads are conditional on the ETag of the last one; an answer "not modified"
// stands for the value that came with it. The query parameter
// ifGenerationNotMatch would serve less: for it the service documents the same
// answer when there is no object any more. An ETag that is a hash of the content, as
// emulators have, is not used.
//
// Records are written with Cache-Control: no-store. Nothing is ever deleted or
// sent twice, and no answer of a cache is taken.
//
// What breaks it or gets in its way:
//
//   - A retention policy, or an event-based hold by default, refuses every
//     renewal after the first write: nobody can lead.
//   - Object versioning and soft delete (7 days in a new bucket) keep a copy of each
//     renewal, 43,200 a day at the defaults, of a few hundred bytes each. That
//     costs some cents, or for versions ever more, and no safety. A record may be
//     deleted or restored by hand; candidates notice.
//   - A lifecycle rule that deletes by age can only meet a lock that nobody holds:
//     the next leader then waits 1.5 D.
//   - A dual- or multi-region copies content later. If a region is lost, the last
//     record may be unavailable until it is back; it does not become an older one.
//   - A bucket that is open to the public can be read through caches by others;
//     a lock's needs no reader but its candidates.
//   - The service takes one write a second of an object if it goes on. Single ones
//     may be closer: an acquisition after a release, an order between two renewals.
//     Its 429 is no conflict and ends no term before R.
//
// # Permissions
//
// The role roles/storage.objectUser on the bucket is enough. The least is a
// custom role, granted on the bucket, with
//
//	storage.objects.get
//	storage.objects.list
//	storage.objects.create
//	storage.objects.delete
//
// Overwriting needs the last: nothing is deleted. Without list, the service
// answers 403 where there is no record yet. To look at the lock only, the first
// two do. They cover the lock <key> and its siblings <key>.candidates/…,
// <key>.members/… and <key>.probe/…. A condition can confine get, create and delete:
//
//	resource.name.startsWith("projects/_/buckets/BUCKET/objects/<key>")
//
// while list, in a binding of its own, is about the bucket. [Register.Inspect]
// sees more with storage.buckets.get, which nothing else needs.
//
// # Cost
//
// One upload (class A) per renewal, one conditional read (class B) per poll, one
// listing (class A) per look at the candidates. In 30 days with D 10 s and P 2 s,
// one leader and one standby:
//
//	2,592,000 s / 2 s = 1,296,000 writes at $0.05  per 10,000 = $6.48
//	2,592,000 s / 2 s = 1,296,000 reads  at $0.004 per 10,000 = $0.52
//	                                                            $7.00
//
// by the list prices of Standard storage in one region; dual- and multi-regions
// charge twice for writes. Jitter of polls adds up to a tenth to the reads; each
// further standby costs $0.52 to $0.58; D 30 s costs a third. Traffic between
// regions and out of the cloud comes on top: about 1 kB per request.
package gcs

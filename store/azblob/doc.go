// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package azblob keeps a register in a block blob of Azure Blob Storage.
//
// It speaks the service's REST interface itself and takes its tokens from
// azidentity. Three calls are needed, and each must be one request that is
// known exactly: the client library for blobs would add retries to switch off
// and a fifth to the size of a binary, and it asks for a columnar data format
// among what has to be downloaded and audited. What the library would have
// saved is the signature for account keys, which is 40 lines here.
//
// # URL
//
//		azblob://container/path/to/blob?account=name
//		azblob://container/path/to/blob?account=name&endpoint=https://name.blob.core.usgovcloudapi.net
//		azblob://container/path/to/blob?endpoint=http://127.0.0.1:10000/devstoreaccount1
//
//	  - account: the storage account. May be left out if the endpoint names it.
//	  - endpoint: the blob endpoint, for other clouds, private links, custom
//	    domains and emulators; default https://ACCOUNT.blob.core.windows.net. For
//	    an address or a host that does not stand for one account, the account is
//	    its path. Plain http is for account keys and for loopback.
//
// The URL alone says where the lock is, so that candidates with different
// environments cannot end up with different locks. Credentials come from the
// first of these environment variables that is set, and must be for that account:
//
//   - AZURE_STORAGE_CONNECTION_STRING: its key or shared access signature is
//     used; an endpoint in it must be the URL's.
//   - AZURE_STORAGE_KEY: the account key, base64.
//   - AZURE_STORAGE_SAS_TOKEN: a shared access signature.
//   - none of them: the usual chain for Microsoft Entra ID, which is an
//     environment with AZURE_CLIENT_ID and so on, workload identity of
//     Kubernetes, managed identity, then the command lines az and azd.
//     AZURE_TOKEN_CREDENTIALS narrows it down.
//
// Tokens are fetched again before they end, and the old one serves until then.
// A change of a key or a shared access signature needs a restart. A private
// certificate authority is made known by SSL_CERT_FILE.
//
// # Guarantees
//
// Linearizable: a blob is read and written at the primary replica of its
// account, and the service checks If-Match and If-None-Match in the same step as
// it writes. The version is the ETag. The service makes a new one for every
// write, also of the same bytes and after a deletion; it is no hash of the content.
// Reads are conditional on the ETag that was seen last; an answer "not modified"
// stands for the value that came with it.
//
// Nothing is ever deleted, leased or sent twice. Addresses of the secondary
// (-secondary) are refused: it lags behind.
//
// What breaks it or gets in its way:
//
//   - Geo-replication (GRS, RA-GRS, GZRS, RA-GZRS) copies later. A failover
//     of the account to the secondary region loses the last seconds or minutes of writes,
//     the newest terms included: two may lead until each has tried to renew, and
//     epochs may repeat those that were lost. Use an account with LRS or ZRS; with
//     a geo-replicated one, stop all candidates before a failover that is planned, and
//     after one wait the longest lease duration before they start.
//   - An immutability policy or a legal hold on the container refuses every
//     renewal. An Azure lease that somebody took on the blob does too; nobody can
//     lead until it is broken.
//   - Versioning and soft delete of blobs keep a copy of each renewal, 43,200 a
//     day at the defaults: that costs money and slows listings, no safety. So
//     use an account of its own for locks, without either.
//   - A lifecycle rule that deletes or archives by age can only meet a lock that
//     nobody holds. Deleted, it costs a wait; archived, it can be neither read nor taken.
//   - The cool, cold and archive tiers charge each renewal for deleting early.
//
// # Permissions
//
// Role "Storage Blob Data Contributor" on the container is enough, and more than
// is needed. The least is a custom role with these data actions, assigned at the
// container:
//
//	Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read
//	Microsoft.Storage/storageAccounts/blobServices/containers/blobs/write
//
// with, to look at the lock only, the first alone. They cover the lock
// <key>, its siblings <key>.candidates/…, <key>.members/… and <key>.probe/…,
// and listing these. Conditions of the assignment can confine them further: the
// attribute blobs:path StringLike '<key>*', and blobs:prefix likewise for listing.
//
// A shared access signature needs sr=c and sp=rcwl (read, create, write, list),
// no delete. [Register.Inspect] sees more with the action
// Microsoft.Storage/storageAccounts/blobServices/containers/read and with
// Microsoft.Storage/storageAccounts/blobServices/read; neither is needed.
//
// # Cost
//
// One Put Blob per renewal, one conditional Get Blob per poll, one List Blobs
// of a page per look at the candidates. In 30 days with D 10 s and P 2 s, one
// leader and one standby:
//
//	2,592,000 s / 2 s = 1,296,000 writes at $0.05  per 10,000 = $6.48
//	2,592,000 s / 2 s = 1,296,000 reads  at $0.004 per 10,000 = $0.52
//	                                                            $7.00
//
// by the list prices of the hot tier, LRS, East US. Jitter of polls adds up to a
// tenth to the reads; each further standby costs $0.52 to $0.58; D 30 s costs a
// third. Premium block blob accounts charge about half for requests and answer
// sooner. The service limits one blob to some 500 requests a second, and asks
// with 503 and Retry-After to be left alone.
package azblob

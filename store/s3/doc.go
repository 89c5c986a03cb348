// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package s3 keeps a register in an object of an S3 bucket.
package s3

#!/usr/bin/env bash
# Copyright The Tenure Authors
# SPDX-License-Identifier: Apache-2.0
#
# Tidies go.mod and go.sum of the module in the folder given; with -diff first,
# shows what that would change and fails if it is anything.
#
# Siblings of the workspace have no release yet, and the module of a binary may
# not replace them: so this tidies a copy of go.mod that does replace them, all.
set -euo pipefail

check=false
if [ "$1" = -diff ]; then
  check=true
  shift
fi
siblings=$(go list -m -f '{{.Path}}={{.Dir}}')
cd "$1"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp go.mod "$copy"
[ ! -e go.sum ] || cp go.sum "$copy"

export GOWORK=off
own=$(go list -m)
added=()
for sibling in $siblings; do
  name=${sibling%%=*}
  if [ "$name" != "$own" ] && ! grep -Eq "(^|replace)[[:space:]]+$name[[:space:]].*=>" go.mod; then
    go mod edit -replace "$sibling" "$copy/go.mod"
    added+=("-dropreplace=$name")
  fi
done
go mod tidy -modfile="$copy/go.mod"
[ ${#added[@]} -eq 0 ] || go mod edit "${added[@]}" "$copy/go.mod"

for file in go.mod go.sum; do
  [ -e "$copy/$file" ] || : >"$copy/$file"
  old=$file
  [ -e "$old" ] || old=/dev/null
  cmp -s "$old" "$copy/$file" && continue
  if $check; then
    diff -u "$old" "$copy/$file" || true
    echo "tidy: $1/$file is not tidy: run make fix" >&2
    exit 1
  fi
  cp "$copy/$file" "$file"
done

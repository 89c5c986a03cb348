#!/usr/bin/env bash
# Copyright The Tenure Authors
# SPDX-License-Identifier: Apache-2.0
#
# usage: build.sh PART...   Builds the real servers that the tests run, from the
# versions that the go.mod files beside this script pin, once per version, and
# prints the folder that they are in. Parts: see the case below; "all" is each.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export GOFLAGS=-buildvcs=false GOWORK=off
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tenure
go=$(go env GOVERSION)

# version MODULE_DIR MODULE: what the go.mod pins.
version() { awk -v m="$2" '$1 == m { print $2; exit } $1 == "require" && $2 == m { print $3; exit }' "$here/$1/go.mod"; }

# build DIR MODULE PACKAGE NAME [LDFLAGS]: into a folder named by program and
# version; a half-made file never has the final name.
build() {
  local v dir out ld="-s -w ${5:-}"
  v=$(version "$1" "$2")
  [ -n "$v" ] || { echo "build.sh: $1/go.mod does not pin $2" >&2; exit 1; }
  dir=$cache/testbed/$4-$v-$go
  out=$dir/$4
  if [ ! -x "$out" ]; then
    echo "building $4 $v" >&2
    mkdir -p "$dir"
    # Only what is built with Kubernetes links the C library.
    (cd "$here/$1" && CGO_ENABLED=$([ "$1" = kube ] && echo 1 || echo 0) go build -ldflags "$ld" -o "$out.$$" "$3")
    mv "$out.$$" "$out"
  fi
  # Tests look for the newest by a name without version.
  mkdir -p "$cache/testbed/bin"
  ln -sfn "$out" "$cache/testbed/bin/$4.$$" && mv -T "$cache/testbed/bin/$4.$$" "$cache/testbed/bin/$4"
}

# kube BINARY: Helm and kubectl want to see a version.
kube() {
  local v p=k8s.io/component-base/version
  v=$(version kube k8s.io/kubernetes)
  local minor=${v#v1.}
  build kube k8s.io/kubernetes "k8s.io/kubernetes/cmd/$1" "$1" \
    "-X $p.gitVersion=$v -X $p.gitMajor=1 -X $p.gitMinor=${minor%%.*} -X $p.gitTreeState=clean -X $p.gitCommit=0000000000000000000000000000000000000000 -X $p.buildDate=2026-01-01T00:00:00Z"
}

# stages: the rules that kwok plays nodes and pods by ship in its module.
stages() {
  local src out
  out=$cache/testbed/kwok-$(version kwok sigs.k8s.io/kwok)-$go/stages.yaml
  [ ! -s "$out" ] || return 0
  src=$(cd "$here/kwok" && go mod download sigs.k8s.io/kwok && go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
  for f in "$src"/{node/fast,node/heartbeat-with-lease,pod/fast}/*-*.yaml; do
    echo ---
    cat "$f"
  done >"$out.$$"
  mv "$out.$$" "$out"
}

# azurite: an npm package, at a fixed version, installed without running scripts
# of its dependencies.
azurite() {
  local v=3.37.0 dir main=node_modules/azurite/dist/src/blob/main.js
  dir=$cache/testbed/azurite-$v
  if [ ! -x "$dir/$main" ]; then
    echo "installing azurite $v" >&2
    command -v npm >/dev/null || { echo "build.sh: azurite needs npm and node: install Node.js" >&2; exit 1; }
    mkdir -p "$dir.$$"
    npm install --prefix "$dir.$$" --ignore-scripts --no-audit --no-fund --silent "azurite@$v" >&2
    chmod +x "$dir.$$/$main"
    rm -rf "$dir"
    mv "$dir.$$" "$dir"
  fi
  mkdir -p "$cache/testbed/bin"
  ln -sfn "$dir/$main" "$cache/testbed/bin/azurite-blob.$$" && mv -T "$cache/testbed/bin/azurite-blob.$$" "$cache/testbed/bin/azurite-blob"
}

part() {
  case $1 in
  kube-apiserver | kube-controller-manager | kube-scheduler) kube "$1" ;;
  etcd) build kube go.etcd.io/etcd/server/v3 go.etcd.io/etcd/server/v3 etcd ;;
  kwok) build kwok sigs.k8s.io/kwok sigs.k8s.io/kwok/cmd/kwok kwok; stages ;;
  fake-gcs-server) build fakegcs github.com/fsouza/fake-gcs-server github.com/fsouza/fake-gcs-server fake-gcs-server ;;
  versitygw) build versity github.com/versity/versitygw github.com/versity/versitygw/cmd/versitygw versitygw ;;
  toxiproxy-server) build toxi github.com/Shopify/toxiproxy/v2 github.com/Shopify/toxiproxy/v2/cmd/server toxiproxy-server ;;
  azurite | azurite-blob) azurite ;;
  controller-gen) build controller-gen sigs.k8s.io/controller-tools sigs.k8s.io/controller-tools/cmd/controller-gen controller-gen ;;
  all) for p in kube-apiserver kube-controller-manager kube-scheduler etcd kwok fake-gcs-server versitygw toxiproxy-server azurite; do part "$p"; done ;;
  *) echo "build.sh: unknown part $1" >&2; exit 2 ;;
  esac
}
[ $# -gt 0 ] || { echo "usage: build.sh PART..." >&2; exit 2; }
for p in "$@"; do part "$p"; done
echo "$cache/testbed/bin"

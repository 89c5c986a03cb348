#!/usr/bin/env bash
# Copyright The Tenure Authors
# SPDX-License-Identifier: Apache-2.0
#
# Sees that the programs which the checks need are there. Installs Debian's
# packages of those that are missing where it may, and else says what to install.
set -euo pipefail

# A program and the Debian packages that bring it. The race detector needs a C
# compiler with the C library's headers, and so does the model checker.
missing=()
need() {
  local program=$1
  shift
  command -v "$program" >/dev/null || missing+=("$@")
}
need gcc gcc libc6-dev
need git git
need make make
need spin spin
# Debian keeps pgbouncer where only root's PATH looks, and the servers of
# PostgreSQL in a folder for each version.
[ -x /usr/sbin/pgbouncer ] || need pgbouncer pgbouncer
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || need postgres postgresql
# What the tests on real control planes make namespaces and cut networks with.
need unshare util-linux
need nsenter util-linux
need hostname hostname
need ip iproute2
need nft nftables

if ! command -v go >/dev/null; then
  echo "deps: Go is missing: install the release that go.work names, or later" >&2
  exit 1
fi
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "deps: missing: ${missing[*]} (names of Debian packages): install them by this system's own means" >&2
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "deps: missing: run as root: apt-get update && apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# The tests start servers of their own: none is to be made and started here.
if [[ " ${missing[*]} " == *" postgresql "* ]] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
  mkdir -p /etc/postgresql-common
  echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
fi
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"

#!/usr/bin/env bash
# Copyright The Tenure Authors
# SPDX-License-Identifier: Apache-2.0
#
# Shows two copies of a command that elect one of them, and fail over: when the
# leader is killed, and when it is asked to stop. Takes 15 seconds. Needs
# bin/tenure (make build), or another in TENURE.
set -euo pipefail

tenure=${TENURE:-$(dirname "$0")/../bin/tenure}
folder=$(mktemp -d)
lock="file://$folder/demo.lock?ttl=3s"
log=$folder/log
declare -A copies=()

cleanup() {
  exec 2>/dev/null # the shell would report each copy that is killed
  for pid in "${copies[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$folder"
}
trap cleanup EXIT

now() { date +%s%N; }
begin=$(now)
say() { printf '%6.1fs  %s\n' "$(($(now) - begin))e-9" "$*"; }

# The command: it says when it starts, works, and ends.
command='echo "$TENURE_IDENTITY works, epoch $TENURE_EPOCH" >>"$0"
trap "sleep 0.5; exit 0" TERM
while :; do sleep 0.05; done'

start() {
  "$tenure" run --lock "$lock" --identity "$1" -- bash -c "$command" "$log" 2>"$folder/$1.stderr" &
  copies[$1]=$!
  say "started copy $1: tenure run --lock '$lock' --identity $1 -- COMMAND"
}

# Waits for the n-th line of the log, which names who works.
leader() {
  for ((i = 0; i < 400; i++)); do
    line=$(sed -n "$1p" "$log" 2>/dev/null || true)
    if [ -n "$line" ]; then
      say "  -> $line"
      leads=${line%% *}
      return
    fi
    sleep 0.05
  done
  say "nobody works after 20 s; the copies said:"
  cat "$folder"/*.stderr
  exit 1
}

status() {
  say "tenure status --lock ..."
  "$tenure" status --lock "$lock" | sed 's/^/           | /'
}

start a
start b
say "the lock is new: the first leader waits 1.5 times the ttl of 3s, in case it was deleted"
leader 1
status

say "kill -9 of copy $leads: its command dies with it, the other takes over when the lock expires (at most 3.7s)"
kill -9 "${copies[$leads]}"
wait "${copies[$leads]}" 2>/dev/null || true
killed=$leads
leader 2
start "$killed"
sleep 1

say "TERM to copy $leads: its command takes 0.5s to end, then the lock is released and the other takes it at once"
kill -TERM "${copies[$leads]}"
code=0
wait "${copies[$leads]}" || code=$?
say "  copy $leads exits with its command's status, $code"
leader 3
status

say "only copy $leads is left: nobody can take over from it, and tenure handover says so"
"$tenure" handover --lock "$lock" --timeout 1s 2>&1 | sed 's/^/           | /' || true
say "done"

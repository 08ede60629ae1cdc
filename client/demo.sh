#!/bin/bash
# Installs what is needed, builds hotkv, starts a daemon in a private folder, and shows the main job:
# two workers share a session's KV through the daemon, and one of them dies in the middle.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/install.sh

install_build_dependencies
if [ ! -f build/CMakeCache.txt ]; then
  cmake -G Ninja -S . -B build >build.log 2>&1 || { cat build.log; exit 1; }
  rm -f build.log
fi
echo "building (the first time takes some minutes) …"
cmake --build build --parallel "$(nproc)" --target hotkvd hotkvctl hotkv_example_demo_worker \
  >build/demo-build.log 2>&1 || { tail -40 build/demo-build.log; exit 1; }

folder=$(mktemp -d)
pids=()
stop_everything() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap stop_everything EXIT

control=$folder/control.sock admin=$folder/admin.sock
build/bin/hotkvd --socket "$control" --admin-socket "$admin" --max-bytes 256M 2>"$folder/hotkvd.log" &
daemon=$!
pids+=("$daemon")
until build/bin/hotkvctl --admin-socket "$admin" status >/dev/null 2>&1; do
  kill -0 "$daemon" 2>/dev/null || { cat "$folder/hotkvd.log"; exit 1; }
done
echo "hotkvd runs as pid $daemon"

failures=0
# tell WORKER COMMAND…: one line to a worker, one line back. expect TEXT checks the last answer.
tell() {
  local worker=$1
  shift
  local -n in=${worker}_in out=${worker}_out
  echo "$*" >&"$in"
  IFS= read -r -t 20 answer <&"$out" || answer="(no answer)"
  printf '  %-8s %-20s → %s\n' "$worker" "$*" "$answer"
}
expect() {
  case "$answer" in *"$1"*) ;; *) echo "  !! expected: $1"; failures=$((failures + 1)) ;; esac
}
start() {
  local worker=$1
  local -n in=${worker}_in out=${worker}_out pid=${worker}_pid
  mkfifo "$folder/$worker.in" "$folder/$worker.out"
  build/bin/hotkv_example_demo_worker "$control" <"$folder/$worker.in" >"$folder/$worker.out" &
  pid=$!
  pids+=("$pid")
  exec {in}>"$folder/$worker.in" {out}<"$folder/$worker.out"
  IFS= read -r -t 20 answer <&"$out"
  printf '  %-8s %-20s → %s\n' "$worker" "(starts)" "$answer"
}

echo "prefill and decode, in one worker:"
start first
start second
tell first open chat 1; expect "0 tokens"
tell first append 300; expect "now 300"
tell first append 1; expect "now 301"
tell second read chat 1 301; expect "0 wrong bytes"
echo "the session is handed over; the second worker goes on and rolls back a guess:"
tell first handover
tell second open chat 1; expect "301 tokens"
tell second append 8; expect "now 309"
tell second truncate 304; expect "rolled back"
tell first read chat 1 304; expect "0 wrong bytes"
tell first read chat 1 309; expect "seq-len-mismatch"
echo "kill -9 of the worker that holds it:"
kill -9 "$second_pid"
wait "$second_pid" 2>/dev/null || true
tell first open chat 1; expect "304 tokens"
tell first append 1; expect "now 305"
tell first read chat 1 305; expect "0 wrong bytes"
echo "what the operator sees:"
build/bin/hotkvctl --admin-socket "$admin" contexts | sed 's/^/  /'
echo "a new epoch supersedes the old one:"
tell first open chat 2; expect "0 tokens"
tell first read chat 1 305; expect "superseded-epoch"
build/bin/hotkvctl --admin-socket "$admin" why chat | sed 's/^/  /'
tell first handover

kill -TERM "$daemon"
wait "$daemon" && echo "hotkvd ended in order" || { echo "hotkvd: exit $?"; failures=$((failures + 1)); }
if [ "$failures" -ne 0 ]; then
  echo "$failures expectations failed"
  exit 1
fi
echo "Nothing was computed twice: 304 published tokens outlived the worker that wrote them."

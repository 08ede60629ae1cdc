#!/bin/bash
# Installs what is needed, builds hotkv, and shows the main job: a small Llama in two processes writes
# a story, its KV kept by hotkvd, while workers are killed, replaced and the daemon restarted.
#
# With the checkpoint of HOTKV_MODELS_FOLDER (else ../shared/models): a story. Without it: a model with
# made-up weights, whose story is numbers.
set -euo pipefail
models=$(realpath --canonicalize-missing "${HOTKV_MODELS_FOLDER:-$(dirname "${BASH_SOURCE[0]}")/../../shared/models}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/install.sh

install_build_dependencies
echo "building (the first time takes some minutes) …"
generator=()
if [ ! -f build/build.ninja ] && [ ! -f build/Makefile ]; then
  rm -f build/CMakeCache.txt    # of a configuration that failed
  generator=(-G Ninja)
fi
mkdir -p build
{ cmake "${generator[@]}" -S . -B build &&
  cmake --build build --parallel "$(nproc)" --target hotkvd hotkvctl hotkv-shard; } \
  >build/demo-build.log 2>&1 || { tail -40 build/demo-build.log; exit 1; }

model=$models/stories260K.bin last_layer=4 steps=200
if [ ! -f "$model" ]; then
  echo "$model is not there: a model with made-up weights tells its story in numbers"
  model=seed:3 last_layer=5 steps=120
fi

folder=$(mktemp -d)
control=$folder/control.sock admin=$folder/admin.sock transcript=$folder/transcript
failures=0
fail() { printf '\n!! %s\n' "$*"; failures=$((failures + 1)); }
give_up() { printf '\n!! %s\n' "$*"; exit 1; }
scene() { printf '\n\n── %s\n' "$*"; }
# Only what is still a child of this script: a number that was reaped may be somebody else's by now.
stop_everything() {
  local pid
  for pid in $(jobs -p); do kill "$pid" 2>/dev/null || true; done
  sleep 0.2
  for pid in $(jobs -p); do kill -9 "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$folder"
}
trap stop_everything EXIT
# until_so WHAT COMMAND…: looks fifty times a second, for twenty seconds.
until_so() {
  local what=$1 tries
  shift
  for ((tries = 0; tries < 1000; ++tries)); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.02
  done
  cat "$folder"/*.log 2>/dev/null || true
  give_up "$what: not within twenty seconds"
}

# Whatever is started is announced before the story can go on, or it would stand amid the text.
announce() { if [ -n "$1" ]; then printf '   pid %s: %s\n' "$2" "$1"; fi; }
# start_daemon [ANNOUNCEMENT]: up when this returns; its pid in $daemon.
start_daemon() {
  build/bin/hotkvd --socket "$control" --admin-socket "$admin" --max-bytes 64M 2>>"$folder/hotkvd.log" &
  daemon=$!
  announce "${1:-}" "$daemon"
  until_so "hotkvd is up" build/bin/hotkvctl --admin-socket "$admin" status
}
# start_worker ANNOUNCEMENT NAME LAYERS SOCKET [NEXT-SOCKET]: up when this returns; its pid in ${NAME}_pid.
start_worker() {
  local name=$2 layers=$3 socket=$folder/$4 next=()
  local -n pid=${name}_pid
  if [ $# -gt 4 ]; then next=(--next "$folder/$5"); fi
  build/bin/hotkv-shard serve --model "$model" --layers "$layers" --listen "$socket" "${next[@]}" \
    --socket "$control" 2>"$folder/$name.log" &
  pid=$!
  announce "$1" "$pid"
  until_so "$name is up" grep -q 'listening on' "$folder/$name.log"
}
kill_worker() {
  local -n pid=${1}_pid
  kill -9 "$pid" || give_up "$1 had ended by itself: $(cat "$folder/$1.log")"
  wait "$pid" 2>/dev/null || true
}
# generate HEAD-SOCKET TOKENS-IN-ALL, in the background; its pid in $router.
generate() {
  timeout 60 build/bin/hotkv-shard generate --model "$model" --head "$folder/$1" --steps "$2" \
    --pace-ms 15 --transcript "$transcript" --new-text-only --report "$folder/report-$1.json" &
  router=$!
}
has_written() { [ "$(wc -l <"$transcript")" -gt "$1" ]; }    # the transcript has a line more
reported() { grep -o "\"$2\":[0-9]*" "$folder/report-$1.json" | cut -d: -f2 || true; }

start_daemon
start_worker "" tail 3-$last_layer tail.sock
start_worker "" head 0-2 head.sock tail.sock
echo
echo "hotkvd   pid $daemon   keeps the attention keys and values of every session"
echo "head     pid $head_pid   layers 0-2: takes tokens, emits a residual"
echo "tail     pid $tail_pid   layers 3-$last_layer: takes the residual, chooses the next token"
echo "router                asks the head for token after token, and prints:"
echo
generate head.sock $((steps * 6 / 10))

until_so "the story is begun" has_written $((steps * 2 / 10))
scene "kill -9 of the tail, pid $tail_pid"
kill_worker tail
start_worker "a new tail; what the old one had published is in hotkvd" tail 3-$last_layer tail.sock

until_so "the story goes on" has_written $((steps * 4 / 10))
scene "kill -9 of both workers, pids $head_pid and $tail_pid"
kill_worker head
kill_worker tail
start_worker "a new tail" tail 3-$last_layer tail.sock
start_worker "a new head" head 0-2 head.sock tail.sock
wait "$router" || give_up "the router failed"

scene "the session is handed to a second pair of workers; the first lives on"
start_worker "another tail" second_tail 3-$last_layer second-tail.sock
start_worker "another head" second_head 0-2 second-head.sock second-tail.sock
generate second-head.sock "$steps"

until_so "the story goes on" has_written $((steps * 8 / 10))
scene "hotkvd is stopped for a second; its memory is gone (nobody keeps it here)"
kill -TERM "$daemon"
wait "$daemon" || fail "hotkvd: exit $?"
sleep 1
grep -h 'hotkvd is gone' "$folder"/second_*.log | sed 's/^/   /' || fail "no worker said that hotkvd is gone"
start_daemon "hotkvd is back: everything is computed again, once"
wait "$router" || give_up "the router failed"

scene "was it the same story?"
# The whole text once more, of which every token is there; and the same story by undisturbed workers.
timeout 60 build/bin/hotkv-shard generate --model "$model" --head "$folder/second-head.sock" \
  --steps "$steps" --transcript "$transcript" >"$folder/disturbed.txt" 2>"$folder/last.log" ||
  give_up "$(cat "$folder/last.log")"
timeout 60 build/bin/hotkv-shard generate --model "$model" --head "$folder/head.sock" \
  --steps "$steps" --session undisturbed >"$folder/undisturbed.txt" 2>"$folder/last.log" ||
  give_up "$(cat "$folder/last.log")"
if cmp -s "$folder/disturbed.txt" "$folder/undisturbed.txt"; then
  echo "   yes: byte for byte what undisturbed workers write"
else
  fail "no: undisturbed workers write something else"
fi
if [ "$model" != seed:3 ]; then
  if cmp -s "$folder/disturbed.txt" "$models/stories260K.greedy200.txt"; then
    echo "   and what the original program of this checkpoint writes"
  else
    fail "it is not what the original program writes"
  fi
fi
by_kills=$(reported head.sock recomputed) by_restart=$(reported second-head.sock recomputed)
echo "   three workers killed: ${by_kills:-?} of $((steps * 6 / 10)) tokens recomputed (a kill inside a step costs one)"
echo "   hotkvd restarted cold: ${by_restart:-?} recomputed"
if [ "${by_kills:-9}" -gt 2 ]; then fail "a kill costs at most one token"; fi
if [ "${by_restart:-0}" -eq 0 ]; then fail "a cold restart costs all tokens"; fi
echo
echo "what the operator sees:"
build/bin/hotkvctl --admin-socket "$admin" contexts | sed 's/^/   /'

kill -TERM "$daemon"
wait "$daemon" && echo "hotkvd ended in order" || fail "hotkvd: exit $?"
if [ "$failures" -ne 0 ]; then
  echo "$failures expectations failed"
  exit 1
fi

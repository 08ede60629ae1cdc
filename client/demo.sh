#!/bin/bash
# Installs what is needed, builds hotkv, and shows the main job: a small Llama in two processes writes
# a story, its KV kept by hotkvd, while workers are killed, replaced and the daemon restarted.
#
# With the checkpoint of HOTKV_MODELS_FOLDER (else ../shared/models): a story. Without it: a model with
# made-up weights, whose story is numbers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/install.sh

install_build_dependencies
if [ ! -f build/CMakeCache.txt ]; then
  cmake -G Ninja -S . -B build >build.log 2>&1 || { cat build.log; exit 1; }
  rm -f build.log
fi
echo "building (the first time takes some minutes) …"
cmake --build build --parallel "$(nproc)" --target hotkvd hotkvctl hotkv-shard \
  >build/demo-build.log 2>&1 || { tail -40 build/demo-build.log; exit 1; }

models=${HOTKV_MODELS_FOLDER:-../shared/models}
model=$models/stories260K.bin last_layer=4 steps=200
if [ ! -f "$model" ]; then
  echo "$model is not there: a model with made-up weights tells its story in numbers"
  model=seed:3 last_layer=5 steps=120
fi

folder=$(mktemp -d)
pids=()
stop_everything() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap stop_everything EXIT

control=$folder/control.sock admin=$folder/admin.sock transcript=$folder/transcript
failures=0
fail() { printf '\n!! %s\n' "$*"; failures=$((failures + 1)); }
scene() { printf '\n\n── %s\n' "$*"; }

# Whatever is started is announced before the story can go on, or it would stand amid the text.
announce() { if [ -n "$1" ]; then printf '   pid %s: %s\n' "$2" "$1"; fi; }
# start_daemon [ANNOUNCEMENT]
start_daemon() {
  build/bin/hotkvd --socket "$control" --admin-socket "$admin" --max-bytes 64M 2>>"$folder/hotkvd.log" &
  daemon=$!
  pids+=("$daemon")
  announce "${1:-}" "$daemon"
  until build/bin/hotkvctl --admin-socket "$admin" status >/dev/null 2>&1; do
    kill -0 "$daemon" 2>/dev/null || { cat "$folder/hotkvd.log"; exit 1; }
    sleep 0.02
  done
}
# start_worker ANNOUNCEMENT NAME LAYERS SOCKET [NEXT-SOCKET]: up when this returns; its pid in ${NAME}_pid.
start_worker() {
  local name=$2 layers=$3 socket=$folder/$4 next=()
  local -n pid=${name}_pid
  if [ $# -gt 4 ]; then next=(--next "$folder/$5"); fi
  : >"$folder/$name.log"
  build/bin/hotkv-shard serve --model "$model" --layers "$layers" --listen "$socket" "${next[@]}" \
    --socket "$control" 2>"$folder/$name.log" &
  pid=$!
  pids+=("$pid")
  announce "$1" "$pid"
  until grep -q 'listening on' "$folder/$name.log"; do
    kill -0 "$pid" 2>/dev/null || { cat "$folder/$name.log"; exit 1; }
    sleep 0.02
  done
}
kill_worker() {
  local -n pid=${1}_pid
  kill -9 "$pid"
  wait "$pid" 2>/dev/null || true
}
# generate HEAD-SOCKET TOKENS-IN-ALL, in the background; its pid in $router.
generate() {
  build/bin/hotkv-shard generate --model "$model" --head "$folder/$1" --steps "$2" --pace-ms 15 \
    --transcript "$transcript" --new-text-only --report "$folder/report-$1.json" &
  router=$!
  pids+=("$router")
}
# Waits until the story has this many tokens (the transcript has a line more).
written() {
  until [ -f "$transcript" ] && [ "$(wc -l <"$transcript")" -gt "$1" ]; do
    kill -0 "$router" 2>/dev/null || { fail "the router ended early"; return; }
    sleep 0.01
  done
}

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

written $((steps * 2 / 10))
scene "kill -9 of the tail, pid $tail_pid"
kill_worker tail
start_worker "a new tail; what the old one had published is in hotkvd" tail 3-$last_layer tail.sock

written $((steps * 4 / 10))
scene "kill -9 of both workers, pids $head_pid and $tail_pid"
kill_worker head
kill_worker tail
start_worker "a new tail" tail 3-$last_layer tail.sock
start_worker "a new head" head 0-2 head.sock tail.sock
wait "$router" || fail "the router failed"

scene "the session is handed to a second pair of workers; the first lives on"
start_worker "another tail" second_tail 3-$last_layer second-tail.sock
start_worker "another head" second_head 0-2 second-head.sock second-tail.sock
generate second-head.sock "$steps"

written $((steps * 8 / 10))
scene "hotkvd is stopped for a second; its memory is gone (a restart is cold for now)"
kill -TERM "$daemon"
wait "$daemon" || fail "hotkvd: exit $?"
sleep 1
grep -h 'hotkvd is gone' "$folder"/second_*.log | sed 's/^/   /' || fail "no worker said that hotkvd is gone"
start_daemon "hotkvd is back: everything is computed again, once"
wait "$router" || fail "the router failed"

scene "was it the same story?"
build/bin/hotkv-shard generate --model "$model" --head "$folder/second-head.sock" --steps "$steps" \
  --transcript "$transcript" >"$folder/disturbed.txt" 2>/dev/null
build/bin/hotkv-shard generate --model "$model" --head "$folder/head.sock" --steps "$steps" \
  --session undisturbed >"$folder/undisturbed.txt" 2>/dev/null
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
recomputed() { grep -o '"recomputed":[0-9]*' "$folder/report-$1.json" | cut -d: -f2; }
by_kills=$(recomputed head.sock) by_restart=$(recomputed second-head.sock)
echo "   three workers killed: $by_kills of $((steps * 6 / 10)) tokens recomputed (a kill inside a step costs one)"
echo "   hotkvd restarted cold: $by_restart recomputed"
if [ "$by_kills" -gt 2 ]; then fail "a kill costs at most one token"; fi
echo
echo "what the operator sees:"
build/bin/hotkvctl --admin-socket "$admin" contexts | sed 's/^/   /'

kill -TERM "$daemon"
wait "$daemon" && echo "hotkvd ended in order" || fail "hotkvd: exit $?"
if [ "$failures" -ne 0 ]; then
  echo "$failures expectations failed"
  exit 1
fi

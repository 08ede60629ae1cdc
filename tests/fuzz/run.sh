#!/bin/bash
# Runs the fuzzers of this folder, one after the other, for a bounded time each.
#
# usage: tests/fuzz/run.sh [--keep] [SECONDS [TARGET...]]
#   SECONDS: for each target, 60 by default
#   TARGET: control_frames client_replies shared_words kept_files, all by default
#   --keep: what was found and reaches more than corpus/TARGET does is added there, and the whole is
#           minimised
#
# Needs clang 16 or newer with its runtime (Debian 12: clang-16 libclang-rt-16-dev); CXX overrides.
# Builds in build-fuzz/. Prints executions, and edges and features reached, for each target. Exit code
# 0: no finding. The input of a finding is left in build-fuzz/findings/TARGET; once its cause is
# mended it belongs in tests/fuzz/regressions/TARGET.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

keep=no
if [ "${1:-}" = --keep ]; then keep=yes; shift; fi
seconds=${1:-60}
case "$seconds" in "" | *[!0-9]*) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;; esac
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then targets=(control_frames client_replies shared_words kept_files); fi

compiler=${CXX:-}
for version in 16 17 18 19 20; do
  if [ -z "$compiler" ] && command -v "clang++-$version" >/dev/null; then compiler=clang++-$version; fi
done
if [ -z "$compiler" ]; then
  echo "no clang++ of version 16 to 20 found" >&2
  exit 2
fi

build=build-fuzz
cmake -S . -B "$build" -DCMAKE_CXX_COMPILER="$compiler" -DHOTKV_FUZZ=ON -DHOTKV_BUILD_TESTS=ON \
  -DHOTKV_FAULT_POINTS=OFF >/dev/null
cmake --build "$build" --parallel "$(nproc)" --target fuzzers

# Stacks of allocations and a long quarantine cost half the speed; run a finding's input without these
# options to see them.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=0:malloc_context_size=0:quarantine_size_mb=4}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

# Long enough for every operation of an input, short enough to be read.
length_max=400
rc=0
for target in "${targets[@]}"; do
  corpus=tests/fuzz/corpus/$target
  regressions=tests/fuzz/regressions/$target
  found=$build/corpus/$target
  findings=$build/findings/$target
  log=$build/fuzz-$target.log
  mkdir -p "$corpus" "$regressions" "$found" "$findings"
  "$build/bin/fuzz_$target" -max_total_time="$seconds" -max_len="$length_max" -timeout=10 \
    -rss_limit_mb=2048 -malloc_limit_mb=64 -entropic=0 -print_final_stats=1 \
    -artifact_prefix="$findings/" "$found" "$corpus" "$regressions" >"$log" 2>&1 || rc=1
  awk -v target="$target" '
    / cov: [0-9]+ ft: / { for (i = 1; i < NF; ++i) { if ($i == "cov:") edges = $(i + 1); if ($i == "ft:") features = $(i + 1) } }
    /number_of_executed_units/ { executions = $2 }
    /average_exec_per_sec/ { rate = $2 }
    END { printf "%s: %d executions, %d a second, %d edges, %d features\n", target, executions, rate, edges, features }
  ' "$log"
  grep -hE '^finding: |^hotkv: bug: |SUMMARY: |Test unit written to' "$log" || true
  if [ "$keep" = yes ]; then
    rm -rf "$build/merged"
    mkdir "$build/merged"
    "$build/bin/fuzz_$target" -merge=1 -max_len="$length_max" -rss_limit_mb=2048 "$build/merged" \
      "$corpus" "$found" >"$log.merge" 2>&1
    rm -f "$corpus"/*
    cp "$build/merged"/* "$corpus"/
    echo "$target: $(ls "$corpus" | wc -l) inputs in $corpus"
  fi
done
exit "$rc"

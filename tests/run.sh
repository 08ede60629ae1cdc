#!/bin/bash
# Builds hotkv and runs its tests: every one, or those of one level.
#
# usage: tests/run.sh [--label LEVEL]... [--sanitize address|thread] [--werror] [--jobs N]
#   LEVEL: unit golden seed integration story replay hostile field fault fuzz model stress bench style
#
# Builds in build/, build-asan/ or build-tsan/. Exit code 0: every test that ran passed and each level
# asked for has tests. Skipped tests are listed at the end with their reasons: a skip is no pass.
# The fault level prints the crash matrix; asked for by name, without a sanitizer, it also writes it to
# tests/fault/MATRIX.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/support/install.sh

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' tests/run.sh
  exit "$1"
}

levels="unit golden seed integration story replay hostile field fault fuzz model stress bench style"
labels=()
sanitizer=""
werror=OFF
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case "$1" in
    --label)
      case " $levels " in *" ${2:-} "*) ;; *) echo "--label takes one of: $levels" >&2; exit 2 ;; esac
      labels+=("$2"); shift 2 ;;
    --sanitize)
      case "${2:-}" in address | thread) ;; *) echo "--sanitize takes address or thread" >&2; exit 2 ;; esac
      sanitizer=$2; shift 2 ;;
    --werror) werror=ON; shift ;;
    --jobs)
      case "${2:-}" in "" | 0 | *[!0-9]*) echo "--jobs takes a number" >&2; exit 2 ;; esac
      jobs=$2; shift 2 ;;
    --help) usage 0 ;;
    *) echo "unknown argument: $1" >&2; usage 2 >&2 ;;
  esac
done

# Debug information for backtraces only, and code that a sanitizer makes large anyway optimised less: it
# compiles in half the time.
case "$sanitizer" in
  "") build=build flags="-O2 -g1 -DNDEBUG" ;;
  address) build=build-asan flags="-O1 -g1 -DNDEBUG" ;;
  thread) build=build-tsan flags="-O1 -g1 -DNDEBUG" ;;
esac

install_build_dependencies
mkdir -p "$build"
rm -f "$build/ctest.log" "$build/ctest.xml"    # an old result must not pass for the one of this run

generator=()
if [ ! -f "$build/CMakeCache.txt" ] && command -v ninja >/dev/null; then
  generator=(-G Ninja)
fi
cmake -S . -B "$build" "${generator[@]}" -DHOTKV_BUILD_TESTS=ON -DHOTKV_SANITIZE="$sanitizer" \
  -DHOTKV_WERROR="$werror" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="$flags"
targets=()
for label in "${labels[@]}"; do targets+=(--target "level_$label"); done
cmake --build "$build" --parallel "$jobs" "${targets[@]}"

# The first finding ends the process, so that a daemon with a finding cannot look like a healthy one.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}

# Where tests that are rows of the crash matrix leave their figures.
export HOTKV_CRASH_MATRIX=$PWD/$build/crash_matrix
rm -rf "$HOTKV_CRASH_MATRIX"
mkdir "$HOTKV_CRASH_MATRIX"

# One run of ctest over all labels. A label without tests would go unnoticed in it: asked for here.
selection=()
for label in "${labels[@]}"; do
  if ctest --test-dir "$build" -N -L "^$label\$" | grep -q '^Total Tests: 0$'; then
    echo "there are no tests of level '$label'" >&2
    exit 1
  fi
  selection+=("^$label\$")
done
filter=()
if [ ${#selection[@]} -gt 0 ]; then
  filter=(-L "$(IFS='|'; echo "${selection[*]}")")
fi
rc=0
ctest --test-dir "$build" --no-tests=error --output-on-failure --parallel "$jobs" \
  --output-junit ctest.xml "${filter[@]}" 2>&1 | tee "$build/ctest.log" || rc=$?
if [ -n "$(ls "$HOTKV_CRASH_MATRIX")" ]; then
  written=()
  case "$sanitizer ${labels[*]}" in *fault*) [ -n "$sanitizer" ] || written=(tests/fault/MATRIX.md) ;; esac
  python3 tests/fault/write_matrix.py "$HOTKV_CRASH_MATRIX" "${written[@]}" || rc=1
fi
python3 tests/support/list_skipped.py "$build/ctest.xml"
exit "$rc"

#!/bin/bash
# The shipped unit in a real service manager: it is without warnings, becomes active, answers, stops;
# crashes are followed by starts, up to a limit, a refused configuration by none.
# usage: systemd_unit_test.sh FOLDER-OF-PROGRAMS
#
# A systemd of its own is booted over a throw-away overlay of this machine's root (see
# ../support/run_in_systemd.sh). Inside it a oneshot unit runs this script again with --inside.
set -euo pipefail

skip() {
  echo "SKIP: $1"
  exit 77
}

fail() {
  echo "FAILED: $1"
  systemctl status --no-pager --full hotkvd.service || true
  journalctl --no-pager --unit hotkvd.service --lines 50 || true
  exit 1
}

property() {
  systemctl show --property "$1" --value hotkvd.service
}

# Whether a property is what is expected of it.
expect_property() {
  [ "$(property "$1")" = "$2" ] || fail "$1 is $(property "$1"), expected $2"
}

answers() {
  hotkvctl status --json >/tmp/status.json 2>&1
}

# Waits until a command succeeds, fifteen seconds at most.
eventually() {
  local attempt
  for attempt in $(seq 300); do
    if "$@"; then return 0; fi
    sleep 0.05
  done
  return 1
}

is_another_process_than() {
  local now
  now=$(property MainPID)
  [ "$now" != 0 ] && [ "$now" != "$1" ]
}

# FR-128: one process; limits for a stop and for the end after the watchdog's SIGABRT; after such an
# end it serves again at once.
one_process_that_comes_back() {
  expect_property TimeoutStopUSec 10s
  expect_property TimeoutAbortUSec 10s
  expect_property KillMode control-group
  local group before milliseconds hierarchy looked_at_group=no
  group=$(property ControlGroup)
  before=$(property MainPID)
  [ -n "$group" ] || fail "it has no group"
  for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    [ -f "$hierarchy$group/cgroup.procs" ] || continue
    [ "$(cat "$hierarchy$group/cgroup.procs")" = "$before" ] || fail "more than one process"
    looked_at_group=yes
  done
  [ "$looked_at_group" = yes ] || fail "its group is nowhere"

  milliseconds=$(date +%s%N)
  kill -ABRT "$before"
  eventually is_another_process_than "$before" || fail "no new process after SIGABRT"
  eventually answers || fail "it does not answer after SIGABRT"
  milliseconds=$((($(date +%s%N) - milliseconds) / 1000000))
  echo "served again $milliseconds ms after SIGABRT"
  # A process left over would cost TimeoutStopSec and more.
  [ "$milliseconds" -lt 10000 ] || fail "it served again only after $milliseconds ms"
  expect_property NRestarts 1
}

# Appends two tokens to a context and says how many it has: more than two only if it was there.
expect_tokens() {
  local said
  said=$(hotkv-quickstart) || fail "the worker says: $said"
  [ "${said%% *}" = "$1" ] || fail "$2: the context has ${said%% *} tokens, expected $1"
}

kill_daemon() {
  local before
  before=$(property MainPID)
  kill -KILL "$before"
  eventually is_another_process_than "$before" || fail "no new process after SIGKILL"
  eventually answers || fail "it does not answer after SIGKILL"
}

restart_is() {
  answers && [ "$(python3 -c 'import json;print(json.load(open("/tmp/status.json"))["restart"])')" = "$1" ]
}

says_that_nothing_is_kept() {
  local log
  journalctl --sync
  log=$(journalctl --unit hotkvd.service)
  grep -q 'event=memory-not-kept' <<<"$log"
}

# FR-059: the table "What keeps the memory" of systemd/README.md. FR-062: the store has one file of
# the daemon's and three for each shard, after any number of restarts.
memory_outlives_the_daemon() {
  systemctl reset-failed hotkvd.service
  systemctl restart hotkvd.service || fail "it does not restart"
  expect_tokens 2 "at first"
  eventually restart_is keeps || fail "it does not know that its memory is kept"
  kill_daemon
  expect_tokens 4 "after SIGKILL"
  systemctl restart hotkvd.service || fail "it does not restart"
  expect_tokens 6 "after systemctl restart"
  systemctl daemon-reexec
  kill_daemon
  expect_tokens 8 "after daemon-reexec and SIGKILL"
  expect_property NFileDescriptorStore 4
  systemctl stop hotkvd.service
  systemctl start hotkvd.service || fail "it does not start"
  expect_tokens 2 "after stop and start"
  ! says_that_nothing_is_kept || fail "it says its memory is not kept"
}

# A manager that keeps nothing says nothing; the daemon does.
kept_nothing_is_said_loudly() {
  mkdir -p /run/systemd/system/hotkvd.service.d
  printf '[Service]\nFileDescriptorStoreMax=0\n' >/run/systemd/system/hotkvd.service.d/none.conf
  systemctl daemon-reload
  systemctl restart hotkvd.service || fail "it does not restart"
  expect_tokens 2 "without a store"
  eventually restart_is cold || fail "it does not know that nothing is kept"
  eventually says_that_nothing_is_kept || fail "it does not say that nothing is kept"
  kill_daemon
  expect_tokens 2 "after SIGKILL without a store"
  rm -r /run/systemd/system/hotkvd.service.d
  systemctl daemon-reload
  systemctl reset-failed hotkvd.service
  systemctl restart hotkvd.service || fail "it does not restart"
}

# FR-127: the unit asks for pings, and a process that does not run is ended for the want of them.
watchdog_ends_what_stands_still() {
  expect_property WatchdogUSec 30s
  mkdir -p /run/systemd/system/hotkvd.service.d
  printf '[Service]\nWatchdogSec=2s\n' >/run/systemd/system/hotkvd.service.d/short.conf
  systemctl daemon-reload
  systemctl restart hotkvd.service || fail "it does not restart"
  local before restarts
  before=$(property MainPID)
  restarts=$(property NRestarts)
  sleep 3
  [ "$(property MainPID)" = "$before" ] || fail "the watchdog ended a daemon that pings"
  kill -STOP "$before"
  eventually is_another_process_than "$before" || fail "the watchdog did not end a stopped daemon"
  eventually answers || fail "it does not answer after the watchdog's end"
  [ "$(property NRestarts)" -gt "$restarts" ] || fail "there was no restart"
  rm -r /run/systemd/system/hotkvd.service.d
  systemctl daemon-reload
  systemctl restart hotkvd.service || fail "it does not restart"
}

# FR-124: whatever clients do, they start nothing: there is no activation socket. A refused
# configuration is refused once; repaired, the ordinary start works. A daemon that crashes again and
# again is given up, and the one command of the manual brings it back.
refused_and_given_up() {
  systemctl stop hotkvd.service
  echo 'max_byts = "8G"' >>/etc/hotkv/hotkvd.toml
  ! systemctl start hotkvd.service || fail "it starts with a wrong key"
  expect_property ActiveState failed
  expect_property ExecMainStatus 2
  expect_property NRestarts 0
  sed -i '$d' /etc/hotkv/hotkvd.toml
  systemctl reset-failed hotkvd.service
  systemctl start hotkvd.service || fail "it does not start with the repaired configuration"

  local crash before
  for crash in $(seq 9); do
    before=$(property MainPID)
    [ "$before" != 0 ] || break
    kill -KILL "$before"
    eventually is_another_process_than_or_failed "$before" || fail "neither restarted nor given up"
  done
  eventually is_failed || fail "after $crash crashes it is $(property ActiveState)"
  ! systemctl start hotkvd.service || fail "it starts though it was given up"
  systemctl reset-failed hotkvd.service && systemctl start hotkvd.service ||
    fail "the documented way back does not work"
  eventually answers || fail "it does not answer after the way back"
}

is_failed() {
  [ "$(property ActiveState)" = failed ]
}

is_another_process_than_or_failed() {
  is_failed || is_another_process_than "$1"
}

# Runs in the booted system.
inside() {
  # They were copied here as executable files, which systemd warns about.
  chmod 644 /etc/systemd/system/hotkvd.service /etc/hotkv/hotkvd.toml /etc/sysusers.d/hotkv.conf
  systemd-sysusers
  systemctl daemon-reload
  local warnings
  warnings=$(systemd-analyze verify hotkvd.service 2>&1) || fail "systemd-analyze verify: $warnings"
  [ -z "$warnings" ] || fail "systemd-analyze verify warns: $warnings"

  # `start` returns when the daemon has said READY=1.
  systemctl start hotkvd.service || fail "it does not start"
  [ "$(property ActiveState)/$(property SubState)" = active/running ] || fail "it is not running"
  [ "$(property NRestarts)" = 0 ] || fail "it needed more than one start"
  local place mode
  for place in "hotkv 750" "hotkv/control.sock 660" "hotkv/admin.sock 660"; do
    mode=$(stat --format '%a %U:%G' "/run/${place% *}") || fail "/run/${place% *} is not there"
    [ "$mode" = "${place#* } hotkv:hotkv" ] || fail "/run/${place% *} has $mode, expected $place"
  done
  hotkvctl status --json >/tmp/status.json || fail "hotkvctl status exits with $?"
  python3 -m json.tool /tmp/status.json >/dev/null || fail "hotkvctl status --json prints no JSON"

  one_process_that_comes_back
  memory_outlives_the_daemon
  kept_nothing_is_said_loudly
  watchdog_ends_what_stands_still
  refused_and_given_up
  systemctl restart hotkvd.service || fail "it does not restart"

  systemctl stop hotkvd.service || fail "it does not stop"
  [ "$(property ActiveState)" = inactive ] || fail "after stop it is $(property ActiveState)"
  [ "$(property Result)" = success ] || fail "it ended with $(property Result)"
  [ "$(property ExecMainStatus)" = 0 ] || fail "it exited with $(property ExecMainStatus)"
  [ "$(property NRestarts)" = 0 ] || fail "it was restarted"
  [ ! -e /run/hotkv/control.sock ] || fail "control.sock is left behind"
  echo "passed"
}

if [ "${1:-}" = --inside ]; then
  inside
  exit 0
fi

programs=${1:?usage: systemd_unit_test.sh FOLDER-OF-PROGRAMS}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[ "$(id -u)" = 0 ] || skip "needs root to boot a systemd of its own"
command -v systemd-nspawn >/dev/null || skip "systemd-nspawn is not installed (systemd-container)"
unshare --mount true 2>/dev/null || skip "this place allows no mount namespace"
for program in hotkvd hotkvctl hotkv_example_quickstart; do
  [ -x "$programs/$program" ] || { echo "FAILED: $programs/$program is not built"; exit 1; }
done

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cat >"$out/hotkvd-test.service" <<'UNIT'
[Unit]
Description=Test of hotkvd.service
SuccessAction=exit
FailureAction=exit
[Service]
Type=oneshot
TimeoutStartSec=120
ExecStart=/bin/bash /opt/systemd_unit_test.sh --inside
StandardOutput=file:/out/log
StandardError=file:/out/log
UNIT

rc=0
OUT=$out timeout 150 bash "$root/tests/support/run_in_systemd.sh" hotkvd-test.service \
  "$out/hotkvd-test.service:/etc/systemd/system/hotkvd-test.service" \
  "${BASH_SOURCE[0]}:/opt/systemd_unit_test.sh" \
  "$root/systemd/hotkvd.service:/etc/systemd/system/hotkvd.service" \
  "$root/systemd/hotkvd.toml:/etc/hotkv/hotkvd.toml" \
  "$root/systemd/sysusers.conf:/etc/sysusers.d/hotkv.conf" \
  "$programs/hotkvd:/usr/bin/hotkvd" "$programs/hotkvctl:/usr/bin/hotkvctl" \
  "$programs/hotkv_example_quickstart:/usr/bin/hotkv-quickstart" || rc=$?
if [ -f "$out/log" ]; then
  cat "$out/log"
else
  echo "the test did not run in the booted system"
fi
# The exit code alone could be that of a boot that never came to the test.
if [ "$rc" != 0 ] || ! grep -qx passed "$out/log"; then
  echo "FAILED: exit code $rc"
  exit 1
fi

#!/bin/bash
# The shipped unit in a real service manager: it is without warnings, becomes active, answers, stops.
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
for program in hotkvd hotkvctl; do
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
  "$programs/hotkvd:/usr/bin/hotkvd" "$programs/hotkvctl:/usr/bin/hotkvctl" || rc=$?
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

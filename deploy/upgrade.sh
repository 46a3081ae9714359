#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the installed version of Cleat to work under running guests: cleatd is restarted in place, then every controller is
# moved from the engine that serves to the other one, and the former is stopped. Run it again after whatever went wrong: it
# looks at what is, and does what is left.
set -euo pipefail

readonly me=${0##*/}
readonly connect_seconds=60
# For tests.
readonly run_dir=${CLEAT_UPGRADE_RUN_DIR:-/run}
readonly store_dir=${CLEAT_UPGRADE_STORE_DIR:-/var/lib/cleat}
# Which way an upgrade goes that has not come to its end: "FROM TO".
readonly journey=$run_dir/cleat-upgrade

usage() {
  cat <<END
usage: $me [--from ENGINE --to ENGINE] [--drain-seconds N] [--keep] [--dry-run]
       $me --roll-back [--drain-seconds N] [--dry-run]

Upgrades this host to the version of Cleat that is installed, without its guests noticing:
  1. restarts cleatd, if it runs another version's program; its store is copied first
  2. starts the other engine
  3. moves all controllers to it, one after the other
  4. stops the engine that served

  --from, --to       the engines; without them: the one that serves, if it runs another version's program, and the
                     other of blue and green
  --drain-seconds N  how long a disk may take for its requests in flight, before its controller stays where it is
  --keep             leaves the former engine running, so that --roll-back can use it
  --dry-run          says what would be done, and what stands in the way
  --roll-back        moves back what was moved, and stops the new engine

Exit status: 0 done; 1 not done, the last lines say what stayed where and how to go on; 2 wrong usage.
END
}

step() { printf '%s: %s\n' "$me" "$*"; }
die() {
  printf '%s: error: %s\n' "$me" "$1" >&2
  shift
  [ $# -eq 0 ] || printf '%s\n' "$@" >&2
  exit 1
}
wrong() {
  printf '%s: %s (%s --help)\n' "$me" "$*" "$me" >&2
  exit 2
}

# Runs it, or says that it would.
act() {
  if [ "$dry_run" = yes ]; then
    step "would run: $*"
  else
    step "runs: $*"
    "$@"
  fi
}

unit_of() { echo "cleat-engine@$1.service"; }
is_active() { systemctl is-active --quiet "$1"; }

# Does the unit's process run another program than the one that is installed under its name now?
is_replaced() {
  local pid program
  pid=$(systemctl show --property MainPID --value "$1")
  [ "${pid:-0}" -gt 0 ] || return 1
  program=$(readlink "/proc/$pid/exe") || return 1
  [[ $program == *' (deleted)' ]]
}

# Prints "NAME CONNECTED CONTROLLERS" for each engine that cleatd knows.
engines() {
  cleatctl engine list --output yaml | awk '
    $1 == "-" && $2 == "name:" { name = $3; sub("engines/", "", name) }
    $1 == "connected:" { connected = $2 }
    $1 == "controllers:" { print name, connected, $2 }'
}
controllers_of() { engines | awk -v name="$1" '$1 == name { count = $3 } END { print count + 0 }'; }
is_connected() { engines | awk -v name="$1" '$1 == name && $2 == "true" { found = 1 } END { exit !found }'; }

other_of() {
  case $1 in
    blue) echo green ;;
    green) echo blue ;;
    *) die "the serving engine is '$1': which one is it to be?" "next: $me --from $1 --to NAME" ;;
  esac
}

# Sets from and to.
choose_engines() {
  if [ -n "$from" ]; then
    step "from $from to $to, as asked for"
    return
  fi
  if [ -s "$journey" ]; then
    read -r from to <"$journey"
    if [ "$roll_back" = no ] && [ "$(controllers_of "$from")" = 0 ] && is_replaced "$(unit_of "$to")"; then
      # It only kept the former engine (--keep), and another version has been installed since.
      read -r to from <"$journey"
      step "$from serves; $to takes over"
    else
      step "an upgrade from $from to $to has not come to its end"
    fi
    return
  fi
  [ "$roll_back" = no ] || die "no upgrade is under way here, so there is nothing to roll back" \
    "An upgrade that has ended is undone by installing the former version and running $me again."
  local serving
  serving=$(engines | awk '$3 > 0 { print $1 }')
  if [ -z "$serving" ]; then
    local name
    for name in blue green; do
      if is_active "$(unit_of $name)"; then serving+=${serving:+$'\n'}$name; fi
    done
  fi
  case $serving in
    '') die "no engine serves, and neither blue nor green runs" "next: systemctl start $(unit_of blue)" ;;
    *$'\n'*) die "more than one engine serves: ${serving//$'\n'/, }" "next: $me --from ENGINE --to ENGINE" ;;
  esac
  from=$serving
  to=$(other_of "$from")
  if ! is_replaced "$(unit_of "$from")"; then
    step "$from serves, and runs the installed program: nothing to move ($me --from $from --to $to moves all the same)"
    to=''
    return
  fi
  step "$from serves; $to takes over"
}

check_cleatd() {
  is_active cleatd.service || die "cleatd does not run" "next: systemctl start cleatd.service"
  cleatctl engine list >/dev/null || die "cleatd does not answer, see above" "next: journalctl -u cleatd -n 50"
}

upgrade_cleatd() {
  if ! is_replaced cleatd.service; then
    step "cleatd runs the installed program"
    return
  fi
  local copy=$store_dir/before-upgrade
  if [ "$dry_run" = yes ]; then
    step "would restart cleatd, after a copy of its store to $copy"
    return
  fi
  step "restarts cleatd; no guest's I/O goes through it"
  systemctl stop cleatd.service
  rm -rf "$copy"
  mkdir -m 700 "$copy"
  # Nobody writes it now, so the copy is whole.
  local files=("$store_dir/cleat.db")
  [ ! -e "$store_dir/cleat.db-wal" ] || files+=("$store_dir/cleat.db-wal")
  if ! cp -a "${files[@]}" "$copy"/; then
    systemctl start cleatd.service || true
    die "the store can't be copied to $copy: cleatd was started again, and nothing else is changed" \
      "next: make room, then $me"
  fi
  step "its store of before is in $copy"
  systemctl start cleatd.service || die "cleatd does not start; the engines serve on" \
    "The cause: journalctl -u cleatd -n 50" \
    "next: remove the cause and run $me again; or install the former version and put the store's copy in place:" \
    "  systemctl stop cleatd; rm -f $store_dir/cleat.db $store_dir/cleat.db-wal; cp -a $copy/cleat.db* $store_dir/; systemctl start cleatd"
  # What engines have is theirs to say; they connect again within a second.
  cleatctl wait "engines/$1" --timeout "$connect_seconds" >/dev/null ||
    die "$1 has not connected to the new cleatd; it serves on" "next: journalctl -u cleatd -u $(unit_of "$1") -n 50"
}

start_engine() {
  local unit
  unit=$(unit_of "$1")
  if is_active "$unit" && is_replaced "$unit" && [ "$(controllers_of "$1")" = 0 ]; then
    # Left from before; it has nothing to do.
    act systemctl restart "$unit"
  elif is_active "$unit"; then
    step "$1 runs"
  else
    act systemctl start "$unit" || die "$1 does not start; $2 serves on, nothing was moved" \
      "next: journalctl -u $unit -n 50, then $me"
  fi
  [ "$dry_run" = no ] || return 0
  cleatctl wait "engines/$1" --timeout "$connect_seconds" >/dev/null ||
    die "$1 runs, but cleatd does not have it; $2 serves on, nothing was moved" \
      "next: journalctl -u cleatd -u $unit -n 50, then $me"
  step "$1 is connected"
}

# Moves all that $1 has to $2. How to go on when something stays: $3.
move() {
  local count drain=()
  count=$(controllers_of "$1")
  if [ "$count" = 0 ]; then
    step "$1 has no controllers"
    return
  fi
  [ -z "$drain_seconds" ] || drain=(--drain-seconds "$drain_seconds")
  if [ "$dry_run" = yes ]; then
    step "would move $count controller(s) from $1 to $2"
    if is_connected "$2"; then cleatctl engine upgrade "$1" --to "$2" "${drain[@]}" --dry-run; fi
    return
  fi
  step "moves $count controller(s) from $1 to $2"
  local status=0 left
  cleatctl engine upgrade "$1" --to "$2" "${drain[@]}" || status=$?
  left=$(controllers_of "$1")
  if [ "$status" -ne 0 ] || [ "$left" -ne 0 ]; then
    die "$left controller(s) stayed on $1 (the reasons are above), $(controllers_of "$2") are on $2" \
      "Both engines serve what they have; nothing is lost by waiting." \
      "What is on $1: cleatctl controller list" "$3"
  fi
  step "all are on $2"
}

# $1 serves from now on, also after a reboot; $2 is not needed any more.
finish() {
  # For the next boot: nothing to load again now, which takes systemd seconds where there is much.
  act systemctl --quiet enable --no-reload "$(unit_of "$1")"
  act systemctl --quiet disable --no-reload "$(unit_of "$2")"
  if [ "$keep" = yes ]; then
    step "$2 is left running, without work; '$me --roll-back' goes back to it"
    return
  fi
  act systemctl stop "$(unit_of "$2")" || die "$2 has nothing left, but did not end well" "next: systemctl status $(unit_of "$2")"
  [ "$dry_run" = yes ] || rm -f "$journey"
}

from='' to='' drain_seconds='' keep=no dry_run=no roll_back=no
while [ $# -gt 0 ]; do
  case $1 in
    --from | --to | --drain-seconds)
      [ $# -ge 2 ] && [ -n "$2" ] || wrong "$1 takes a value"
      case $1 in
        --from) from=$2 ;;
        --to) to=$2 ;;
        *) drain_seconds=$2 ;;
      esac
      shift
      ;;
    --keep) keep=yes ;;
    --dry-run) dry_run=yes ;;
    --roll-back) roll_back=yes ;;
    -h | --help) usage && exit 0 ;;
    *) wrong "'$1' is no option" ;;
  esac
  shift
done
[[ -n $from && -n $to ]] || [[ -z $from && -z $to ]] || wrong "give both --from and --to, or neither"
[[ -z $from || $from != "$to" ]] || wrong "--from and --to are the same"
[[ $drain_seconds =~ ^[0-9]*$ ]] || wrong "--drain-seconds '$drain_seconds' is no number"
[ "$roll_back" = no ] || [ "$keep" = no ] || wrong "--keep is not for --roll-back"
[ "$(id -u)" = 0 ] || die "only root may do this: it starts and stops services"

exec 9>"$run_dir/cleat-upgrade.lock"
flock -n 9 || die "another $me is running"

check_cleatd
choose_engines
if [ "$roll_back" = yes ]; then
  is_active "$(unit_of "$from")" || die "$from does not run any more, so nothing can go back to it" \
    "An upgrade that has ended is undone by installing the former version and running $me again."
  is_connected "$from" || die "$from runs, but cleatd does not have it" \
    "next: journalctl -u cleatd -u $(unit_of "$from") -n 50"
  move "$to" "$from" "next: $me --roll-back tries these again; $me goes on with the upgrade"
  keep=no
  finish "$from" "$to"
  step "rolled back: $from serves"
else
  upgrade_cleatd "$from"
  [ -n "$to" ] || exit 0
  start_engine "$to" "$from"
  [ "$dry_run" = yes ] || echo "$from $to" >"$journey"
  move "$from" "$to" "next: $me tries these again; $me --roll-back moves the others back to $from"
  finish "$to" "$from"
  if [ "$dry_run" = yes ]; then step "nothing was changed"; else step "done: $to serves"; fi
fi

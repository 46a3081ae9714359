#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds an older version's daemons and cleatctl, for the tests that exchange them with the present ones, and prints the folder
# that has them: scripts/build_base.sh [COMMIT]
# Without COMMIT: the newest release tag (v*) before HEAD, or, as long as there is none, the commit that CHANGELOG.md names in the
# line "Upgrade base:". All else that it says goes to standard error.
#
# build/base/COMMIT/bin is there only when it is whole: a second run builds nothing, and one that was cut off goes on where it was.
# The sources come from git archive, so that git knows of no further work tree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly programs=(cleatd cleat-engine cleatctl)
readonly jobs=${CLEAT_BASE_JOBS:-$(nproc)}
readonly kept_max=3 # versions; the one that was used longest ago goes first

say() { printf 'build_base: %s\n' "$*" >&2; }
die() {
  say "$1"
  say "next: $2"
  exit 1
}

# Prints nothing where there is neither.
default_base() {
  git describe --tags --match 'v[0-9]*' --abbrev=0 HEAD^ 2>/dev/null ||
    awk -F'`' '/^Upgrade base: `/ { print $2; exit }' CHANGELOG.md 2>/dev/null || true
}

# The full name of the commit that $1 means.
commit_of() {
  git rev-parse --is-inside-work-tree >/dev/null 2>&1 ||
    die "this is no git clone, so there is no older version to build from" "work in a clone, or leave the tests out with BASE=none"
  git rev-parse --verify --quiet --end-of-options "$1^{commit}" || {
    local next="git fetch --tags, or name another one: git log --oneline"
    [ "$(git rev-parse --is-shallow-repository)" = false ] || next="git fetch --unshallow --tags: this clone lacks older commits"
    die "this clone has no commit '$1'" "$next"
  }
}

# The sources of commit $1 in folder $2, whole or not at all.
unpack() {
  [ ! -d "$2" ] || return 0
  rm -rf "$2.part"
  mkdir -p "$2.part"
  git archive "$1" | tar -x -C "$2.part" || die "the sources of $1 can't be unpacked to $2.part, see above" "make room there"
  mv "$2.part" "$2"
}

# Step $1 of the build, the rest of the arguments; its output is in the log.
step() {
  local what=$1
  shift
  "$@" </dev/null >>"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "$name can't be $what by what is installed here: the end of $log is above" \
      "install what it lacks, or name a newer base: make test-upgrade BASE=COMMIT"
  }
}

build() {
  [ -f "$source/CMakePresets.json" ] ||
    die "$name has no CMakePresets.json: it is older than what this script can build" "make test-upgrade BASE=COMMIT with a newer one"
  : >"$log"
  # What it does not know of these is ignored.
  step configured env -C "$source" cmake --preset release -DCLEAT_TESTS=OFF
  step built cmake --build "$source/build" --parallel "$jobs" --target "${programs[@]}"
  rm -rf "$folder/bin.part"
  mkdir "$folder/bin.part"
  local program
  for program in "${programs[@]}"; do step installed mv "$source/build/bin/$program" "$folder/bin.part/"; done
  mv "$folder/bin.part" "$folder/bin"
  rm -rf "$source"
}

remove_old_ones() {
  local old
  while read -r old; do rm -rf "${old:?}"; done < <(find build/base -mindepth 1 -maxdepth 1 -type d -printf '%T@ %p\n' |
    sort -rn | cut -d' ' -f2- | tail -n +$((kept_max + 1)))
}

[ $# -le 1 ] || { echo "usage: scripts/build_base.sh [COMMIT]" >&2 && exit 2; }
name=${1:-$(default_base)}
[ -n "$name" ] || die "no version to come from: there is no tag v*, and CHANGELOG.md has no line 'Upgrade base:'" \
  "name one: make test-upgrade BASE=COMMIT"
commit=$(commit_of "$name")
readonly name commit
readonly folder=$PWD/build/base/${commit:0:12}
readonly source=$folder/source log=$folder/build.log

if [ ! -d "$folder/bin" ]; then
  mkdir -p "$folder"
  exec 9>"$folder/lock" # one that builds the same; another one is not waited for
  flock 9
  if [ ! -d "$folder/bin" ]; then
    say "builds $name (minutes, with a warm ccache less); log: $log"
    unpack "$commit" "$source"
    build
  fi
fi
touch "$folder"
remove_old_ones
say "$name is $folder/bin"
echo "$folder/bin"

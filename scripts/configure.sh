#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures the build tree of a preset, unless that has been done: scripts/configure.sh PRESET [CLEAT_TESTS]
# Without CLEAT_TESTS the tree keeps the tests that it has. What makes it old: CMakePresets.json has changed, of which CMake takes
# no notice, or something was LEFT OUT since a package was missing, now or when somebody called cmake.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly preset=$1 tests=${2:-}
tree=build
[ "$preset" = release ] || tree=build-$preset
readonly tree cache=$tree/CMakeCache.txt log=$tree/logs/configure.log

tests_of_tree() { sed -n 's/^CLEAT_TESTS:STRING=//p' "$cache" 2>/dev/null || true; }

is_done() {
  [ -f "$log" ] && [ ! "$cache" -nt "$log" ] && ! grep -q 'LEFT OUT' "$log" &&
    [ -f "$tree/build.ninja" ] && [ "$tree/build.ninja" -nt CMakePresets.json ] &&
    { [ -z "$tests" ] || [ "$(tests_of_tree)" = "$tests" ]; }
}

if ! is_done; then
  mkdir -p "$tree/logs"
  before=$(tests_of_tree)
  cmake --preset "$preset" ${tests:+"-DCLEAT_TESTS=$tests"} >"$log" 2>&1 || {
    cat "$log" >&2
    echo "configure: the tree of '$preset' can't be configured, see above; what is missing, 'make setup' installs" >&2
    # Otherwise the next command, which may need no tests, would ask for them too.
    [ -z "$tests" ] || [ ! -f "$cache" ] || sed -i "s/^CLEAT_TESTS:STRING=.*/CLEAT_TESTS:STRING=${before:-OFF}/" "$cache"
    exit 1
  }
fi
grep 'LEFT OUT' "$log" || true

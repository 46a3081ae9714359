#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the whole tree, reports everything it finds and fails at the end if there was anything.
# With --format it rewrites the C++ files instead. --fast leaves clang-tidy out; --since COMMIT gives it what has changed
# since; --all the tests too (those of fuzzing if there is build-asan) and more checks, which takes three times as long.
# clang-tidy needs the generated code (`make lint` makes it).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly clang=${CLEAT_CLANG:-16} # formatting differs between versions: this one is the project's
readonly build_dir=${CLEAT_BUILD_DIR:-build}
readonly fuzz_dir=build-asan # the one that has the fuzz targets
readonly jobs=${CLEAT_LINT_JOBS:-$(nproc)}

need() {
  command -v "$1" >/dev/null || {
    echo "lint: $1 is missing: run 'make setup' (Debian 12), or set CLEAT_CLANG to the version that you have" >&2
    exit 1
  }
}

# Tracked files and new ones that are not ignored.
mapfile -t files < <(git ls-files --cached --others --exclude-standard | while read -r f; do [ -e "$f" ] && echo "$f"; done)
cpp=() shell=() python=()
for file in "${files[@]}"; do
  case $file in
    *.cc | *.h | *.c) cpp+=("$file") ;;
    *.sh | .ci/run | scripts/guest/init | scripts/guest/init_systemd | scripts/guest/agent | deploy/debian/p*) shell+=("$file") ;;
    *.py) python+=("$file") ;;
  esac
done

format=no with_tidy=yes all=no since=''
while [ $# -gt 0 ]; do
  case $1 in
    --format) format=yes ;;
    --fast) with_tidy=no ;;
    --all) all=yes ;;
    --since) since=${2:?a commit is wanted} && shift ;;
    *)
      echo "usage: scripts/lint.sh [--format | --fast | --all | --since COMMIT]" >&2
      exit 2
      ;;
  esac
  shift
done

need "clang-format-$clang"
if [ $format = yes ]; then
  [ ${#cpp[@]} -eq 0 ] || "clang-format-$clang" -i "${cpp[@]}"
  exit 0
fi

mkdir -p "$build_dir/logs"
failed=()
check() {
  local name=$1
  shift
  echo "lint: $name"
  "$@" || failed+=("$name")
}

format() {
  local log=$build_dir/logs/clang-format.log
  [ ${#cpp[@]} -eq 0 ] || "clang-format-$clang" --dry-run --Werror "${cpp[@]}" 2>"$log" || {
    sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: error:.*/\1: not formatted/p' "$log" | sort -u
    echo "'make format' mends it; where: $log"
    return 1
  }
}

# A comment in the first three lines; what can't hold one is left out.
spdx() {
  local file status=0
  for file in "${files[@]}"; do
    case $file in LICENSE | *.json | *.db | tests/fuzz/corpus/* | deploy/debian/changelog) continue ;; esac
    head -n3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || {
      echo "$file: no 'SPDX-License-Identifier: Apache-2.0' in its first lines"
      status=1
    }
  done
  return $status
}

shells() {
  local file status=0
  for file in "${shell[@]}"; do
    if head -n1 "$file" | grep -q bash; then bash -n "$file" || status=1; else sh -n "$file" || status=1; fi
  done
  need shellcheck
  shellcheck --severity=warning "${shell[@]}" || status=1
  return $status
}

pythons() {
  local file
  for file in "${python[@]}"; do
    /usr/bin/python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$file" || return 1
  done
}

# clang checks the use of base/mutex.h, and knows nothing of the standard library's mutexes.
mutexes() {
  local std='std::(recursive_|timed_|shared_)*mutex|std::condition_variable|std::(lock_guard|unique_lock|scoped_lock|shared_lock)'
  ! git grep --untracked -nE "($std|pthread_(mutex|cond|rwlock)_)" -- src modules ':!src/base/mutex.h' || {
    echo "use Mutex, MutexLock and CondVar of base/mutex.h"
    return 1
  }
}

tidy() {
  need "clang-tidy-$clang"
  [ -f "$build_dir/compile_commands.json" ] || {
    echo "there is no $build_dir/compile_commands.json: run 'make lint', which makes it"
    return 1
  }
  [ -z "$left_out" ] || echo "lint: $left_out"
  local log=$build_dir/logs/clang-tidy.log status=0
  local script=(/usr/bin/python3 -B scripts/tidy.py --jobs "$jobs" --clang-tidy "clang-tidy-$clang" --checks "$more_checks")
  "${script[@]}" ${since:+--since "$since"} "$build_dir" "${tidied[@]}" >"$log" || status=1
  [ $fuzz = no ] || "${script[@]}" "$fuzz_dir" tests/fuzz >>"$log" || status=1
  [ $status != 0 ] || return 0
  grep -E '(warning|error):' "$log" | sort -u | head -n 60
  echo "the whole of it is in $log"
  return 1
}

tidied=(src modules)
more_checks='' fuzz=no left_out=''
leave_out() { left_out+=${left_out:+; }$1; }
[ $all = no ] || {
  tidied+=(tests)
  if [ -f "$fuzz_dir/compile_commands.json" ]; then
    fuzz=yes
  else
    leave_out "clang-tidy has LEFT OUT tests/fuzz, which $fuzz_dir alone compiles: 'make build-asan' makes that"
  fi
  grep -qs '^CLEAT_TESTS:STRING=ALL$' "$build_dir/CMakeCache.txt" ||
    leave_out "clang-tidy has LEFT OUT tests that $build_dir does not have: 'make build-tests TESTS=ALL' makes them"
  # Those that .clang-tidy leaves out for what they cost.
  more_checks=$(sed -n '/^# Not here/,/^Checks/{s/^#//;p}' .clang-tidy | grep -oE '(performance|bugprone|misc|modernize|readability)-[a-z-]+' | paste -sd,)
}
check "C++ formatting (clang-format-$clang)" format
check "SPDX lines" spdx
check "include directions" /usr/bin/python3 scripts/check_includes.py
check "mutexes" mutexes
check "names of helpers that are compiled together" /usr/bin/python3 -B scripts/check_unity.py
check "idioms that no compiler checks" /usr/bin/python3 -B scripts/check_idioms.py
check "tests that docs/tests.md names" /usr/bin/python3 -B scripts/check_promises.py
check "log lines that docs/logs.md has" /usr/bin/python3 -B scripts/check_logs.py
check "shell scripts" shells
check "Python files" pythons
[ $with_tidy = no ] || check "clang-tidy-$clang (minutes)" tidy

if [ ${#failed[@]} -gt 0 ]; then
  printf 'lint: failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo "lint: ok${left_out:+, but $left_out}"

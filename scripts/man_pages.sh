#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# man_pages.sh BIN_DIR OUT: the manual pages of all programs and of each of their commands (cleatctl-disk-create.1), compressed, made by
# help2man from what --help says. They bear the day of the Debian changelog, so that the same sources give the same pages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$1
out=$2

command -v help2man >/dev/null || {
  echo "man pages: help2man is missing: 'make setup' installs it" >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in cleatd cleat-engine cleatctl cleat-perf; do ln -s "$(realpath "$bin/$program")" "$work/$program"; done
cp deploy/upgrade.sh "$work/cleat-upgrade"
export PATH=$work:$PATH LC_ALL=C
SOURCE_DATE_EPOCH=$(date -d "$(sed -n '/^ -- /{s/.*>  //p;q}' deploy/debian/changelog)" +%s)
export SOURCE_DATE_EPOCH
version=$(sed -n '1s/.*(\(.*\)).*/\1/p' deploy/debian/changelog)
readonly version
mkdir -p "$out/man1" "$out/man8"

# $1: what the page is about in a few words; $2: section; then the command.
page() {
  local about=$1 section=$2 name
  shift 2
  name=$(IFS=-; echo "$*")
  printf '[see also]\n%s' "$see_also" >"$work/include"
  # help2man takes the program alone for the page's name.
  help2man --no-info --section="$section" --version-string="$version" --source=Cleat --name="$about" --include="$work/include" "$*" |
    sed -e "s/^\.TH [^\"]*/.TH ${name^^} /" -e "/^\.SH NAME/{n;s/^.* \\\\- /${name//-/\\\\-} \\\\- /}" | keep_lines |
    gzip -9n >"$out/man$section/$name.$section.gz"
}

# What help2man takes for indented text are examples and lists here, whose lines stay as they are.
keep_lines() {
  awk '/^\.(IP|TP|PP|SH|SS)/ && kept { print ".fi"; kept = 0 } { print } /^\.IP$/ { print ".nf"; kept = 1 }'
}

# The commands that --help lists, a name and its line each.
commands_of() {
  "$@" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\)  *\(.*\)/\1\t\2/p'
}

# The pages of each command of "$@", and of theirs.
pages_below() {
  local name about
  while IFS=$'\t' read -r name about; do
    page "$about" 1 "$@" "$name"
    pages_below "$@" "$name"
  done < <(commands_of "$@")
}

see_also=$'.BR cleatctl (1),\n.BR cleat-engine (8),\n.BR cleatd (8).\nAll of the documentation: /usr/share/doc/cleat, operations.md first.\n'
readonly see_also
page "the API of Cleat, which attaches cloud disks to virtual machines" 8 cleatd
page "serves Cleat's disks to virtual machines over vhost-user" 8 cleat-engine
page "put an installed version of Cleat to work under running guests" 8 cleat-upgrade
page "attach cloud disks to virtual machines" 1 cleatctl
page "load generator for vhost-user disks" 1 cleat-perf
pages_below cleatctl
pages_below cleat-perf

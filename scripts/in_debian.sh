#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a clone of this tree's last commit in the root of another Debian release:
#   scripts/in_debian.sh trixie make demo test
# The root is made by mmdebstrap once, of this machine's own mirror, in build/debian-SUITE/root, and kept, with the packages that
# the command installs and what it builds; remove the folder to begin anew. Needs root, and says how long each part took.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'in_debian: %s\n' "$*"; }
die() {
  printf 'in_debian: error: %s\n' "$*" >&2
  exit 1
}

[ $# -ge 2 ] || die "usage: scripts/in_debian.sh SUITE COMMAND..."
suite=$1
shift
[[ $suite =~ ^[a-z]+$ ]] || die "'$suite' is no name of a Debian release, such as trixie"
[ "$(id -u)" -eq 0 ] || die "a root of another release is entered by chroot, which takes root"
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: apt-get install mmdebstrap"
readonly folder=$PWD/build/debian-$suite
readonly root=$folder/root
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg

if [ ! -e "$folder/made" ]; then
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' | awk 'NR == 1')
  [ -n "$mirror" ] || die "apt knows no source of Debian's packages on this machine, so where $suite comes from is unknown"
  say "makes a root of $suite with packages of $mirror"
  rm -rf "$folder"
  mkdir -p "$folder"
  mmdebstrap --quiet --variant=apt --include=ca-certificates,git,make "$suite" "$root" \
    "deb [signed-by=$keyring] $mirror $suite main" >"$folder/mmdebstrap.log" 2>&1 ||
    die "mmdebstrap failed, see $folder/mmdebstrap.log: $(tail -n1 "$folder/mmdebstrap.log")"
  touch "$folder/made"
  say "made it ($((SECONDS / 60)) min)"
fi

# The last commit alone; what an earlier run has built stays.
if [ -d "$root/src/.git" ]; then
  git -C "$root/src" fetch -q "$PWD" HEAD
  git -C "$root/src" checkout -q --force --detach FETCH_HEAD
else
  git clone -q "$PWD" "$root/src"
fi
cp --remove-destination "$(realpath /etc/resolv.conf)" "$root/etc/resolv.conf"

# Process and mount namespaces of its own: all that the command leaves behind ends with it, and with this script, whatever ends that
# (unshare itself takes no SIGTERM).
begin=$SECONDS status=0
# shellcheck disable=SC2016 # the inner shell expands these
setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child bash -c '
  set -e
  root=$1
  shift
  mount --make-rprivate /
  mount --rbind /dev "$root/dev"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys" # with the control groups
  mount -t tmpfs tmpfs "$root/run"
  exec env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" bash -c "cd /src && exec \"\$@\"" bash "$@"' bash "$root" "$@" || status=$?
say "$suite: $* ended with status $status after $(((SECONDS - begin) / 60)) min"
exit $status

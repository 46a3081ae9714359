#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_root.sh DEB ROOT: makes ROOT, a tar archive of a small Debian with systemd, dpkg and what the package DEB depends on -
# and nothing else, so that a dependency that DEB does not name is missing there. Of this machine's own files and package
# database: nothing is downloaded, and root is not needed. Made anew when packages, DEB's dependencies or this script changed.
set -euo pipefail
deb=$1
root=$2

# Debian's essential packages and what a service manager takes. No udev: the kernel names the devices.
readonly base=(base-files base-passwd bash coreutils dash diffutils dpkg findutils grep gzip init-system-helpers libc-bin mawk perl-base
  procps sed systemd tar util-linux)
readonly left_out='^/usr/share/(doc|man|info|locale|i18n|lintian|bug|zoneinfo|zsh|bash-completion)/|/gconv/|^/usr/lib/debug/'

die() {
  printf 'guest root: error: %s\n' "$*" >&2
  exit 1
}

installed() { dpkg-query -W -f '${db:Status-Status} ${binary:Package} ${Version}\n' "$@" 2>/dev/null | sed -n 's/^installed //p'; }

# The names in a package's dependencies, alternatives too.
depends_of() { dpkg-deb -f "$1" Depends Pre-Depends | sed 's/^[A-Za-z-]*: //; s/([^)]*)//g; s/[,|]/\n/g' | tr -d ' '; }

# The installed packages of these names, or that provide them, with all they depend on, alternatives too. What this machine has
# not, it does without as well; the test says so if that was wrong.
closure() {
  dpkg-query -W -f '${db:Status-Status}\t${Package}\t${Depends},${Pre-Depends}\t${Provides}\n' |
    awk -F '\t' -v wanted="$*" '
      function names_in(list, names) {
        gsub(/\([^)]*\)|:[a-z0-9]+| /, "", list)
        gsub(/\|/, ",", list)
        return split(list, names, ",")
      }
      function want(name) { if (!(name in known)) { known[name]; queue[++last] = name } }
      $1 == "installed" {
        depends[$2] = $3
        providers[$2] = providers[$2] " " $2
        for (n = names_in($4, names); n > 0; n--) providers[names[n]] = providers[names[n]] " " $2
      }
      END {
        for (n = split(wanted, names, " "); n > 0; n--) want(names[n])
        while (first < last) {
          for (n = split(providers[queue[++first]], packages, " "); n > 0; n--) {
            if (packages[n] in taken) continue
            taken[packages[n]]
            print packages[n]
            for (m = names_in(depends[packages[n]], names); m > 0; m--) want(names[m])
          }
        }
      }'
}

mapfile -t wanted < <(depends_of "$deb")
mapfile -t packages < <(closure "${base[@]}" "${wanted[@]}")
mapfile -t packages < <(installed "${packages[@]}" | sort)
[ ${#packages[@]} -gt 0 ] || die "dpkg knows no packages here: this takes a Debian machine"
stamp=$(printf '%s\n' "${packages[@]}" | cat - "${BASH_SOURCE[0]}" | sha256sum)
if [ -e "$root" ] && [ "$(cat "$root.stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
packages=("${packages[@]%% *}")

work=$(mktemp -d "$root.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$tree"/{dev,etc,proc,root,run,sys,tmp,usr/{bin,sbin,lib,lib64},var/{lib/dpkg/{info,triggers,updates},log,tmp,cache}}
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$tree/$folder"; done
chmod 1777 "$tree/tmp" "$tree/var/tmp"

# Their names, in the folders where they really are; folders that hold nothing are not needed.
dpkg-query -L "${packages[@]}" | grep '^/' | sed -E 's#^/(bin|sbin|lib|lib64)/#/usr/\1/#' | grep -vE "$left_out" | sort -u |
  while read -r file; do if [ -h "$file" ] || [ -f "$file" ]; then echo "${file#/}"; fi; done >"$work/files"
# Files that only root may read are of no use here, and this may not be root.
tar -C / --no-recursion --ignore-failed-read -T "$work/files" -cf - 2>/dev/null | tar -C "$tree" -xf -

# dpkg's database of just these.
dpkg-query -s "${packages[@]}" >"$tree/var/lib/dpkg/status"
for package in "${packages[@]}"; do
  for file in "/var/lib/dpkg/info/$package".list "/var/lib/dpkg/info/${package%:*}".list; do
    if [ -e "$file" ]; then cp "$file" "$tree/var/lib/dpkg/info/"; fi
  done
done
echo 1 >"$tree/var/lib/dpkg/info/format"

# What maintainer scripts would have made.
cp "$tree"/usr/share/base-passwd/passwd.master "$tree/etc/passwd"
cp "$tree"/usr/share/base-passwd/group.master "$tree/etc/group"
ln -sf mawk "$tree/usr/bin/awk"
ln -sf dash "$tree/usr/bin/sh"
cp /etc/ld.so.cache "$tree/etc/"
echo "ID=debian" >"$tree/etc/os-release"
echo "127.0.0.1 localhost" >"$tree/etc/hosts"
echo guest >"$tree/etc/hostname"
printf '%032x\n' 1 >"$tree/etc/machine-id"
mkdir -p "$tree/etc/systemd/system/multi-user.target.wants"
# Nobody needs these here, and each takes a moment of an emulated machine.
for unit in serial-getty@ttyS0.service console-getty.service getty.target getty-static.service dev-hugepages.mount \
  dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount systemd-update-utmp.service \
  systemd-update-utmp-runlevel.service systemd-random-seed.service modprobe@.service systemd-modules-load.service \
  proc-sys-fs-binfmt_misc.automount systemd-logind.service systemd-user-sessions.service; do ln -s /dev/null "$tree/etc/systemd/system/$unit"; done
# They are run whenever systemd reads its units.
rm -f "$tree"/usr/lib/systemd/system-generators/*
ln -s /usr/lib/systemd/system/multi-user.target "$tree/etc/systemd/system/default.target"
cat >"$tree/etc/systemd/system/guest-agent.service" <<'END'
[Service]
ExecStart=/bin/sh /usr/lib/cleat-guest-agent
KillMode=process
END
ln -s ../guest-agent.service "$tree/etc/systemd/system/multi-user.target.wants/"

tar -C "$tree" --owner=0 --group=0 --numeric-owner --sort=name -cf "$root.new" .
mv "$root.new" "$root"
echo "$stamp" >"$root.stamp"
echo "guest root: ${#packages[@]} packages, $(($(stat -c %s "$root") >> 20)) MiB, in $root"

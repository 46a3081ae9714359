#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a Debian 12 or 13 machine ready to build, test and demonstrate Cleat:
#   1. says which packages are missing and why each is wanted, and installs those alone;
#   2. QEMU >= 9.1, from the release itself or, where that is older, from its backports suite;
#   3. the guests' kernel and initramfs, unpacked below build/guest; no kernel is installed on this machine.
# Only what the purpose needs. Runs as root, or as a user with sudo. With nothing missing it touches neither apt nor the network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly min_qemu=9.1
readonly lock_timeout_s=300
readonly update_attempts=5

say() { printf 'setup: %s\n' "$*"; }
die() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 1
}

usage() {
  cat <<'END'
usage: scripts/setup.sh [--for PURPOSE] [--list]
  --for build       what builds the product
  --for unit        ... and tests its parts
  --for demo        what builds the product, and shows it: QEMU, and what guests boot from
  --for demo-ceph   ... with a Ceph cluster
  --for bench       ... and measures it
  --for lint        what checks the sources
  --for test        all of these, and what tests need (without --for)
  --list            print each package with the reason for it, and install nothing
  --packages-only   leave out what guests boot from
END
}

# package, who needs it first (build, unit, demo, ceph, bench, lint or test), why
package_table() {
  local clang=$1
  cat <<END
make                    build   build
cmake                   build   build
ninja-build             build   build
g++                     build   compiler
pkg-config              build   build
libdpdk-dev             build   vhost-user
liburing-dev            build   files
libgrpc++-dev           build   API
protobuf-compiler       build   API
protobuf-compiler-grpc  build   API
libprotobuf-dev         build   API
protobuf-c-compiler     build   engine-protocol
libprotobuf-c-dev       build   engine-protocol
librbd-dev              build   Ceph
librados-dev            build   Ceph
libssl-dev              build   API-over-TLS
zlib1g-dev              build   checksums-of-pools
libibverbs-dev          build   RDMA
librdmacm-dev           build   RDMA
libsqlite3-dev          build   store
libblkid-dev            build   signatures-on-drives
libcli11-dev            build   command-lines
prometheus-cpp-dev      build   metrics
libcivetweb-dev         build   metrics
libyaml-cpp-dev         build   cleatctl
nlohmann-json3-dev      build   cleat-perf
libspdlog-dev           build   logging
libfmt-dev              build   logging
dpkg-dev                build   package
file                    build   package
binutils                build   package
help2man                build   manual-pages
ccache                  build   rebuilds
python3                 demo    scripts
busybox-static          demo    guest
fio                     demo    guest
nvme-cli                demo    guest
e2fsprogs               demo    guest
cpio                    demo    guest
kmod                    demo    guest
xz-utils                demo    guest
iproute2                demo    guest
ibverbs-providers       demo    guest
ceph-mon                ceph    cluster
ceph-osd                ceph    cluster
ceph-common             ceph    cluster
python3-rados           ceph    cluster
valgrind                bench   instruction-counts
gnuplot-nox             bench   plots
clang-format-$clang         lint    formatting
clang-tidy-$clang           lint    clang-tidy
shellcheck              lint    shell-scripts
clang-$clang                lint    sanitizers,fuzzing
libclang-rt-$clang-dev      test    sanitizers,fuzzing
openssl                 test    certificates
lintian                 test    package
libgtest-dev            unit    tests
libgmock-dev            unit    tests
gcovr                   test    coverage
cryptsetup-bin          test    guest
zstd                    test    guest
sg3-utils               test    guest
sdparm                  test    guest
zsh                     test    completion
udev                    test    guest
systemd                 test    guest
END
}

# Who needs what, as in the table, for each purpose; and the programs of QEMU: guests run in the first, the second, of the
# package qemu-utils, is what the benchmarks compare with.
choose_purpose() {
  qemu_programs=(qemu-system-x86_64)
  images=(fio)
  case $1 in
    build) sets='build' qemu_programs=() images=() ;;
    unit) sets='build unit' qemu_programs=() images=() ;;
    demo) sets='build demo' ;;
    demo-ceph) sets='build demo ceph' ;;
    bench) sets='build unit demo ceph bench' qemu_programs+=(qemu-storage-daemon) ;;
    lint) sets='build lint' qemu_programs=() images=() ;;
    test) sets='build unit demo ceph bench lint test' qemu_programs+=(qemu-storage-daemon) images=(fio scsi crypt systemd) ;;
    *) usage >&2 && exit 2 ;;
  esac
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# $1: one of qemu_programs
qemu_version() { "$1" --version 2>/dev/null | sed -n '1s/.*version \([0-9.]*\).*/\1/p'; }

qemu_is_recent() {
  local program version
  for program in "${qemu_programs[@]}"; do
    version=$(qemu_version "$program") && [ -n "$version" ] && dpkg --compare-versions "$version" ge "$min_qemu" ||
      return 1
  done
}

# How this user becomes root; decided when something must be installed, never earlier.
become_root() {
  local -r as_root_hint="scripts/setup.sh --for $purpose --packages-only"
  if [ "$(id -u)" -eq 0 ]; then
    as_root=()
  elif ! command -v sudo >/dev/null; then
    die "packages are missing and this is neither root nor a user with sudo. As root, run: $as_root_hint"
  elif sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  elif [ -t 0 ]; then
    say "sudo will ask for your password"
    as_root=(sudo)
  else
    die "packages are missing, and sudo wants a password but there is no terminal. As root, run: $as_root_hint"
  fi
}

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
    -o "DPkg::Lock::Timeout=$lock_timeout_s" -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@"
}

# The lists have a lock that DPkg::Lock::Timeout doesn't cover, so a concurrent update is waited for here.
apt_update() {
  local attempt
  for ((attempt = 1; attempt <= update_attempts; attempt++)); do
    apt update >"$log" 2>&1 && return 0
    say "apt-get update failed (attempt $attempt of $update_attempts): $(grep -m1 '^E:' "$log" || tail -n1 "$log")"
    sleep $((attempt * 4))
  done
  die "apt-get update keeps failing; its output is in $log"
}

apt_install() {
  apt install --no-install-recommends "$@" >>"$log" 2>&1 ||
    die "apt-get install $* failed: $(grep -m1 '^E:' "$log" || true) (its output is in $log)"
}

# Prints "URI signed-by" of this machine's own source for suite $1, component main. Reads the one-line format
# and deb822; a key that is written into the source itself is not a file and is left out.
own_mirror() {
  local file files=()
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -r "$file" ] && files+=("$file")
  done
  [ ${#files[@]} -gt 0 ] || return 0
  awk -v suite="$1" '
    function has(list, word,   i, n, parts) {
      n = split(list, parts, /[ \t]+/)
      for (i = 1; i <= n; i++) if (parts[i] == word) return 1
      return 0
    }
    function offer(uris, suites, components, key,   parts) {
      if (done || !has(suites, suite) || !has(components, "main")) return
      split(uris, parts, /[ \t]+/)
      print parts[1], (key ~ /^\// ? key : "")
      done = 1
    }
    function end_stanza() {
      if (field["types"] ~ /(^| )deb( |$)/ && tolower(field["enabled"]) != "no")
        offer(field["uris"], field["suites"], field["components"], field["signed-by"])
      delete field
    }
    FNR == 1 { end_stanza(); deb822 = (FILENAME ~ /\.sources$/) }
    /^[ \t]*#/ { next }
    deb822 && /^[ \t]*$/ { end_stanza(); next }
    deb822 && /^[A-Za-z-]+:/ {
      name = tolower($0); sub(/:.*/, "", name)
      value = $0; sub(/^[^:]*:[ \t]*/, "", value)
      field[name] = value; next
    }
    deb822 { field[name] = field[name] " " $1; next }
    $1 == "deb" {
      line = $0; key = ""; sub(/^[ \t]+/, "", line)
      if (match(line, /\[[^]]*\]/)) {
        options = substr(line, RSTART + 1, RLENGTH - 2)
        line = substr(line, 1, RSTART - 1) substr(line, RSTART + RLENGTH)
        if (match(options, /signed-by=[^ \t]+/)) key = substr(options, RSTART + 10, RLENGTH - 10)
      }
      split(line, word, /[ \t]+/)
      components = line; sub(/^deb[ \t]+[^ \t]+[ \t]+[^ \t]+[ \t]+/, "", components)
      offer(word[2], word[3], components, key)
    }
    END { end_stanza() }' "${files[@]}"
}

add_backports() {
  local codename=$1 uri key
  local -r source=/etc/apt/sources.list.d/cleat-backports.sources
  # apt itself reads every format here.
  # shellcheck disable=SC2016 # apt expands this
  if apt-get indextargets --format '$(RELEASE)' 'Created-By: Packages' | grep -qx "$codename-backports"; then
    return 0
  fi
  read -r uri key < <(own_mirror "$codename") || true
  [ -n "$uri" ] || die "no apt source for $codename main was found on this machine, so the address of its backports" \
    "is unknown: add the suite $codename-backports to apt's sources and run this again"
  [ -n "$key" ] || key=/usr/share/keyrings/debian-archive-keyring.gpg
  say "adds the suite $codename-backports of this machine's own mirror as $source"
  printf '%s\n' '# Added by Cleat for QEMU. Packages are taken from here only when asked for by name.' \
    'Types: deb' "URIs: $uri" "Suites: $codename-backports" 'Components: main' "Signed-By: $key" |
    "${as_root[@]}" tee "$source" >/dev/null
}

# Whether apt would install each of "$@" in a version that is recent enough. Asked of each: one that came from backports is a
# candidate itself, while apt still takes the others from the release.
candidates_are_recent() {
  local package candidate
  for package in "$@"; do
    candidate=$(apt-cache policy "$package" | awk '$1 == "Candidate:" { print $2 }')
    dpkg --compare-versions "${candidate:-0}" ge "1:$min_qemu" || return 1
  done
}

install_qemu() {
  local codename=$1 qemu_packages=(qemu-system-x86)
  [ ${#qemu_programs[@]} -lt 2 ] || qemu_packages+=(qemu-utils)
  if candidates_are_recent "${qemu_packages[@]}"; then
    apt_install "${qemu_packages[@]}"
  else
    add_backports "$codename"
    apt_update
    apt_install -t "$codename-backports" "${qemu_packages[@]}"
  fi
  qemu_is_recent || die "QEMU $min_qemu or later is needed; what is first in PATH is" \
    "$(for program in "${qemu_programs[@]}"; do
      echo "$(command -v "$program" || echo "no $program") $(qemu_version "$program")"
    done)"
}

main() {
  local list_only=no with_images=yes
  purpose='test'
  while [ $# -gt 0 ]; do
    case $1 in
      --for) purpose=${2:-} && shift ;;
      --list) list_only=yes ;;
      --packages-only) with_images=no ;; # for who is root while the tree is somebody else's
      -h | --help) usage && exit 0 ;;
      *) usage >&2 && exit 2 ;;
    esac
    shift
  done
  choose_purpose "$purpose"

  # shellcheck source=/dev/null
  . /etc/os-release
  local clang
  case "${ID:-}-${VERSION_ID:-}" in
    debian-12) clang=16 ;;
    debian-13) clang=19 ;;
    *) die "this script knows Debian 12 and 13, not '${PRETTY_NAME:-this system}'; 'scripts/setup.sh --list'" \
      "on Debian names what is needed, and 'make build' doesn't need this script" ;;
  esac

  local name set why table missing=() wanted=()
  table=$(package_table "$clang" | while read -r name set why; do
    [[ " $sets " != *" $set "* ]] || echo "$name $why"
  done)
  if [ $list_only = yes ]; then
    awk '{ printf "%-24s%s\n", $1, $2 }' <<<"$table"
    [ ${#qemu_programs[@]} -lt 1 ] || printf '%-24s%s\n' qemu-system-x86 "guest (>= $min_qemu)"
    [ ${#qemu_programs[@]} -lt 2 ] || printf '%-24s%s\n' qemu-utils "benchmarks (>= $min_qemu)"
    exit 0
  fi
  while read -r name why; do
    installed "$name" || {
      missing+=("$name")
      wanted+=("$name ($why)")
    }
  done <<<"$table"

  mkdir -p build/logs
  log=build/logs/setup-apt.log
  if [ ${#missing[@]} -gt 0 ] || ! qemu_is_recent; then
    qemu_is_recent || wanted+=("QEMU >= $min_qemu (guest)")
    say "will install: $(printf '%s, ' "${wanted[@]}" | sed 's/, $//')"
    become_root
    apt_update
    say "downloads and installs; apt's output goes to $log"
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
    qemu_is_recent || install_qemu "$VERSION_CODENAME"
    say "installed"
  else
    say "every package for '$purpose' is installed"
  fi

  [ ${#images[@]} -eq 0 ] || [ $with_images = no ] || scripts/guest/make_image.sh "${images[@]}"
}

main "$@"

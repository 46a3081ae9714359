#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_image.sh [fio|scsi|crypt|systemd|nvme|rdma ...]: prepares what test guests boot from, in build/guest (or $CLEAT_GUEST_DIR), without
# root. All images, or those that are named:
#   vmlinuz             Debian's cloud kernel, unpacked from its package, never installed
#   initramfs.cpio      busybox, the virtio and SCSI modules, e2fsprogs, blkdiscard, scripts/guest/init (always)
#   initramfs-fio.cpio  the same, and this machine's fio with its libraries
#   initramfs-scsi.cpio as the first, with sg3-utils, sdparm, lsblk and udev, which names disks by their identity
#   initramfs-crypt.cpio as the first, with cryptsetup and the kernel's dm-crypt
#   initramfs-systemd.cpio boots what make_root.sh makes, with systemd
#   initramfs-nvme.cpio as the first, with the kernel's NVMe driver, its NVMe/TCP host and target and virtio network cards, for vmlinuz-nvme: Linux 6.12,
#                       whose io_uring gives drives commands; not the cloud kernel, which has no target
#   initramfs-rdma.cpio that, with soft-RoCE (rxe), the RDMA connection manager, the kernel's NVMe/RDMA host and target, the libraries of rdma-core and
#                       the tool rdma
# Only what is missing or older than its inputs is made again.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=${CLEAT_GUEST_DIR:-$root/build/guest}

readonly modules=(virtio_pci virtio_blk virtio_scsi sd_mod sg)
# The target asks for crc32c by its name, and a connection of its for TLS and the cipher, so that no dependency brings them.
readonly nvme_modules=(virtio_pci virtio_blk virtio_net nvme crc32c_generic aesni_intel tls nvmet_tcp nvme_tcp)
# rxe asks for crc32 by its name. It wants a network device other than lo: dummy0.
readonly rdma_modules=(crc32_generic dummy rdma_rxe ib_uverbs rdma_ucm nvmet_rdma nvme_rdma)
# Of dm-crypt alone: aes-xts is found by its name, so it has to be there before.
readonly crypt_modules=(aesni_intel xts dm_crypt)
# Busybox's shell prefers its own applets, so these go by other names (mke2fs knows ext4 as mkfs.ext4) or by path.
readonly base_tools=(mkfs.ext4 fsck.ext4 resize2fs /usr/sbin/blkdiscard)
readonly fio_tools=(fio)
readonly sg_tools=(sg_inq sg_vpd sg_readcap sg_luns sg_opcodes sg_unmap sg_write_same sg_compare_and_write sg_verify
  sg_reset sg_modes sg_wr_mode sg_sync sg_requests sg_start sg_senddiag sg_turs sg_persist sg_get_lba_status sg_write_verify sg_raw
  sg_dd sdparm)
readonly crypt_tools=(cryptsetup)
readonly rdma_tools=(rdma)
# libibverbs finds the driver of an adapter by a file of its name, which names a library beside its own.
readonly rdma_libraries=(libibverbs.so.1 librdmacm.so.1 libibverbs/librxe-rdmav34.so)
readonly rdma_driver=/etc/libibverbs.d/rxe.driver
readonly scsi_tools=("${sg_tools[@]}" lsblk udevadm /usr/lib/udev/scsi_id)
readonly udev_rules=(50-udev-default.rules 60-block.rules 60-persistent-storage.rules)

# Debian keeps mkfs.ext4 in sbin, which a user's PATH leaves out.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { printf 'guest image: %s\n' "$*"; }
die() {
  printf 'guest image: error: %s\n' "$*" >&2
  exit 1
}

# apt as this user; with lists of our own where the system's are absent or out of date.
apt_options=()
use_own_lists() {
  mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
  apt_options=(-o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=)
  apt-get -q "${apt_options[@]}" -o Acquire::Languages=none update >"$work/apt.log" 2>&1 ||
    die "apt-get update failed: $(grep -m1 '^E:' "$work/apt.log")"
}

# Downloads the package that the meta-package $1 of a Debian kernel stands for into $work.
download_kernel() {
  local package
  package=$(apt-cache "${apt_options[@]}" depends "$1" 2>/dev/null |
    sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n1)
  [ -n "$package" ] || return 1
  rm -f "$work"/linux-image-*.deb
  say "downloads $package and unpacks it below ${dir#"$root/"} (it is not installed)"
  (cd "$work" && apt-get -q "${apt_options[@]}" -o APT::Sandbox::User= -o Acquire::Retries=3 download "$package") \
    >"$work/apt.log" 2>&1
}

# From the tree $1 of kernel $2 into the folder $3: the modules that follow and what they need, with a list in loading order.
copy_modules() {
  local tree=$1 version=$2 to=$dir/$3 module path
  shift 3
  rm -rf "$to"
  mkdir "$to"
  for module in "$@"; do
    while read -r _ path _; do
      # Each once.
      grep -qx "$(basename "$path")" "$to/order" 2>/dev/null && continue
      cp "$path" "$to/"
      basename "$path" >>"$to/order"
    done < <(modprobe -d "$tree" -S "$version" --show-depends "$module" | grep '^insmod ')
  done
  echo "$*" >"$to/wanted"
}

# The kernel that the meta-package $1 stands for, unpacked in $tree; its version in $version.
unpack_kernel() {
  [ "$(dpkg --print-architecture)" = amd64 ] || die "guests need an amd64 machine"
  download_kernel "$1" || { use_own_lists && download_kernel "$1"; } ||
    die "apt offers no $1: $(tail -n1 "$work/apt.log" 2>/dev/null)"
  tree=$work/kernel
  rm -rf "$tree"
  dpkg-deb -x "$work"/linux-image-*.deb "$tree"
  version=$(basename "$tree"/boot/vmlinuz-*)
  version=${version#vmlinuz-}
  # Debian 13 compresses modules, which busybox's insmod doesn't read.
  find "$tree" -name '*.ko.xz' -exec xz -d {} +
  # depmod's lists come with a kernel's installation, not with its package.
  if [ ! -d "$tree/lib" ]; then ln -s usr/lib "$tree/lib"; fi
  depmod -b "$tree" "$version"
}

# The kernel that unpack_kernel has unpacked becomes $1 in $dir.
take_kernel() {
  cp "$tree/boot/vmlinuz-$version" "$dir/$1.new"
  mv "$dir/$1.new" "$dir/$1"
}

make_kernel() {
  local tree version
  unpack_kernel linux-image-cloud-amd64
  copy_modules "$tree" "$version" modules "${modules[@]}"
  copy_modules "$tree" "$version" modules-crypt "${modules[@]}" "${crypt_modules[@]}"
  take_kernel vmlinuz
}

# Debian 12 has 6.12 beside its own kernel; later ones are as new themselves.
make_nvme_kernel() {
  local tree version package=linux-image-amd64
  # shellcheck source=/dev/null
  if [ "$(. /etc/os-release && echo "$VERSION_ID")" = 12 ]; then package=linux-image-6.12-amd64; fi
  unpack_kernel "$package"
  copy_modules "$tree" "$version" modules-nvme "${nvme_modules[@]}"
  copy_modules "$tree" "$version" modules-rdma "${nvme_modules[@]}" "${rdma_modules[@]}"
  take_kernel vmlinuz-nvme
}

# Copies the libraries that the file $2 loads to the same paths below $1.
copy_libraries_of() {
  local tree=$1 file
  while read -r file; do
    [ -e "$tree$file" ] || install -D "$file" "$tree$file"
  done < <(ldd "$2" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[ \t]*\(\/[^ ]*\) (.*/\1/p')
}

# Copies programs (plain names to /bin) and the libraries they load to the same paths below $1.
copy_programs() {
  local tree=$1 name file
  shift
  for name in "$@"; do
    file=$(command -v "$name") || die "$name is missing: run 'make setup'"
    case $name in
      /*) install -D "$file" "$tree$name" ;;
      *) install -D "$file" "$tree/bin/$name" ;;
    esac
    copy_libraries_of "$tree" "$file"
  done
}

# What names disks below /dev/disk when udevadm is there.
copy_udev() {
  local rule
  for rule in "${udev_rules[@]}"; do
    install -D -m 644 "/usr/lib/udev/rules.d/$rule" "$1/usr/lib/udev/rules.d/$rule"
  done
  # Where Debian 12's looks for its programs.
  ln -s ../usr/lib/udev "$1/lib/udev"
  # The daemon is udevadm by another name.
  mkdir -p "$1/usr/lib/systemd"
  ln -s /bin/udevadm "$1/usr/lib/systemd/systemd-udevd"
}

# What programs load of rdma-core at run time.
copy_rdma() {
  local library
  for library in "${rdma_libraries[@]/#//usr/lib/x86_64-linux-gnu/}"; do
    [ -e "$library" ] || die "$library is missing: run 'make setup'"
    install -D "$library" "$1$library"
    copy_libraries_of "$1" "$library"
  done
  install -D -m 644 "$rdma_driver" "$1$rdma_driver"
}

# $1: name of the image; $2: its init; $3: folder of its modules; the rest: programs it carries.
make_initramfs() {
  local name=$1 init=$2 tree=$work/$1 modules_dir=$dir/$3
  shift 3
  mkdir -p "$tree"/{bin,dev,etc,lib/modules,mnt,proc,run,sys,tmp}
  install -m 755 "$here/$init" "$tree/init"
  install -m 755 "$here/agent" "$tree/agent"
  cp "$modules_dir"/* "$tree/lib/modules/"
  install "$(command -v busybox)" "$tree/bin/busybox"
  local applet
  for applet in $(busybox --list); do
    [ "$applet" = busybox ] || ln -s busybox "$tree/bin/$applet"
  done
  copy_programs "$tree" "$@"
  if [ -e "$tree/bin/udevadm" ]; then copy_udev "$tree"; fi
  if [ -e "$tree/bin/rdma" ]; then copy_rdma "$tree"; fi
  ln -sf /proc/mounts "$tree/etc/mtab"
  (cd "$tree" && find . -print | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) >"$dir/$name.new"
  mv "$dir/$name.new" "$dir/$name"
}

# Whether the file $1 has come since the file $2 was made: a package's files keep the time of its build, but not that of their change.
is_newer() { [ -n "$(find -L "$1" -maxdepth 0 -newercm "$2")" ]; }

# $1: an image; the rest: what it carries.
is_stale() {
  local image=$1 input
  shift
  [ -e "$image" ] || return 0
  for input in "$dir/vmlinuz" "$here/init" "$here/init_systemd" "$here/agent" "$here/make_image.sh" "$(command -v busybox)"; do
    if is_newer "$input" "$image"; then return 0; fi
  done
  for input in "$@"; do
    if is_newer "$(command -v "$input")" "$image"; then return 0; fi
  done
  return 1
}

# As make_nvme_kernel, when it is needed.
refresh_nvme_kernel() {
  if [ ! -e "$dir/vmlinuz-nvme" ] ||
    [ "$(cat "$dir/modules-rdma/wanted" 2>/dev/null)" != "${nvme_modules[*]} ${rdma_modules[*]}" ]; then
    make_nvme_kernel
  fi
}

# As make_initramfs, when it is needed.
refresh_initramfs() {
  local name=$1
  is_stale "$dir/$name" "${@:4}" || return 0
  say "builds $name"
  make_initramfs "$@"
}

[ $# -gt 0 ] || set -- fio scsi crypt systemd nvme rdma
for program in busybox cpio depmod; do
  command -v "$program" >/dev/null || die "$program is missing: run 'make setup'"
done
mkdir -p "$dir"
# Two builds at once, of two trees' tests for instance, would tread on each other.
exec 9>"$dir/lock"
flock -w 300 9 || die "another make_image.sh has held $dir/lock for 5 minutes"
work=$(mktemp -d "$dir/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ ! -e "$dir/vmlinuz" ] ||
  [ "$(cat "$dir/modules-crypt/wanted" 2>/dev/null)" != "${modules[*]} ${crypt_modules[*]}" ]; then
  make_kernel
fi
refresh_initramfs initramfs.cpio init modules "${base_tools[@]}"
for image in "$@"; do
  name=initramfs-$image.cpio
  case $image in
    fio) refresh_initramfs "$name" init modules "${base_tools[@]}" "${fio_tools[@]}" ;;
    scsi) refresh_initramfs "$name" init modules "${base_tools[@]}" "${scsi_tools[@]}" ;;
    crypt) refresh_initramfs "$name" init modules-crypt "${base_tools[@]}" "${crypt_tools[@]}" ;;
    systemd) refresh_initramfs "$name" init_systemd modules ;;
    nvme)
      refresh_nvme_kernel
      refresh_initramfs "$name" init modules-nvme "${base_tools[@]}"
      ;;
    rdma)
      refresh_nvme_kernel
      refresh_initramfs "$name" init modules-rdma "${base_tools[@]}" "${rdma_tools[@]}"
      ;;
    *) die "there is no image '$image'" ;;
  esac
done
say "ready in ${dir#"$root/"}"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_deb.sh BUILD_DIR [--fast]: the Debian packages of what is built there, in BUILD_DIR/packages: the product, and its debug symbols.
# --fast: hardly compressed, for tests.
# CPack makes both; the latter as Ubuntu names it, with sums of other paths, and as programs, which is put right here.
set -euo pipefail
cd "$1"
compression=(-Zxz)
[ "${2:-}" != --fast ] || compression=(-Zgzip -z1)

rm -rf packages
mkdir -p logs
cpack -G DEB -D CPACK_DEBIAN_COMPRESSION_TYPE=none >logs/cpack.log 2>&1 || {
  cat logs/cpack.log >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for package in packages/*.deb packages/*.ddeb; do
  tree=$work/tree
  rm -rf "$tree"
  dpkg-deb --raw-extract "$package" "$tree"
  if [[ $package == *.ddeb ]]; then
    name=$(dpkg-deb --field "$package" Package)
    find "$tree/usr" -type f -exec chmod 0644 {} +
    mkdir -p "$tree/usr/share/doc"
    ln -s "${name%-dbgsym}" "$tree/usr/share/doc/$name" # the package that it depends on has what Debian wants there
    (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
    sed -i '/^Package-Type:/d' "$tree/DEBIAN/control"
  fi
  dpkg-deb --root-owner-group "${compression[@]}" --build "$tree" "$work/out.deb" >/dev/null
  rm "$package"
  mv "$work/out.deb" "${package%.*}.deb"
done
ls -l packages/*.deb

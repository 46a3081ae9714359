#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the engine encrypts is what Linux' dm-crypt does: a disk written by one is read by the other, both ways, for both
ciphers and both data units. The guest has the encrypted file as an ordinary disk and opens it with cryptsetup."""

import base64
import hashlib
import os
import subprocess
import unittest

from cleat_guest import BenchTest
from cleat_guest.guest import Guest

DISK_BYTES = 8 << 20
# Name of the disk -> (cipher, bytes of a data unit)
DISKS = {
    "c256u512": ("aes-256-xts", 512),
    "c256u4096": ("aes-256-xts", 4096),
    "c128u512": ("aes-128-xts", 512),
    "c128u4096": ("aes-128-xts", 4096),
}


def key_bytes(cipher: str) -> int:
    """Both of the two AES keys that XTS takes."""
    return 64 if cipher == "aes-256-xts" else 32


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Encryption(BenchTest):

    def setUp(self) -> None:
        for name, (cipher, _) in DISKS.items():
            self.write(f"{name}.key", os.urandom(key_bytes(cipher)))
            self.write(f"{name}.plain", os.urandom(DISK_BYTES))

    def write(self, name: str, content: bytes) -> None:
        with open(self.bench.path(name), "wb") as file:
            file.write(content)

    def crypto_file(self, action: str, name: str, plain: str) -> None:
        cipher, unit = DISKS[name]
        program = os.path.join(self.bench.bin_dir, "..", "tests", "crypto_file")
        subprocess.run([program, action, "--disk", self.bench.path(f"{name}.img"), "--plain", self.bench.path(plain),
                        "--key", self.bench.path(f"{name}.key"), "--cipher", cipher, "--unit", str(unit)],
                       check=True, timeout=240)

    def open_in_guest(self, guest: Guest, name: str) -> None:
        """As docs/encryption.md says."""
        cipher, unit = DISKS[name]
        with open(self.bench.path(f"{name}.key"), "rb") as file:
            key = base64.b64encode(file.read()).decode()
        guest.run(f"echo {key} | base64 -d >/run/{name}.key")
        guest.run(f"DM_DISABLE_UDEV=1 cryptsetup open --type plain --cipher aes-xts-plain64 --key-size {8 * key_bytes(cipher)} "
                  f"--sector-size {unit} --key-file /run/{name}.key {guest.device(name)} {name}")

    def test_disks_go_both_ways_between_the_engine_and_dm_crypt(self) -> None:
        for name in DISKS:
            self.crypto_file("write", name, f"{name}.plain")
            self.assertNotEqual(digest(self.bench.path(f"{name}.img")), digest(self.bench.path(f"{name}.plain")))
        files = {name: self.bench.path(f"{name}.img") for name in DISKS}
        guest = self.bench.guest(files=files, tools="crypt")
        guest.wait_ready()
        written = {}
        for name in DISKS:
            with self.subTest(disk=name):
                self.open_in_guest(guest, name)
                read = guest.run(f"sha256sum /dev/mapper/{name}").split()[0]
                self.assertEqual(read, digest(self.bench.path(f"{name}.plain")), "what the engine wrote")
                written[name] = self.fill_in_guest(guest, name)
        guest.kill()
        for name, expected in written.items():
            with self.subTest(disk=name):
                self.crypto_file("read", name, f"{name}.back")
                self.assertEqual(digest(self.bench.path(f"{name}.back")), expected, "what dm-crypt wrote")
        self.assertEqual(len(written), len(DISKS))

    def fill_in_guest(self, guest: Guest, name: str) -> str:
        """A file system with a file, and random bytes at the disk's very end. Returns the digest of the whole disk."""
        device, folder = f"/dev/mapper/{name}", f"/mnt/{name}"
        guest.run(f"mkfs.ext4 -q {device} 7168k")
        guest.run(f"mkdir -p {folder} && mount -t ext4 {device} {folder} && "
                  f"dd if=/dev/urandom of={folder}/file bs=64k count=30 && umount {folder}")
        guest.run(f"dd if=/dev/urandom of={device} bs=4k seek={DISK_BYTES // 4096 - 5} count=5 conv=notrunc,fsync")
        # Past the page cache of the mapping: what is read is what was decrypted.
        guest.run("sync; echo 3 >/proc/sys/vm/drop_caches")
        found = guest.run(f"sha256sum {device}").split()[0]
        guest.run(f"DM_DISABLE_UDEV=1 cryptsetup close {name}")
        return found


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A guest on an RBD disk, encrypted and limited: a file system, fio's verification, a known file. What `rbd export` then gives,
decrypted by Linux' dm-crypt in another guest, is what the first one wrote."""

import base64
import hashlib
import os
import unittest

from cleat_guest import BenchTest
from cleat_guest.ceph import MiniCeph
from cleat_guest.cleat import Cleat
from cleat_guest.guest import Guest
from cleat_guest.measured_load import measure
from cleat_guest.verified_load import VerifiedLoad

MIB = 1 << 20
DISK_MIB = 32
FILE_SYSTEM_MIB = 12  # the disk's first part; fio has the rest
FILE_BYTES = 3 * MIB
IOPS = 400
KEY_BYTES = 64  # AES-256-XTS
UNIT_BYTES = 512
# Of its promise: a limit's shortest period is longer than the guest's clock is exact.
OVER_MAX = 1.05


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Ceph(BenchTest):

    def setUp(self) -> None:
        self.key = os.urandom(KEY_BYTES)
        with open(self.bench.path("disk.key"), "wb") as file:
            file.write(self.key)

    def attach(self, ceph: MiniCeph) -> Cleat:
        ceph.create_image("disk", f"{DISK_MIB}M")
        cleat = self.bench.cleat(engine_options=("--kek-file", self.bench.path("state/kek")))
        cleat.create_cluster("ceph", ceph)
        cleat.create_rbd_disk("disk", f"{DISK_MIB}M", "ceph/rbd/disk", "--encryption-key-file", self.bench.path("disk.key"),
                              "--limit", f"iops={IOPS}")
        cleat.create_controller("vm", self.bench.path("vm.sock"), kind="scsi")
        cleat.attach_scsi("disk", "vm")
        return cleat

    def use(self, guest: Guest, device: str) -> str:
        """A file system with a known file, and fio on what is left. Returns the digest of the known file."""
        guest.run(f"mkfs.ext4 -q {device} {FILE_SYSTEM_MIB}M")
        guest.run(f"mount -t ext4 {device} /mnt && head -c {FILE_BYTES} /dev/urandom >/mnt/known && sync")
        load = VerifiedLoad(guest, device, name="verify", seed=1, offset=f"{FILE_SYSTEM_MIB}M",
                            size=f"{DISK_MIB - FILE_SYSTEM_MIB}M", io_size="6M")
        load.wait()
        known = guest.run("sha256sum /mnt/known").split()[0]
        guest.run("umount /mnt")
        return known

    def read_whole(self, guest: Guest, device: str) -> str:
        """The digest of all that is on the disk, not of what the guest has cached."""
        guest.run("sync; echo 3 >/proc/sys/vm/drop_caches")
        return guest.run(f"sha256sum {device}").split()[0]

    def open_in_guest(self, guest: Guest) -> str:
        """The mapping of dm-crypt over the exported image; as docs/encryption.md says."""
        guest.run(f"echo {base64.b64encode(self.key).decode()} | base64 -d >/run/key")
        guest.run(f"DM_DISABLE_UDEV=1 cryptsetup open --type plain --cipher aes-xts-plain64 --key-size {8 * KEY_BYTES} "
                  f"--sector-size {UNIT_BYTES} --key-file /run/key {guest.device('export')} plain")
        return "/dev/mapper/plain"

    def test_what_the_guest_wrote_is_in_the_image_encrypted(self) -> None:
        ceph = self.bench.ceph()
        cleat = self.attach(ceph)
        guest = self.bench.guest(scsi={"vm": self.bench.path("vm.sock")}, tools="fio")
        guest.wait_ready()
        device = guest.scsi_device("vm", 0)
        known = self.use(guest, device)
        self.assertLess(measure(guest, {"limited": device}, 3, rw="randread"), IOPS * OVER_MAX)
        whole = self.read_whole(guest, device)
        guest.kill()
        cleat.detach_scsi("disk", "vm")
        cleat.delete_disk("disk")
        cleat.stop()

        exported = self.bench.path("export.img")
        ceph.export("disk", exported)
        self.assertEqual(os.path.getsize(exported), DISK_MIB * MIB)
        self.assertNotEqual(digest(exported), whole, "the image is not encrypted")
        reader = self.bench.guest(name="reader", files={"export": exported}, tools="crypt")
        reader.wait_ready()
        mapping = self.open_in_guest(reader)
        self.assertEqual(self.read_whole(reader, mapping), whole)
        reader.run(f"fsck.ext4 -fn {mapping} && mount -t ext4 -o ro {mapping} /mnt")
        self.assertEqual(reader.run("sha256sum /mnt/known").split()[0], known)


if __name__ == "__main__":
    unittest.main()

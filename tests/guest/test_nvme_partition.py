# SPDX-License-Identifier: Apache-2.0
"""A pool on a partition of an NVMe drive: what lies before and behind it stays as it is, whatever becomes of the engine, and nobody gets
the drive as a whole meanwhile. One boot."""

import struct
import time
import unittest

from cleat_guest import GuestError, SharedBenchTest
from cleat_guest.nvme_host import Load, NvmeHost

MIB = 1 << 20
BLOCK_BYTES = 512
PARTITION = (1 * MIB, 320 * MIB)  # first byte, bytes: label and maps, and four extents of 64 MiB
DRIVE_BYTES = sum(PARTITION) + 16 * MIB
LINUX_DATA = 0x83


def partition_table():
    """A master boot record with that partition alone."""
    first, length = (number // BLOCK_BYTES for number in PARTITION)
    entry = struct.pack("<B3xB3xII", 0, LINUX_DATA, first, length)
    return bytes(446) + entry + bytes(3 * 16) + b"\x55\xaa"


class NvmePartitionTest(SharedBenchTest):
    @classmethod
    def set_up_bench(cls):
        cls.image = cls.bench.path("parted")
        with open(cls.image, "wb") as image:
            image.write(partition_table())
            image.write(b"b" * (PARTITION[0] - BLOCK_BYTES))
            image.seek(sum(PARTITION))
            image.write(b"a" * (DRIVE_BYTES - sum(PARTITION)))
        cls.host = NvmeHost(cls.bench, {"parted": {"drive": f"file={cls.image},format=raw"}})
        cls.drive = f"/dev/{cls.host.namespace('parted')}"
        cls.partition = f"{cls.drive}p1"
        cls.host.guest.run(f"until [ -b {cls.partition} ]; do sleep 0.05; done; chown 1000 {cls.partition}")
        cls.host.start_cleatd()
        cls.host.start_engine()

    def test_a_pool_on_a_partition(self):
        ctl = self.host.ctl
        ctl("pool", "create", "p", "--device", self.partition, "--extent-size", "64M", "--wait=120")
        self.host.wait_for("the erasure", lambda: int(ctl("pool", "get", "p")["status"]["to_erase_bytes"]), lambda left: left == 0)
        with self.assertRaises(GuestError) as caught:
            ctl("pool", "create", "whole", "--device", self.drive, "--extent-size", "64M", "--overwrite")
        self.assertIn(self.drive, caught.exception.output)
        ctl("disk", "create", "d", "--size", "200M", "--pool", "p")
        ctl("controller", "create", "d", "--socket", "/run/d.sock")
        load = Load(self.host, "d")
        ctl("attach", "d", "d", "--wait=120")
        time.sleep(2)
        self.host.kill_engine()
        self.host.start_engine()
        ctl("wait", "controllers/d/attachments/d", "--timeout", "120")
        time.sleep(2)
        load.end_well()
        self.assertNotIn("NVMe commands (", ctl("disk", "get", "d")["status"]["io_path"])
        ctl("detach", "d", "--wait=120")
        self.host.guest.run("sync")
        self.check_neighbours()

    def check_neighbours(self):
        with open(self.image, "rb") as image:
            self.assertEqual(image.read(BLOCK_BYTES), partition_table())
            self.assertEqual(image.read(PARTITION[0] - BLOCK_BYTES).strip(b"b"), b"")
            self.assertTrue(image.read(PARTITION[1]).strip(b"\0"), "nothing was written to the partition")
            self.assertEqual(image.read().strip(b"a"), b"")


if __name__ == "__main__":
    unittest.main()

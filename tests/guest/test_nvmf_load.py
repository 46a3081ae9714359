# SPDX-License-Identifier: Apache-2.0
"""A verified load on a disk over NVMe/TCP while its paths are cut and turn into black holes, its target stops, dies and changes, and so does
the engine, and a guest's fio in each way to speak to a target: what test_nvmf_spdk.py does with SPDK's target, with Linux' own (nvmet), which
runs in a guest beside Cleat. `PEER_TLSHD`, the folder that has tlshd and keyctl, is what it needs for TLS."""

import unittest

from cleat_guest import BenchTest
from cleat_guest.guest_tls import tls_programs
from cleat_guest.kernel_target import KernelTarget
from cleat_guest.nvmf_events import NvmfEvents, RemoteDisk
from cleat_guest.nvmf_ways import CLEAR_WAYS, PLAIN, TLS_WAYS, KernelWays, Walk

NQN = "nqn.2026-11.example:kernel"
UUID = "8d2f5a3e-4c0b-4a57-9d3e-0b9f6a1c7e21"
DISK_BYTES = 32 << 20
KEEP_ALIVE_MS = 10000  # an emulated target takes its time to answer


class KernelLoadTest(BenchTest):

    def test_nothing_is_lost(self):
        image = self.bench.path("disk.img")
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        target = KernelTarget(self.bench, image, NQN, UUID).wait_ready()
        disk = RemoteDisk(self.bench.cleat(), target.addresses, nqn=NQN, uuid=UUID, size_bytes=DISK_BYTES, keep_alive_ms=KEEP_ALIVE_MS)
        result = NvmfEvents(disk, target, KEEP_ALIVE_MS).under_load(self.bench)
        self.assertEqual(result["reconnects"], 2)  # an engine killed and one upgraded


class WaysTest(BenchTest):
    """A guest's fio on disks of Linux' target, in each way to speak to it; and what has another secret is refused."""

    def walk(self, ways):
        """How many attachments were refused."""
        walk = Walk(self.bench, KernelWays(self.bench, ways))
        walk.go(ways)
        return walk.refused

    def test_with_digests_and_with_authentication(self):
        self.assertEqual(self.walk(CLEAR_WAYS), 6)

    def test_over_tls(self):
        if tls_programs() is None:
            self.skipTest("PEER_TLSHD names no folder with tlshd and keyctl")
        self.assertEqual(self.walk((PLAIN, *TLS_WAYS)), 7)


if __name__ == "__main__":
    unittest.main(verbosity=2)

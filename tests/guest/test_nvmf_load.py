# SPDX-License-Identifier: Apache-2.0
"""A verified load on a disk over NVMe/TCP while its paths are cut and turn into black holes, its target stops, dies and changes, and so does
the engine: what test_nvmf_spdk.py does to SPDK's target, with Linux' own (nvmet), which runs in a guest beside Cleat."""

import unittest

from cleat_guest import BenchTest
from cleat_guest.kernel_target import KernelTarget
from cleat_guest.nvmf_events import NvmfEvents, RemoteDisk

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


if __name__ == "__main__":
    unittest.main(verbosity=2)

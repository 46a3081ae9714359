# SPDX-License-Identifier: Apache-2.0
"""The engine is killed under a real guest's I/O, again and again: QEMU connects to each successor, and fio finds all that
it wrote. Split and packed rings, blk and scsi, several queues; cleatd dies with it now and then (so the disks are files:
memory disks do not outlive both)."""

import os
import random
import time
import unittest

from cleat_guest import BenchTest
from cleat_guest.verified_load import VerifiedLoad

# A seed of one's own repeats a run: CLEAT_SEED=123 python3 test_crash.py
SEED = int(os.environ.get("CLEAT_SEED") or random.randrange(1 << 32))
KILLS = int(os.environ.get("CLEAT_KILLS") or 4)


class CrashTest(BenchTest):
    def run_kills(self, packed):
        choice = random.Random(SEED)
        cleat = self.bench.cleat(reactors=2)
        blk, scsi = self.bench.path("first.sock"), self.bench.path("vm.sock")
        for disk in ("first", "second"):
            cleat.create_file_disk(disk, "64M", self.bench.path(f"{disk}.img"))
        cleat.create_controller("vm", scsi, queues=2, kind="scsi")
        guest = self.bench.guest(disks={"first": blk}, scsi={"vm": scsi}, queues=2, packed=packed, tools="fio")
        cleat.attach("first", blk, queues=2)
        target = cleat.attach_scsi("second", "vm")
        guest.wait_ready()
        devices = {"blk": guest.device("first"), "scsi": guest.scsi_device("vm", target)}
        with self.subTest(seed=SEED, packed=packed):
            for kill in range(KILLS):
                loads = [VerifiedLoad(guest, device, name=f"{name}-{kill}", seed=kill + 1, io_size="12M")
                         for name, device in devices.items()]
                for load in loads:
                    load.wait_begun()
                time.sleep(choice.uniform(0, 1.2))
                if choice.random() < 0.3:
                    cleat.cleatd.kill()
                    cleat.engine.kill()
                    cleat.start_cleatd()
                    cleat.start_engine()
                    cleat.wait_engine()
                else:
                    cleat.restart_engine()
                for load in loads:
                    load.wait()

    def test_split_rings(self):
        self.run_kills(packed=False)

    def test_packed_rings(self):
        self.run_kills(packed=True)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Engines exchanged under a real guest's I/O, there and back: QEMU connects to each, and fio finds all that it wrote. blk and
scsi, several queues, split and packed rings. At last the engine is killed that another one stands by for."""

import unittest

from cleat_guest import BenchTest
from cleat_guest.verified_load import VerifiedLoad

ENGINES = ("engine-0", "engine-1")
UPGRADES = 4


class UpgradeTest(BenchTest):
    def boot(self, packed):
        self.cleat = self.bench.cleat(reactors=2)
        blk, scsi = self.bench.path("first.sock"), self.bench.path("vm.sock")
        self.cleat.create_file_disk("first", "64M", self.bench.path("first.img"))
        self.cleat.create_memory_disk("second", "64M")
        self.cleat.create_controller("vm", scsi, queues=2, kind="scsi")
        self.guest = self.bench.guest(disks={"first": blk}, scsi={"vm": scsi}, queues=2, packed=packed, tools="fio")
        self.cleat.attach("first", blk, queues=2)
        target = self.cleat.attach_scsi("second", "vm")
        self.guest.wait_ready()
        self.devices = {"blk": self.guest.device("first"), "scsi": self.guest.scsi_device("vm", target)}

    def under_load(self, number, event):
        """The event in the middle of the loads, which have to find everything right."""
        loads = [VerifiedLoad(self.guest, device, name=f"{name}-{number}", seed=number + 1, io_size="4M")
                 for name, device in self.devices.items()]
        for load in loads:
            load.wait_begun()
        event()
        return [load.wait() for load in loads]

    def there_and_back(self):
        pauses = []
        for number in range(UPGRADES):
            source, target = ENGINES[number % 2], ENGINES[1 - number % 2]
            pauses.append(self.cleat.upgrade(source, target))
            self.assertEqual({c["name"]: c["status"]["engine"] for c in self.cleat.list("controller")},
                             {f"controllers/{c}": f"engines/{target}" for c in ("first-blk", "vm")})
        return pauses

    def run_upgrades(self, packed):
        self.boot(packed)
        self.cleat.add_engine(ENGINES[1], "--standby-for", ENGINES[0])
        pauses = []
        gaps = self.under_load(0, lambda: pauses.extend(self.there_and_back()))
        print(f"{UPGRADES} upgrades: longest pauses {', '.join(f'{pause:.1f}' for pause in pauses)} ms; "
              f"longest requests {gaps} ms", flush=True)
        self.cleat.wait_status(ENGINES[1], "prepared", lambda status: status.get("standing_by") == 2)
        gaps = self.under_load(1, self.cleat.engine.kill)
        print(f"engine-0 killed: longest requests {gaps} ms", flush=True)
        self.cleat.wait_status(ENGINES[1], "the one that serves", lambda status: status.get("controllers") == 2)

    def test_split_rings(self):
        self.run_upgrades(packed=False)

    def test_packed_rings(self):
        self.run_upgrades(packed=True)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""A guest migrates between two QEMUs under verified I/O, with a blk disk and a SCSI disk: there and back, and once more after
a migration that was aborted when the source had given its disks up already."""

import time
import unittest

from cleat_guest import BenchTest
from cleat_guest.cleat import CtlError
from cleat_guest.guest import Guest
from cleat_guest.verified_load import VerifiedLoad

WAIT_SECONDS = 240
# Of the rig's two places: "a" is where the guest boots.
DISKS = {"first": "blk", "second": "scsi"}


class MigrationTest(BenchTest):

    def setUp(self) -> None:
        self.cleat = self.bench.cleat(reactors=2)
        for disk in DISKS:
            self.cleat.create_file_disk(disk, "64M", self.bench.path(f"{disk}.img"))

    def attach(self, place: str, *more: str) -> None:
        for disk, kind in DISKS.items():
            self.cleat.create_controller(f"{kind}-{place}", self.bench.path(f"{kind}-{place}.sock"), 2, kind)
            self.cleat.ctl("attach", disk, f"{kind}-{place}", "--wait=120", *more)

    def detach(self, place: str) -> None:
        for disk, kind in DISKS.items():
            self.cleat.ctl("detach", f"{kind}-{place}", disk, "--wait=120")
            self.cleat.delete_controller(f"{kind}-{place}")

    def qemu(self, place: str, incoming: bool) -> Guest:
        return self.bench.guest(f"{'target' if incoming else 'guest'}-{place}",
                                disks={"first": self.bench.path(f"blk-{place}.sock")},
                                scsi={"vm": self.bench.path(f"scsi-{place}.sock")}, queues=2, tools="fio", incoming=incoming)

    def states(self, place: str) -> list[str]:
        return [self.cleat.ctl("attachment", "get", f"{kind}-{place}", disk)["status"]["state"].removeprefix("ATTACHMENT_STATE_")
                for disk, kind in DISKS.items()]

    def modes(self, place: str) -> list[str]:
        return [self.cleat.ctl("attachment", "get", f"{kind}-{place}", disk)["spec"]["mode"].removeprefix("ATTACHMENT_MODE_")
                for disk, kind in DISKS.items()]

    def await_states(self, place: str, state: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.states(place) != [state] * len(DISKS):
            self.assertLess(time.monotonic(), deadline, f"{place}: {self.states(place)}, not {state}")
            time.sleep(0.05)

    def boot(self) -> tuple[Guest, dict[str, str]]:
        self.attach("a")
        guest = self.qemu("a", incoming=False)
        guest.wait_ready()
        return guest, {"blk": guest.device("first"), "scsi": guest.scsi_device("vm", 0)}

    def loads(self, guest: Guest, devices: dict[str, str], seed: int) -> list[VerifiedLoad]:
        """They write by now."""
        loads = [VerifiedLoad(guest, device, name=f"{name}-{seed}", seed=seed, io_size="4M") for name, device in devices.items()]
        for load in loads:
            load.wait_begun()
        return loads

    def migrate(self, guest: Guest, target: Guest, source_place: str, target_place: str) -> None:
        """And the source is taken away, as a control plane does it."""
        guest.begin_migration(target, self.bench.path(f"to-{target_place}.sock"))
        guest.wait_migration("completed")
        self.await_states(target_place, "READY")
        target.wait_running()
        self.assertEqual(self.states(source_place), ["RELEASED"] * len(DISKS))
        self.assertEqual(self.modes(source_place), ["OUTGOING"] * len(DISKS))
        self.assertEqual(self.modes(target_place), ["ACTIVE"] * len(DISKS))
        self.detach(source_place)
        guest.move_to(target)
        target.kill()

    def test_there_and_back_under_load(self) -> None:
        guest, devices = self.boot()
        for seed, (source, target) in enumerate([("a", "b"), ("b", "a")], 1):
            self.attach(target, "--incoming")
            self.assertEqual(self.states(target), ["INCOMING"] * len(DISKS))
            incoming = self.qemu(target, incoming=True)
            loads = self.loads(guest, devices, seed)
            self.migrate(guest, incoming, source, target)
            for load in loads:
                load.wait()
        self.cleat.restart_engine()  # what has come is the engine's to acquire, rings or not
        for load in self.loads(guest, devices, 3):
            load.wait()
        self.await_states("a", "READY")

    def test_aborted_and_then_again(self) -> None:
        guest, devices = self.boot()
        self.attach("b", "--incoming")
        with self.assertRaisesRegex(CtlError, "has a writer"):
            self.cleat.create_controller("third", self.bench.path("third.sock"))
            self.cleat.ctl("attach", "first", "third", "--incoming")
        target = self.qemu("b", incoming=True)
        loads = self.loads(guest, devices, 1)
        guest.begin_migration(target, self.bench.path("first.migration"), pause=True)
        guest.wait_migration("pre-switchover")
        self.await_states("a", "RELEASED")  # the guest stands still, and nobody has its disks
        guest.cancel_migration()
        guest.wait_running()
        self.await_states("a", "READY")
        self.assertEqual(self.modes("a"), ["ACTIVE"] * len(DISKS))
        self.assertEqual(self.states("b"), ["INCOMING"] * len(DISKS))
        target.kill()
        # And half-way through the memory, where the source has given up nothing yet.
        target = self.qemu("b", incoming=True)
        guest.begin_migration(target, self.bench.path("second.migration"), megabytes_per_second=8)
        guest.wait_migration("active")
        time.sleep(0.3)
        guest.cancel_migration()
        target.kill()
        self.assertEqual(self.states("a"), ["READY"] * len(DISKS))
        for load in loads:
            load.wait()

        target = self.qemu("b", incoming=True)
        loads = self.loads(guest, devices, 2)
        self.migrate(guest, target, "a", "b")
        for load in loads:
            load.wait()


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A guest on an RBD image migrates under verified I/O from one host to another, each with a cleatd and an engine of its own, and
back. The image grows on the way."""

import os
import time
import unittest

from cleat_guest import BenchTest
from cleat_guest.ceph import MiniCeph
from cleat_guest.cleat import Cleat
from cleat_guest.guest import Guest
from cleat_guest.verified_load import VerifiedLoad

MIB = 1 << 20
DISK_MIB = 64
GROWN_MIB = 96
WAIT_SECONDS = 240


class Place:
    """A host: its daemons, and the controller that the guest's disk is behind."""

    def __init__(self, test: "CephMigration", name: str, ceph: MiniCeph) -> None:
        folder = test.bench.path(name)
        self.socket = os.path.join(folder, "vm.sock")
        self.cleat: Cleat = test.bench.cleat(name, engine_options=("--kek-file", os.path.join(folder, "state/kek")))
        self.cleat.create_cluster("ceph", ceph)
        self.cleat.create_controller("vm", self.socket, kind="scsi")

    def attach(self, size_mib: int, *more: str) -> None:
        self.cleat.create_rbd_disk("disk", f"{size_mib}M", "ceph/rbd/disk")
        self.cleat.ctl("attach", "disk", "vm", "--wait=120", *more)

    def detach(self) -> None:
        self.cleat.detach_scsi("disk", "vm")
        self.cleat.delete_disk("disk")

    def state(self) -> str:
        return self.cleat.ctl("attachment", "get", "vm", "disk")["status"]["state"].removeprefix("ATTACHMENT_STATE_")


class CephMigration(BenchTest):

    def qemu(self, name: str, place: Place, incoming: bool) -> Guest:
        return self.bench.guest(name, scsi={"vm": place.socket}, tools="fio", incoming=incoming)

    def await_state(self, place: Place, state: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while place.state() != state:
            self.assertLess(time.monotonic(), deadline, f"{place.state()}, not {state}")
            time.sleep(0.05)

    def test_between_two_hosts_and_back(self) -> None:
        ceph = self.bench.ceph()
        ceph.create_image("disk", f"{DISK_MIB}M")
        here, there = Place(self, "here", ceph), Place(self, "there", ceph)
        here.attach(DISK_MIB)
        guest = self.qemu("guest", here, incoming=False)
        guest.wait_ready()
        device = guest.scsi_device("vm", 0)
        size_mib = DISK_MIB
        for seed, (source, target) in enumerate([(here, there), (there, here)], 1):
            target.attach(size_mib, "--incoming")
            self.assertEqual(target.state(), "INCOMING")
            incoming = self.qemu(f"incoming-{seed}", target, incoming=True)
            load = VerifiedLoad(guest, device, name=f"load-{seed}", seed=seed, io_size="4M")
            load.wait_begun()
            if size_mib == DISK_MIB:
                source.cleat.resize_disk("disk", f"{GROWN_MIB}M")
                size_mib = GROWN_MIB
            guest.begin_migration(incoming, self.bench.path(f"{seed}.migration"))
            guest.wait_migration("completed")
            self.await_state(target, "READY")
            self.assertEqual(source.state(), "RELEASED")
            source.detach()
            guest.move_to(incoming)
            incoming.kill()
            load.wait()
            guest.wait_size(device, GROWN_MIB * MIB)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""SPDK's NVMe/TCP target as the peer (`PEER_SPDK`: the folder that SPDK was built in): a real guest's fio, the write in doubt that lands
after all, and a verified load under all that can become of paths, target and engine."""

import os
import time
import unittest

from cleat_guest import BenchTest
from cleat_guest.nvmf_events import NvmfEvents, RemoteDisk, wait_for
from cleat_guest.nvmf_ways import CLEAR_WAYS, TLS_WAYS, SpdkWays, Walk
from cleat_guest.spdk_target import SpdkNamespace, built_in, nguid

MIB = 1 << 20
NQN = "nqn.2026-11.example:peer"
UUID = "91fdba0d-f87b-4c25-b80f-db7be1418b9f"
DISK_MIB = 32
KEEP_ALIVE_MS = 1000
HELD_SECONDS = 5  # a write that would not be held is answered within milliseconds


class PeerTest(BenchTest):

    def setUp(self):
        if built_in() is None:
            self.skipTest("PEER_SPDK names no folder that SPDK was built in")
        if os.geteuid() != 0:
            self.skipTest("SPDK's target wants huge pages, and so root")
        self.image = self.bench.path("disk.img")
        with open(self.image, "wb") as image:
            image.truncate(DISK_MIB * MIB)

    def target(self, addresses, number=1):
        """One that shows the image at these addresses."""
        target = self.bench.spdk(number)
        target.add_file("Disk", self.image, UUID)
        target.add_subsystem(NQN, "Disk", UUID, nguid(UUID))
        for address in addresses:
            target.listen(NQN, address)
        return target

    def disk(self, addresses, options=()):
        return RemoteDisk(self.bench.cleat(), addresses, nqn=NQN, uuid=UUID, size_bytes=DISK_MIB * MIB, keep_alive_ms=KEEP_ALIVE_MS, options=options)


class FioTest(PeerTest):

    def test_a_guests_fio_verifies_what_it_wrote_in_each_way(self):
        """With each digest, with authentication, over TLS; and what has another secret is refused."""
        walk = Walk(self.bench, SpdkWays(self.bench))
        walk.go((*CLEAR_WAYS, *TLS_WAYS))
        self.assertEqual(walk.refused, 12)


class GhostTest(PeerTest):
    """Two processes over one file, as two gateways over one storage."""

    def test_a_newer_write_is_not_acknowledged_before_the_older_is_dead(self):
        addresses = ["127.0.0.1:4431", "127.0.0.1:4432"]
        first, second = (self.target([address], number) for number, address in enumerate(addresses, start=1))
        second.set_ana(NQN, addresses[1], "non_optimized")
        disk = self.disk(addresses)
        path = self.bench.path("remote.sock")
        guest = self.bench.guest(disks={"remote": path})
        disk.cleat.attach("remote", path)
        guest.wait_ready()
        device = guest.device("remote")

        def write(letter):
            return guest.background(f"head -c 4096 /dev/zero | tr '\\0' {letter} >/run/{letter} && "
                                    f"dd if=/run/{letter} of={device} bs=4096 count=1 oflag=direct conv=notrunc")

        def on_the_drive():
            with open(self.image, "rb") as image:
                return image.read(1).decode()

        before = first.writes("Disk")
        first.stop_still()
        older = write("A")
        older.wait()  # by the second path, once the first is taken for dead
        self.assertEqual(on_the_drive(), "A")
        self.assertTrue(disk.doubt())
        self.put_on_the_drive(b"-")  # so that the older write is seen when it lands once more
        newer = write("B")
        self.is_held(newer)
        first.go_on()
        wait_for("the older write to land after all", on_the_drive, lambda letter: letter == "A")
        self.assertGreater(first.writes("Disk"), before)
        self.is_held(newer)
        first.kill()
        disk.confirm_dead()
        newer.wait()
        self.assertEqual(on_the_drive(), "B")

    def put_on_the_drive(self, data):
        with open(self.image, "r+b") as image:
            image.write(data)
            image.flush()
            os.fsync(image.fileno())

    def is_held(self, job):
        time.sleep(HELD_SECONDS)
        self.assertFalse(job.done(), "acknowledged while the older write may land")


class LoadTest(PeerTest):
    """A verified load while paths are cut and turn into black holes, the target stops, dies and changes, and so does the engine."""

    def test_nothing_is_lost(self):
        target = self.bench.keep(SpdkNamespace(self.bench, self.image, NQN, UUID)).wait_ready()
        result = NvmfEvents(self.disk(target.addresses), target, KEEP_ALIVE_MS).under_load(self.bench)
        self.assertEqual(result["reconnects"], 2)  # an engine killed and one upgraded


class ProofTest(PeerTest):
    """The same, with the target's word: what dead paths and dead engines left is proved over, but for what the target forgot with its process
    or its namespace."""

    def test_nothing_is_lost_and_nobody_says_what_is_dead(self):
        target = self.bench.keep(SpdkNamespace(self.bench, self.image, NQN, UUID)).wait_ready()
        events = NvmfEvents(self.disk(target.addresses, ("--reservations", "proof")), target, KEEP_ALIVE_MS, proves=True)
        result = events.under_load(self.bench)
        self.assertEqual(result["reconnects"], 2)
        self.assertEqual(events.proofs, 6)  # two cuts, two black holes, a pause, an engine killed


if __name__ == "__main__":
    unittest.main(verbosity=2)

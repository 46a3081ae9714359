#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A guest migrates under verified I/O between two hosts, each with a cleatd and an engine of its own, on a namespace of SPDK's target with
reservations (`PEER_SPDK`: the folder that SPDK was built in): there and back, after migrations that came to nothing, and while the source can't
let the namespace go. What the target itself has is asked by a host that is nothing of Cleat's."""

import os
import time
import unittest

from cleat_guest import BenchTest
from cleat_guest.bare_host import RESERVATION_CONFLICT, BareHost, new_host_id
from cleat_guest.cleat import WAIT, CtlError
from cleat_guest.nvmf_events import RemoteDisk, wait_for
from cleat_guest.spdk_target import SpdkNamespace, built_in
from cleat_guest.verified_load import VerifiedLoad

MIB = 1 << 20
NQN = "nqn.2026-11.example:moves"
UUID = "c7a0b8de-3f0e-4f1c-9a0e-5a4c2f8d6b13"
HOST_ID = "c7a0b8de-3f0e-4f1c-9a0e-5a4c2f8d6b2"  # and the host's number
DISK_MIB = 32
KEEP_ALIVE_MS = 10000
SOON_MS = 2000  # for a keep alive timeout that is waited for
WRITE_EXCLUSIVE_ALL = 5  # the type of Cleat's reservation
STILL_SECONDS = 2  # a guest that would not be held goes on within milliseconds; the source tries twice a second to let go
OTHER_HOST, IN_DOUBT = "another host has the namespace", "writes are in doubt"
# The loads have the disk's beginning, and write each block of it once before they read them all. The slow one takes 15 seconds for that, in which
# none of its writes meets what is in doubt, so that the guest can be stopped.
LOAD = {"size": "16M", "io_size": "16M"}
SLOW_LOAD = {"size": "12M", "io_size": "12M", "rate": ",200"}
MARKS = "fio --name=marks --filename={device} --direct=1 --offset=24M --size=8M --bs=64k --verify=crc32c --verify_fatal=1 "


class Host:
    """One that has the namespace as its disk `remote`."""

    def __init__(self, bench, number, target, keep_alive_ms):
        self.name = ("here", "there")[number]
        self.cleat = bench.cleat(self.name)
        self.socket = bench.path(f"{self.name}/vm.sock")
        host_id = f"{HOST_ID}{number}"
        who = ("--host-id", host_id, "--host-nqn", f"nqn.2014-08.org.nvmexpress:uuid:{host_id}", "--reservations", "exclusive")
        self.disk = RemoteDisk(self.cleat, target.addresses, nqn=NQN, uuid=UUID, size_bytes=DISK_MIB * MIB, keep_alive_ms=keep_alive_ms,
                               options=who)
        # What the host identifiers of its connections begin with.
        self.family = bytes.fromhex(self.cleat.ctl("subsystem", "get", "peer")["status"]["reservation_family"].replace("-", ""))

    def attach(self, *more):
        self.cleat.create_controller("remote-blk", self.socket)
        self.cleat.ctl("attach", "remote", "remote-blk", WAIT, *more)

    def detach(self):
        self.cleat.detach("remote")

    def has(self):
        """The attachment's state and mode."""
        attachment = self.cleat.ctl("attachment", "get", "remote-blk", "remote")
        return (attachment["status"]["state"].removeprefix("ATTACHMENT_STATE_"),
                attachment["spec"].get("mode", "ATTACHMENT_MODE_ACTIVE").removeprefix("ATTACHMENT_MODE_"))

    def why(self):
        """The attachment's message."""
        return self.disk.attachment().get("message", "")

    def waits_for(self):
        """What its guest has to wait for: the controller's message."""
        return self.cleat.ctl("controller", "get", "remote-blk")["status"].get("message", "")


class MigrationTest(BenchTest):

    def setUp(self):
        if built_in() is None:
            self.skipTest("PEER_SPDK names no folder that SPDK was built in")
        if os.geteuid() != 0:
            self.skipTest("SPDK's target wants huge pages, and so root")

    def begin_here(self, keep_alive_ms):
        """The two hosts, and a guest on the first one's disk."""
        image = self.bench.path("disk.img")
        with open(image, "wb") as file:
            file.truncate(DISK_MIB * MIB)
        self.target = self.bench.keep(SpdkNamespace(self.bench, image, NQN, UUID)).wait_ready()
        self.here, self.there = (Host(self.bench, number, self.target, keep_alive_ms) for number in range(2))
        self.here.attach()
        self.guests = 0
        self.guest = self.qemu(self.here)
        self.guest.wait_ready()
        self.device = self.guest.device("remote")
        self.guest.run(MARKS.format(device=self.device) + "--rw=write --do_verify=0")

    # ---- What is done

    def qemu(self, host, incoming=False):
        self.guests += 1
        return self.bench.guest(f"guest-{self.guests}-{host.name}", disks={"remote": host.socket}, tools="fio", incoming=incoming)

    def load(self, seed, options):
        load = VerifiedLoad(self.guest, self.device, name=f"load-{seed}", seed=seed, **options)
        load.wait_begun()
        return load

    def begin(self, target, **options):
        """A migration to that host; its QEMU."""
        incoming = self.qemu(target, incoming=True)
        self.guest.begin_migration(incoming, self.bench.path(f"{self.guests}.migration"), **options)
        return incoming

    def leave_doubt(self, source):
        """By the path that is lost then; what the target had by it before. Somebody writes."""
        before = self.target.lives_by(0)
        self.target.swallow(0, True)
        wait_for("writes in doubt", source.disk.doubt, bool)
        return before

    def end_doubt(self, source, before):
        """An operator sees that the target has nothing left of that path, and says so."""
        self.target.swallow(0, False)
        wait_for("the target to miss its hosts", lambda: self.target.lives_by(0) & before, lambda left: not left)
        source.disk.confirm_dead()

    # ---- What is seen

    def has(self, host, *state_and_mode):
        self.assertEqual(host.has(), state_and_mode, f"{host.name}: {host.why()}")

    def comes_to(self, host, *state_and_mode):
        wait_for(f"{host.name} to be {state_and_mode}", host.has, lambda has: has == state_and_mode)

    def bare_host(self, family=None):
        """One that has not registered, whatever else it says of itself."""
        host_id = new_host_id()
        return BareHost(self.target.addresses[1], NQN, family + host_id[8:] if family else host_id)

    def target_has(self, owner, other):
        """Who is registered at the target, and so the only one that may write, is `owner`; nobody who comes as `other` may."""
        with self.bare_host(other.family) as somebody:
            registrants, kind = somebody.registrants()
            self.assertTrue(registrants)
            self.assertEqual({who[:8] for who in registrants}, {owner.family}, "somebody else is registered")
            self.assertEqual(kind, WRITE_EXCLUSIVE_ALL)
            self.assertEqual(somebody.write(0, b"too late"), RESERVATION_CONFLICT)

    def came_to(self, target, source):
        self.comes_to(target, "READY", "ACTIVE")
        self.comes_to(source, "RELEASED", "OUTGOING")
        self.target_has(target, source)

    def move(self, incoming):
        """The guest is in that QEMU, and the old one goes."""
        incoming.wait_running()
        self.guest.move_to(incoming)
        incoming.kill()

    def nobody_goes_on(self, source, target, incoming):
        """The source stays, with the reason, and the guest waits."""
        incoming.wait_running()
        wait_for("the source to say why it stays", source.why, lambda why: IN_DOUBT in why)
        wait_for("the guest to wait for the source", target.waits_for, lambda why: OTHER_HOST in why)
        before = self.target.writes()
        time.sleep(STILL_SECONDS)
        self.assertEqual(self.target.writes(), before, "somebody writes")
        self.has(source, "READY", "ACTIVE")
        self.has(target, "INCOMING", "INCOMING")
        self.target_has(source, target)

    def marks_are_there(self):
        self.guest.run(MARKS.format(device=self.device) + "--rw=read")

    # ---- Tests

    def test_there_and_back(self):
        self.begin_here(KEEP_ALIVE_MS)
        self.is_refused_without_reservations(self.there)
        load = self.load(1, LOAD)
        self.there.attach("--incoming")
        self.has(self.there, "INCOMING", "INCOMING")
        self.target_has(self.here, self.there)
        self.comes_to_nothing()

        incoming = self.begin(self.there)
        self.guest.wait_migration("completed")
        self.came_to(self.there, self.here)
        self.move(incoming)
        load.goes_on()
        # What it has open at the source serves the way back: its connections begin anew, as another host had the disk meanwhile.
        incoming = self.begin(self.here)
        self.guest.wait_migration("completed")
        self.came_to(self.here, self.there)
        self.there.detach()
        self.is_kept_out(self.there)
        self.move(incoming)
        load.goes_on()
        load.wait()
        self.marks_are_there()

        self.guest.kill()
        self.here.detach()
        with self.bare_host() as somebody:
            self.assertEqual(somebody.registrants(), ([], 0))
            self.assertEqual(somebody.write(0, b"in time"), 0)  # what was refused all the time, with nobody there

    def is_refused_without_reservations(self, host):
        host.cleat.ctl("subsystem", "update", "peer", "--reservations", "off")
        host.cleat.create_controller("remote-blk", host.socket)
        with self.assertRaisesRegex(CtlError, "without reservations"):
            host.cleat.ctl("attach", "remote", "remote-blk", "--incoming")
        host.cleat.delete_controller("remote-blk")
        host.cleat.ctl("subsystem", "update", "peer", "--reservations", "exclusive")

    def is_kept_out(self, host):
        with self.assertRaisesRegex(CtlError, OTHER_HOST):
            host.attach()
        host.detach()

    def comes_to_nothing(self):
        """The destination dies while memory is copied; and it is called off when the source has let go."""
        incoming = self.begin(self.there, megabytes_per_second=8)
        self.guest.wait_migration("active")
        incoming.kill()
        self.guest.wait_migration("failed", "cancelled")
        self.goes_on_here()

        incoming = self.begin(self.there, pause=True)
        self.guest.wait_migration("pre-switchover")
        self.comes_to(self.here, "RELEASED", "OUTGOING")
        with self.bare_host() as somebody:
            self.assertEqual(somebody.registrants(), ([], 0))
        self.guest.cancel_migration()
        self.guest.wait_running()
        incoming.kill()
        self.goes_on_here()

    def goes_on_here(self):
        self.comes_to(self.here, "READY", "ACTIVE")
        self.has(self.there, "INCOMING", "INCOMING")
        before = self.target.writes()
        wait_for("further writes", self.target.writes, lambda now: now > before)
        self.target_has(self.here, self.there)

    def test_a_source_that_can_not_let_go(self):
        self.begin_here(SOON_MS)
        load = self.load(1, SLOW_LOAD)
        self.there.attach("--incoming")
        before = self.leave_doubt(self.here)
        load.goes_on()
        incoming = self.begin(self.there)
        self.guest.wait_migration("completed")
        self.nobody_goes_on(self.here, self.there, incoming)
        self.end_doubt(self.here, before)
        self.came_to(self.there, self.here)
        self.move(incoming)
        self.here.detach()
        load.wait()

        # On the way back the source's engine dies before it has let go. Its QEMU has gone, as managers of VMs have it.
        load = self.load(2, SLOW_LOAD)
        self.here.attach("--incoming")
        before = self.leave_doubt(self.there)
        incoming = self.begin(self.here)
        self.guest.wait_migration("completed")
        self.nobody_goes_on(self.there, self.here, incoming)
        self.move(incoming)
        self.there.cleat.restart_engine()
        self.nobody_goes_on(self.there, self.here, self.guest)
        self.end_doubt(self.there, before)
        self.came_to(self.here, self.there)
        self.there.detach()
        load.wait()
        self.marks_are_there()


if __name__ == "__main__":
    unittest.main(verbosity=2)

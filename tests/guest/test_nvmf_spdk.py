#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""SPDK's NVMe/TCP target as the peer (`PEER_SPDK`: the folder that SPDK was built in): a real guest's fio, the write in doubt that lands
after all, and a verified load under all that can become of paths, target and engine."""

import os
import sys
import time
import unittest

from cleat_guest import BenchError, BenchTest
from cleat_guest.host_load import HostLoad
from cleat_guest.spdk_target import Net, built_in
from cleat_guest.verified_load import VerifiedLoad

MIB = 1 << 20
NQN = "nqn.2026-11.example:peer"
UUID = "91fdba0d-f87b-4c25-b80f-db7be1418b9f"
NGUID = UUID.replace("-", "").upper()
DISK_MIB = 32
KEEP_ALIVE_MS = 1000
SECONDS = 120  # for what can only hang
HELD_SECONDS = 5  # a write that would not be held is answered within milliseconds
# The network for benchmarks (RFC 2544), which nobody else has.
NET_ADDRESSES = ("198.18.0.2", "198.18.1.2")


def wait_for(what, get, there):
    """Until `there` holds of what `get` returns, which is returned."""
    deadline = time.monotonic() + SECONDS
    while not there(last := get()):
        if time.monotonic() >= deadline:
            raise BenchError(f"{what}: not within {SECONDS} s; last: {last}")
        time.sleep(0.05)
    return last


class PeerTest(BenchTest):

    def setUp(self):
        if built_in() is None:
            self.skipTest("PEER_SPDK names no folder that SPDK was built in")
        if os.geteuid() != 0:
            self.skipTest("SPDK's target wants huge pages, and so root")
        self.image = self.bench.path("disk.img")
        with open(self.image, "wb") as image:
            image.truncate(DISK_MIB * MIB)

    def target(self, addresses, number=1, nqn=NQN, uuid=UUID, **options):
        """One that shows the image at these addresses."""
        target = self.bench.spdk(number, **options)
        self.show(target, addresses, nqn, uuid)
        return target

    def show(self, target, addresses, nqn=NQN, uuid=UUID):
        target.add_file("Disk", self.image, uuid)
        target.add_subsystem(nqn, "Disk", uuid, uuid.replace("-", "").upper())
        for address in addresses:
            target.listen(nqn, address)

    def cleat(self, addresses, *options):
        cleat = self.bench.cleat()
        cleat.ctl("subsystem", "create", "peer", "--nqn", NQN, "--keep-alive-ms", str(KEEP_ALIVE_MS),
                  *(word for address in addresses for word in ("--address", address)), *options)
        cleat.ctl("disk", "create", "remote", "--size", f"{DISK_MIB}M", "--nvme-tcp", "peer", "--namespace", UUID)
        return cleat

    def doubt(self):
        return self.cleatd.ctl("disk", "get", "remote")["status"].get("doubt")

    def confirm_dead(self):
        """Said again where more has come into doubt meanwhile, as from a reactor that had not closed its socket yet."""
        def said():
            if self.doubt():
                try:
                    self.cleatd.ctl_text("disk", "confirm-dead", "remote", "--yes")
                except BenchError as error:
                    return error
            return self.doubt()
        wait_for("nothing in doubt", said, lambda doubt: not doubt)


class FioTest(PeerTest):

    def test_a_guests_fio_verifies_what_it_wrote(self):
        """Without digests and with both."""
        address = "127.0.0.1:4431"
        target = self.target([address])
        other = {"nqn": f"{NQN}-digests", "uuid": "91fdba0d-f87b-4c25-b80f-db7be1418b9e"}
        second = self.bench.path("second.img")
        with open(second, "wb") as image:
            image.truncate(DISK_MIB * MIB)
        target.add_file("Second", second, other["uuid"])
        target.add_subsystem(other["nqn"], "Second", other["uuid"], other["uuid"].replace("-", "").upper())
        target.listen(other["nqn"], address)
        cleat = self.cleat([address])
        cleat.ctl("subsystem", "create", "digests", "--nqn", other["nqn"], "--address", address, "--header-digest", "--data-digest")
        cleat.ctl("disk", "create", "digests", "--size", f"{DISK_MIB}M", "--nvme-tcp", "digests", "--namespace", other["uuid"])
        disks = {disk: self.bench.path(f"{disk}.sock") for disk in ("remote", "digests")}
        guest = self.bench.guest(disks=disks, tools="fio")
        for disk, path in disks.items():
            cleat.attach(disk, path)
        guest.wait_ready()
        loads = [VerifiedLoad(guest, guest.device(disk), name=disk, seed=1, size="8M", io_size="8M", sizes="4k-128k", jobs=2)
                 for disk in disks]
        for load in loads:
            load.wait()


class GhostTest(PeerTest):
    """Two processes over one file, as two gateways over one storage."""

    def test_a_newer_write_is_not_acknowledged_before_the_older_is_dead(self):
        addresses = ["127.0.0.1:4431", "127.0.0.1:4432"]
        first, second = (self.target([address], number) for number, address in enumerate(addresses, start=1))
        second.set_ana(NQN, addresses[1], "non_optimized")
        self.cleatd = cleat = self.cleat(addresses)
        path = self.bench.path("remote.sock")
        guest = self.bench.guest(disks={"remote": path})
        cleat.attach("remote", path)
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
        self.assertTrue(self.doubt())
        self.put_on_the_drive(b"-")  # so that the older write is seen when it lands once more
        newer = write("B")
        self.is_held(newer)
        first.go_on()
        wait_for("the older write to land after all", on_the_drive, lambda letter: letter == "A")
        self.assertGreater(first.writes("Disk"), before)
        self.is_held(newer)
        first.kill()
        self.confirm_dead()
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
        self.net = self.bench.keep(Net(f"cleat{os.getpid()}", NET_ADDRESSES))
        self.addresses = [f"{address}:4420" for address in NET_ADDRESSES]
        self.peer = self.target(self.addresses, net=self.net.name)
        self.cleatd = self.cleat(self.addresses)
        path = self.bench.path("remote.sock")
        load = HostLoad(self.bench, "load", path, ["--mix", "read=30,write=70", "--depth", "8"])
        self.cleatd.attach("remote", path)
        self.goes_on()
        for step in (self.cut, self.swallow, self.change_ana, self.stop_still, self.kill_target, self.resize, self.remove,
                     self.kill_engine, self.upgrade):
            began = time.monotonic()
            step()
            self.goes_on()
            print(f"{step.__name__}: {time.monotonic() - began:.1f} s", file=sys.stderr)
        result = load.end_well()
        self.assertEqual(result["reconnects"], 2)  # an engine killed and one upgraded
        print(f"{result['verified_blocks']} blocks verified; longest request "
              f"{result['latency_ns']['max'] / 1e9:.2f} s", file=sys.stderr)

    # ---- What is seen

    def writes(self):
        return self.peer.writes("Disk")

    def goes_on(self):
        before = self.writes()
        wait_for("further writes", self.writes, lambda now: now > before + 100)

    def controllers(self):
        return {one["cntlid"] for one in self.peer.rpc("nvmf_subsystem_get_controllers", nqn=NQN)}

    def settle(self, before, lost):
        """Until each path is up again and the target has nothing left of the lost ones', of which it had `before` as controllers. Only
        then is the word true that their commands are dead."""
        wait_for("the paths to come back", self.controllers,
                 lambda now: len(now) == len(self.addresses) and len(now - before) >= lost)
        self.confirm_dead()

    # ---- What happens

    def cut(self):
        for address in self.addresses:
            before = self.controllers()
            self.peer.unlisten(NQN, address)
            self.goes_on()
            self.peer.listen(NQN, address)
            self.settle(before, 1)

    def swallow(self):
        for address in NET_ADDRESSES:
            before = self.controllers()
            self.net.swallow(address, True)
            wait_for("the target to miss its host", self.controllers, lambda now: len(now) == 1)
            self.goes_on()
            self.net.swallow(address, False)
            self.settle(before, 1)

    def change_ana(self):
        for state in ("inaccessible", "non_optimized", "optimized"):
            for address in self.addresses:
                self.peer.set_ana(NQN, address, state)
                self.goes_on()
                if state == "inaccessible":
                    self.peer.set_ana(NQN, address, "optimized")

    def stop_still(self):
        before = self.controllers()
        self.peer.stop_still()
        time.sleep(4 * KEEP_ALIVE_MS / 1000)
        self.peer.go_on()
        self.settle(before, len(self.addresses))

    def kill_target(self):
        self.peer.kill()
        self.peer.start()
        self.show(self.peer, self.addresses)
        self.settle(set(), len(self.addresses))

    def resize(self):
        with open(self.image, "r+b") as image:
            image.truncate(2 * DISK_MIB * MIB)
        self.peer.rpc("bdev_aio_rescan", name="Disk")
        wait_for("the disk's new size", lambda: int(self.cleatd.ctl("disk", "get", "remote")["spec"]["size_bytes"]),
                 lambda size: size == 2 * DISK_MIB * MIB)

    def remove(self):
        self.peer.rpc("nvmf_subsystem_remove_ns", nqn=NQN, nsid=1)
        wait_for("the disk to miss its namespace",
                 lambda: self.cleatd.ctl("attachment", "get", "remote-blk", "remote")["status"]["storage_state"],
                 lambda state: state != "STORAGE_STATE_OK")
        self.peer.rpc("nvmf_subsystem_add_ns", nqn=NQN, namespace={"bdev_name": "Disk", "nsid": 1, "uuid": UUID, "nguid": NGUID})
        wait_for("the paths to come back", self.controllers, lambda now: len(now) == len(self.addresses))
        self.confirm_dead()

    def kill_engine(self):
        before = self.controllers()
        self.cleatd.restart_engine()
        self.settle(before, len(self.addresses))

    def upgrade(self):
        self.cleatd.add_engine("engine-1")
        pause = self.cleatd.upgrade("engine-0", "engine-1")
        print(f"upgrade: {pause:.1f} ms without the disk", file=sys.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)

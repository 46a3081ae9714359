# SPDX-License-Identifier: Apache-2.0
"""Two hosts that share a disk of Cleat's, and shut each other out by reservations: Linux' own host in a guest, which is both, and nvme-cli."""

import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.export import Export
from cleat_guest.nvmf_guest import HOST_ID, HOST_NQN, OTHER_ID, OTHER_NQN, NvmfGuest, free_ports

NQN = "nqn.2026-11.example:shared"
# Were there one device for all paths, the kernel would send the commands of one of its two hosts by the other's path.
APART = "nvme_core.multipath=N"
OPTIONS = ",keep_alive_tmo=10,reconnect_delay=1,nr_io_queues=1"
ONE, OTHER = 0xa, 0xb  # their keys
WRITE_EXCLUSIVE, WRITE_EXCLUSIVE_REGISTRANTS = 1, 3
ACQUIRE, PREEMPT_AND_ABORT = 0, 2
REGISTRATION_PREEMPTED = 1


class ReservationsTest(SharedBenchTest):
    """Both hosts are connected; each test finds no registrant, and leaves none."""

    @classmethod
    def set_up_bench(cls):
        cls.cleat = cls.bench.cleat()
        cls.cleat.create_memory_disk("one", "16M")
        ports = free_ports(1)
        cls.export = Export(cls.cleat, "exported", nqn=NQN, ports=ports, hosts=[HOST_NQN, OTHER_NQN])
        cls.export.attach("one")
        cls.host = NvmfGuest(cls.bench, NQN, ports, kernel_options=APART).wait_ready()
        cls.one = cls.connect(HOST_NQN, HOST_ID)
        cls.other = cls.connect(OTHER_NQN, OTHER_ID)

    @classmethod
    def connect(cls, nqn, host_id):
        """The host's device, which is its controller's alone."""
        before = cls.host.controllers()
        status, output = cls.host.connect_by_hand(0, OPTIONS, nqn, host_id)
        assert status == 0, output
        new = cls.host.wait("its controller", cls.host.controllers, lambda found: len(found) > len(before))
        device = f"/dev/{(set(new) - set(before)).pop()}n1"
        cls.host.guest.run(f"until [ -b {device} ]; do sleep 0.05; done")
        return device

    def nvme(self, verb, device, options):
        return self.host.guest.execute(f"nvme {verb} {device} -n 1 {options}")

    def ok(self, verb, device, options):
        status, output = self.nvme(verb, device, options)
        self.assertEqual(status, 0, f"{verb} {options}: {output}")

    def register(self, device, key):
        self.ok("resv-register", device, f"--nrkey={key} --rrega=0 --cptpl=3")

    def acquire(self, device, key, kind, action=ACQUIRE, of=0):
        self.ok("resv-acquire", device, f"--crkey={key} --prkey={of} --rtype={kind} --racqa={action}")

    def clear(self, device, key):
        self.ok("resv-release", device, f"--crkey={key} --rrela=1 --rtype=0")

    def report(self, device):
        return self.host.json(f"resv-report {device} -n 1 --eds")

    def writes(self, device, value):
        """Whether it may."""
        status, _ = self.host.guest.execute(f"head -c 4096 /dev/zero | tr '\\0' {value} | dd of={device} oflag=direct bs=4096 count=1 conv=notrunc "
                                            "iflag=fullblock")
        return status == 0

    def read(self, device):
        return self.host.guest.run(f"dd if={device} iflag=direct bs=4096 count=1 2>/dev/null | head -c 1")

    def test_1_the_holder_alone_writes_and_all_read(self):
        self.assertTrue(self.writes(self.other, "B"))
        self.register(self.one, ONE)
        self.acquire(self.one, ONE, WRITE_EXCLUSIVE)
        self.assertFalse(self.writes(self.other, "C"))
        self.assertEqual(self.read(self.other), "B")
        self.assertTrue(self.writes(self.one, "A"))
        said = self.report(self.other)
        self.assertEqual((said["rtype"], said["regctl"], said["ptpls"]), (WRITE_EXCLUSIVE, 1, 1), said)
        self.assertIn("1 disk(s) are reserved by hosts", str(self.export.get()))
        status, output = self.nvme("resv-acquire", self.other, f"--crkey={OTHER} --rtype={WRITE_EXCLUSIVE} --racqa=0")
        self.assertNotEqual(status, 0, output)
        self.clear(self.one, ONE)
        self.assertTrue(self.writes(self.other, "D"))

    def test_2_who_is_preempted_is_told_and_writes_no_more(self):
        for device, key in ((self.one, ONE), (self.other, OTHER)):
            self.register(device, key)
        self.acquire(self.one, ONE, WRITE_EXCLUSIVE_REGISTRANTS)
        self.assertTrue(self.writes(self.other, "B"))
        self.acquire(self.one, ONE, WRITE_EXCLUSIVE_REGISTRANTS, PREEMPT_AND_ABORT, of=OTHER)
        self.assertFalse(self.writes(self.other, "C"))
        controller = self.other[:-len("n1")]
        said = self.host.json(f"resv-notif-log {controller}")
        self.assertEqual((said["count"], said["rn_log_type"], said["nsid"]), (1, REGISTRATION_PREEMPTED, 1), said)
        self.clear(self.one, ONE)

    def test_3_it_holds_in_the_next_engine(self):
        self.register(self.one, ONE)
        self.acquire(self.one, ONE, WRITE_EXCLUSIVE)
        self.cleat.restart_engine()
        self.host.wait_live(2)
        self.assertTrue(self.writes(self.one, "A"))
        self.assertFalse(self.writes(self.other, "B"))
        self.cleat.add_engine("engine-1")
        self.cleat.upgrade("engine-0", "engine-1")
        self.assertEqual(self.host.live(), 2, "they have noticed nothing")
        self.assertFalse(self.writes(self.other, "B"))
        self.assertTrue(self.writes(self.one, "E"))
        self.assertEqual(self.read(self.other), "E")
        self.clear(self.one, ONE)
        self.assertTrue(self.writes(self.other, "F"))


if __name__ == "__main__":
    unittest.main(verbosity=2)

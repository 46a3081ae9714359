# SPDX-License-Identifier: Apache-2.0
"""Disks that Cleat exports over NVMe/TCP, and Linux' own host in a guest, by two paths. One boot for all; Cleat runs on this machine."""

import hashlib
import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.export import Export
from cleat_guest.nvmf_guest import HOST_NQN, OTHER_NQN, PATHS, NvmfGuest, free_ports
from cleat_guest.verified_load import VerifiedLoad

MIB = 1 << 20
NQN = "nqn.2026-11.example:exported"
ONE_MIB, TWO_MIB, GROWN_MIB = 32, 8, 48
BLOCK_BYTES = 512
# Keep alive of 5 s: an emulated host takes its time. A path that is lost is tried again each second.
OPTIONS = "-k 5 -c 1"


class NvmfExportTest(SharedBenchTest):
    """A file as namespace 1, which the host is connected to by both paths before and after each test; memory as another."""

    @classmethod
    def set_up_bench(cls):
        cls.cleat = cls.bench.cleat()
        cls.image = cls.bench.path("one.img")
        cls.cleat.create_file_disk("one", f"{ONE_MIB}M", cls.image)
        cls.cleat.create_memory_disk("two", f"{TWO_MIB}M")
        cls.ports = free_ports()
        cls.export = Export(cls.cleat, "exported", nqn=NQN, ports=cls.ports, hosts=[HOST_NQN])
        cls.host = NvmfGuest(cls.bench, NQN, cls.ports)
        assert cls.export.attach("one") == 1
        cls.guest = cls.host.wait_ready().guest
        cls.one = cls.host.connect_all(OPTIONS)
        cls.host.wait_live(PATHS)

    def pattern(self, device, offset, length):
        """Bytes that are nowhere else, on the device; their sum."""
        self.guest.run(f"head -c {length} /dev/urandom >/run/pattern && dd if=/run/pattern of={device} oflag=direct,seek_bytes bs=64k seek={offset} "
                       "conv=notrunc 2>/dev/null")
        return self.guest.run("sha256sum /run/pattern").split()[0]

    def zeroes(self, length):
        return self.guest.run(f"head -c {length} /dev/zero | sha256sum").split()[0]

    def test_1_discovery_tells_a_host_what_it_may_have(self):
        self.assertEqual(sorted(self.host.discover()), sorted(self.ports))
        self.assertEqual(self.host.discover(as_other=True), [])

    def test_2_both_paths_lead_to_one_disk(self):
        self.assertEqual(self.host.live(), PATHS)
        self.assertEqual(self.host.heads(), {1: [self.one]})
        self.assertEqual(self.host.ana_states(self.one), ["optimized"] * PATHS)
        subsystems = [one for host in self.host.json("list-subsys") for one in host["Subsystems"] if one["NQN"] == NQN]
        self.assertEqual(len(subsystems), 1)
        self.assertEqual([path["State"] for path in subsystems[0]["Paths"]], ["live"] * PATHS)

    def test_3_what_it_says_of_itself(self):
        name = sorted(self.host.controllers())[0]
        controller = self.host.json(f"id-ctrl /dev/{name}")
        self.assertEqual(controller["subnqn"], NQN)
        self.assertEqual(controller["cntrltype"], 1, "an I/O controller")
        space = self.host.json(f"id-ns /dev/{name} -n 1")
        self.assertEqual(space["nsze"], ONE_MIB * MIB // BLOCK_BYTES)
        self.assertEqual(self.guest.run(f"nvme list-ns /dev/{name}").split(":")[-1].strip(), "0x1")
        self.assertEqual(self.host.json(f"smart-log /dev/{name}")["critical_warning"], 0)
        self.host.json(f"error-log /dev/{name} -e 1")
        groups = self.host.json(f"ana-log /dev/{name}")["ANA DESC LIST "]
        self.assertEqual([group["state"] for group in groups if group.get("NSIDS")], ["optimized"])
        for feature in ("7", "0xb", "0xf"):  # queues, events, keep alive
            self.guest.run(f"nvme get-feature /dev/{name} -f {feature} -H")
        status, output = self.guest.execute(f"nvme get-log /dev/{name} --log-id=0x7f --log-len=512")
        self.assertNotEqual(status, 0, output)
        self.assertEqual(self.host.live(), PATHS, "what is refused ends nothing")

    def test_4_fio_reads_back_what_it_wrote(self):
        """Each size from a block to a megabyte, at depth and by several at once; the file has it."""
        self.host.fio(self.one, "--iodepth=16 --numjobs=3 --offset_increment=8M --size=8M --io_size=3M --bsrange=512-64k --blockalign=512")
        self.host.fio(self.one, "--iodepth=4 --size=8M --offset=24M --bs=1M")
        expected = self.pattern(self.one, 5 * MIB, 256 * 1024)
        self.guest.run(f"nvme flush {self.one}")
        self.assertEqual(self.host.dump(self.one, 5 * MIB, 256 * 1024), expected)
        with open(self.image, "rb") as image:
            image.seek(5 * MIB)
            self.assertEqual(hashlib.sha256(image.read(256 * 1024)).hexdigest(), expected)

    def test_5_with_digests(self):
        self.host.disconnect()
        self.host.connect(0, f"{OPTIONS} --hdr-digest --data-digest")
        self.host.fio(self.host.device(1), "--iodepth=8 --size=4M --io_size=1M --bsrange=4k-256k")
        self.host.disconnect()
        self.assertEqual(self.host.connect_all(OPTIONS), self.one)

    def test_6_blocks_are_given_back_and_zeroed(self):
        for command in (f"/usr/sbin/blkdiscard -o {MIB} -l {MIB} {self.one}", f"/usr/sbin/blkdiscard -z -o {MIB} -l {MIB} {self.one}",
                        f"nvme write-zeroes {self.one} -s {MIB // BLOCK_BYTES} -c {MIB // BLOCK_BYTES - 1}"):
            before = self.pattern(self.one, MIB - 65536, 65536)
            self.pattern(self.one, MIB, MIB)
            after = self.pattern(self.one, 2 * MIB, 65536)
            self.guest.run(command)
            self.assertEqual(self.host.dump(self.one, MIB, MIB), self.zeroes(MIB), command)
            self.assertEqual(self.host.dump(self.one, MIB - 65536, 65536), before, command)
            self.assertEqual(self.host.dump(self.one, 2 * MIB, 65536), after, command)

    def test_7_namespaces_come_grow_and_go_while_others_are_in_use(self):
        load = VerifiedLoad(self.guest, self.one, name="beside", seed=7, size="4M", io_size="1M")
        load.wait_begun()
        self.assertEqual(self.export.attach("two"), 2)
        two = self.host.device(2)
        self.assertEqual(self.host.size_bytes(two), TWO_MIB * MIB)
        self.host.fio(two, "--iodepth=8 --size=4M --io_size=1M --bs=16k")
        self.export.detach("two")
        self.host.wait_gone(2)
        self.cleat.resize_disk("one", f"{GROWN_MIB}M")
        self.guest.wait_size(self.one, GROWN_MIB * MIB)
        self.host.fio(self.one, f"--offset={ONE_MIB}M --size=8M --io_size=1M --bs=64k")
        load.wait()
        self.assertEqual(self.host.live(), PATHS)

    def test_8_a_host_that_is_not_let_in_gets_nothing(self):
        for _ in range(2):
            status, output = self.host.connect_as_other(0)
            self.assertNotEqual(status, 0, output)
        self.assertEqual(self.host.live(), PATHS, "the others go on")
        self.export.let_in([OTHER_NQN])
        self.host.wait_live(0)
        self.export.let_in([HOST_NQN, OTHER_NQN])
        self.host.disconnect()  # where the kernel has not given it up
        self.assertEqual(self.host.connect_all(OPTIONS), self.one)
        self.export.let_in([HOST_NQN])
        self.assertEqual(self.host.live(), PATHS, "who stays on the list loses nothing")

    def test_9_a_load_goes_on_by_the_path_that_is_left(self):
        """A black hole: what is under way there is sent again by the other path once the host misses its keep alives."""
        load = VerifiedLoad(self.guest, self.one, name="paths", seed=9, size="8M", io_size="2M")
        load.wait_begun()
        self.guest.plug_cable(1, False)
        self.host.wait_live(PATHS - 1)
        load.goes_on()
        self.guest.plug_cable(1, True)
        self.host.wait_live(PATHS)
        load.wait()


if __name__ == "__main__":
    unittest.main(verbosity=2)

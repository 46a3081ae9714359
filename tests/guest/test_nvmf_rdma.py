# SPDX-License-Identifier: Apache-2.0
"""The target over RDMA, with Linux' own NVMe/RDMA host, over soft-RoCE: both in one guest, as this machine's kernel has no RDMA. Two adapters are two
paths. The target is target_loop, which has the engine's target and a disk in memory. One boot for all."""

import os
import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.nvmf_events import wait_for
from cleat_guest.nvmf_guest import HOST_ID, HOST_NQN, OTHER_ID, OTHER_NQN, program_of
from cleat_guest.programs import pack
from cleat_guest.verified_load import VerifiedLoad

TEST_DIR = os.path.join(os.environ["CLEAT_BIN_DIR"], "..", "tests")
NQN = "nqn.2026-11.example:rdma"
PATHS = {"rxe0": ("dummy0", "192.0.2.1"), "rxe1": ("dummy1", "198.51.100.1")}
DEVICE = "/dev/nvme0n1"
LIVE = "cat /sys/class/nvme/nvme*/state 2>/dev/null | grep -c live || true"
# Of a host's reconnecting. Its own notice of a silent target takes as long as the adapter's retries, or the keep alive timeout.
OPTIONS = "--nr-io-queues=2 --keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=120"


class NvmfRdmaTest(SharedBenchTest):
    @classmethod
    def set_up_bench(cls):
        programs = [os.path.join(TEST_DIR, "target_loop"), program_of("nvme"), program_of("fio")]
        archive = pack(cls.bench.path("programs.tar"), programs)
        cls.guest = cls.bench.guest(tools="rdma", memory_mb=1536, kernel_options="dummy.numdummies=2", files={"programs": archive})
        cls.guest.wait_ready()
        cls.guest.run("tar x -f /dev/vda -C / && mkdir -p /etc/nvme && ulimit -l unlimited")
        for link in PATHS:
            cls.add_link(link)

    @classmethod
    def add_link(cls, link):
        device, address = PATHS[link]
        cls.guest.run(f"ip address replace {address}/24 dev {device}; ip link set {device} up && rdma link add {link} type rxe netdev {device}")

    def setUp(self):
        self.target = None
        self.start_target()

    def tearDown(self):
        self.guest.execute(f"nvme disconnect -n {NQN}")
        if self.target is not None:
            self.stop_target()

    # ---- The target: ends when its standard input does

    def start_target(self):
        listen = " ".join(f"--listen rdma://{address}:4420" for _, address in PATHS.values())
        self.guest.run("rm -f /run/stop /run/target.in /run/target.out; mkfifo /run/target.in")
        self.target = self.guest.background(
            "(until [ -e /run/stop ]; do sleep 0.1; done) >/run/target.in & echo $! >/run/holder; "
            f"target_loop {listen} --nqn {NQN} --host {HOST_NQN} --sleeps --mib 64 --reactors 2 </run/target.in >/run/target.out 2>&1 & "
            "echo $! >/run/target.pid; wait $!")
        self.guest.run("until grep -q ready /run/target.out; do kill -0 $(cat /run/target.pid) && sleep 0.1 || { cat /run/target.out; exit 1; }; done")

    def stop_target(self):
        self.guest.run("touch /run/stop")
        target, self.target = self.target, None
        target.wait()
        said = self.guest.run("cat /run/target.out")
        self.assertNotIn("CHECK", said)
        return said

    # ---- The host

    def connect(self, link, more=""):
        return self.guest.execute(f"nvme connect -t rdma -a {PATHS[link][1]} -s 4420 -n {NQN} -q {HOST_NQN} -I {HOST_ID} {OPTIONS} {more}")

    def connect_all(self):
        for link in PATHS:
            status, output = self.connect(link)
            self.assertEqual(status, 0, output)
        self.guest.run(f"until [ -b {DEVICE} ]; do sleep 0.05; done")

    def wait_live(self, count):
        wait_for(f"{count} live controllers", lambda: int(self.guest.run(LIVE)), lambda live: live == count)

    def verify(self, options):
        status, output = self.guest.execute(
            f"fio --name=verify --filename={DEVICE} --direct=1 --ioengine=libaio --rw=randwrite --verify=crc32c --verify_fatal=1 --do_verify=1 {options}")
        self.assertEqual(status, 0, output)
        self.assertIn("err= 0", output)

    # ---- Tests

    def test_1_a_host_finds_connects_and_reads_what_it_has_written(self):
        found = self.guest.run(f"nvme discover -t rdma -a {PATHS['rxe0'][1]} -s 4420 -q {HOST_NQN} -I {HOST_ID}")
        self.assertIn(NQN, found)
        self.assertEqual(found.count("trtype:  rdma"), 3)  # the service, and the subsystem at two addresses
        status, _ = self.guest.execute(f"nvme connect -t rdma -a {PATHS['rxe0'][1]} -s 4420 -n {NQN} -q {OTHER_NQN} -I {OTHER_ID}")
        self.assertNotEqual(status, 0)  # it is not let in
        self.connect_all()
        # Up to 4 KiB come in the capsule; 1 MiB takes many READs and WRITEs.
        for sizes, depth in (("512-4k", 32), ("4k-64k", 16), ("256k-1M", 8)):
            self.verify(f"--iodepth={depth} --size=32M --io_size=8M --bsrange={sizes} --blockalign={sizes.split('-', maxsplit=1)[0]}")
        for number in range(2):
            self.guest.run(f"echo 1 >/sys/class/nvme/nvme{number}/reset_controller")
        self.wait_live(2)
        self.verify("--iodepth=8 --size=8M --bs=16k")
        self.guest.run(f"blkdiscard -o 0 -l 1048576 {DEVICE}")
        self.guest.run(f"nvme disconnect -n {NQN}")

    def test_2_the_target_ends_and_comes_back_under_its_hosts(self):
        self.connect_all()
        self.guest.run("kill -9 $(cat /run/target.pid); touch /run/stop")
        self.target = None
        # They notice that nobody answers, and try again.
        self.wait_live(0)
        self.start_target()
        self.wait_live(2)
        self.verify("--iodepth=8 --size=8M --bs=16k")
        self.stop_target()
        self.wait_live(0)
        self.start_target()
        self.wait_live(2)
        self.verify("--iodepth=8 --size=8M --bs=16k")

    def test_3_an_adapter_is_taken_away_under_a_load(self):
        self.connect_all()
        load = VerifiedLoad(self.guest, DEVICE, name="load", seed=1, size="48M", io_size="8M", sizes="512-64k")
        load.wait_begun()
        # The kernel takes it away once nobody has it open any more, which is when the target has ended.
        self.guest.run("rdma link delete rxe1 >/dev/null 2>&1 &")
        self.wait_live(1)
        load.goes_on()
        longest_ms = load.wait()
        print(f"an adapter is taken away: the longest request took {longest_ms} ms")
        self.guest.run(f"nvme disconnect -n {NQN}")
        said = self.stop_target()
        self.assertIn("what goes by it loses its connections", said)
        self.guest.run("while rdma link | grep -q rxe1; do sleep 0.1; done")


if __name__ == "__main__":
    unittest.main(verbosity=2)

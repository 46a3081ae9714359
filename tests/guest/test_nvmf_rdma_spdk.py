#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""SPDK as the peer over NVMe/RDMA (`PEER_SPDK`: the folder that SPDK was built in), over soft-RoCE in a guest that has both ends: Cleat's disk on SPDK's
target, and SPDK's host on Cleat's target (target_loop). One boot for all; no root is needed on this machine."""

import os
import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.nvme_host import Load, NvmeHost
from cleat_guest.nvmf_guest import HOST_ID, HOST_NQN, OTHER_NQN, program_of
from cleat_guest.spdk_guest import UNLIMITED, GuestSpdkHost, GuestSpdkTarget, prepare, spdk_programs
from cleat_guest.spdk_target import built_in

TEST_DIR = os.path.join(os.environ["CLEAT_BIN_DIR"], "..", "tests")
DRIVE_BYTES = 64 << 20
MEMORY_MB = 3072
PAGES_MB = 1024  # of the target, the host, and what each leaves behind where it is killed
ADDRESS = "192.0.2.1"
# SPDK's target, over the guest's drive.
NQN = "nqn.2026-11.example:spdk"
UUID = "91fdba0d-f87b-4c25-b80f-db7be1418b9f"
PORT = 4420
# Cleat's.
OWN_NQN = "nqn.2026-11.example:own"
OWN_PORT = 4430
OWN_MIB = 64
KEEP_ALIVE_MS = 5000
# Options of perf's: how large its requests are, and in pieces of how many bytes. Each piece is a descriptor with a key of the command's SGL.
SIZES = (("512", None), ("4096", None), ("4096", "1024"), ("16384", "4096"), ("65536", None), ("131072", "16384"), ("131072", None))
DEPTHS = (1, 16, 64)
FILE_KIB = 24 << 10
MISMATCH = "Buffer mismatch"  # bdevperf's word for data that is not what it wrote


class SpdkOverRdmaTest(SharedBenchTest):

    @classmethod
    def set_up_bench(cls):
        if built_in() is None:
            raise unittest.SkipTest("PEER_SPDK names no folder that SPDK was built in")
        path = cls.bench.path
        with open(path("plain"), "wb") as image:
            image.truncate(DRIVE_BYTES)
        programs = [*spdk_programs(cls.bench, "nvmf_tgt", "spdk_nvme_perf", "spdk_dd", "bdevperf"), program_of("nvme"),
                    *(os.path.join(TEST_DIR, name) for name in ("nvmf_namespace", "target_loop"))]
        cls.host = NvmeHost(cls.bench, {"plain": {"drive": f"file={path('plain')},format=raw"}}, tools="rdma", memory_mb=MEMORY_MB, programs=programs)
        cls.guest = cls.host.guest
        cls.guest.run(f"ip address replace {ADDRESS}/24 dev dummy0; ip link set dummy0 up && rdma link add rxe0 type rxe netdev dummy0 && "
                      "ifconfig lo 127.0.0.1 up && chmod 666 /dev/infiniband/* && mkdir -p /etc/nvme")
        prepare(cls.guest, PAGES_MB)
        drive = ("bdev_aio_create", {"name": "Disk", "filename": f"/dev/{cls.host.namespace('plain')}", "block_size": 512, "uuid": UUID})
        cls.spdk = GuestSpdkTarget(cls.guest, NQN, UUID, drive, [f"{ADDRESS}:{PORT}"])

    # ---- Cleat's disk on SPDK's target

    def writes(self):
        """Writes that the drive has done."""
        return int(self.guest.run(f"cat /sys/block/{self.host.namespace('plain')}/stat").split()[4])

    def goes_on(self):
        before = self.writes()
        self.host.wait_for("further writes", self.writes, lambda now: now > before + 100)

    def doubt(self):
        return self.host.ctl("disk", "get", "remote")["status"].get("doubt")

    def confirm_what_is_in_doubt(self):
        """Said again where more has come into doubt meanwhile."""
        def said():
            self.guest.execute("cleatctl --address unix:/run/cleat/api.sock disk confirm-dead remote --yes")
            return self.doubt()
        self.host.wait_for("nothing in doubt", said, lambda doubt: not doubt)

    def test_1_a_disk_agrees_with_the_reference_on_spdks_target(self):
        self.spdk.start()
        self.addCleanup(self.spdk.kill)
        status, output = self.guest.execute(
            f"{UNLIMITED}cd /run && CLEAT_NVMF_ADDRESS=rdma://{ADDRESS}:{PORT} CLEAT_NVMF_NQN={NQN} CLEAT_NVMF_PLAIN={UUID} nvmf_namespace "
            "--gtest_filter=Disk.AgreesWithTheReference:Discovery.TheTargetSaysWhereItsSubsystemIs")
        self.assertEqual(status, 0, output)
        self.assertIn("[  PASSED  ] 2 tests", output)

    def test_2_cleatds_disk_outlives_spdks_target(self):
        host, spdk = self.host, self.spdk.start()
        self.addCleanup(spdk.kill)
        host.start_cleatd()
        host.start_engine(0, limits=UNLIMITED)
        host.ctl("subsystem", "create", "spdk", "--nqn", NQN, "--keep-alive-ms", str(KEEP_ALIVE_MS), "--address", f"rdma://{ADDRESS}:{PORT}")
        host.ctl("disk", "create", "remote", "--size", "16M", "--nvme-tcp", "spdk", "--namespace", UUID)
        host.ctl("controller", "create", "remote", "--socket", "/run/remote.sock")
        load = Load(host, "remote", "--mix read=30,write=70 --depth 8")
        host.ctl("attach", "remote", "remote", "--wait=120")
        self.goes_on()
        spdk.kill()
        spdk.start()
        host.wait_for("the doubt about what the dead target had", self.doubt, bool)
        self.confirm_what_is_in_doubt()
        self.goes_on()
        # The target stands still until it is given up, and has what it had when it goes on: until its old queue pairs are gone that may land.
        before = spdk.queue_pairs()
        self.assertGreaterEqual(len(before), 2)  # an admin queue's, and one of I/O
        spdk.stop_still()
        host.wait_for("the doubt about what the stopped target has", self.doubt, bool)
        spdk.go_on()
        host.wait_for("other queue pairs", spdk.queue_pairs, lambda now: len(now) >= len(before) and not now & before)
        self.confirm_what_is_in_doubt()
        self.goes_on()
        load.end_well()
        host.ctl("detach", "remote", "remote", "--wait=120")

    # ---- SPDK's host on Cleat's target

    def start_own(self, options=""):
        """target_loop; what ends it is a clean-up."""
        self.guest.run("rm -f /run/stop /run/own.in; mkfifo /run/own.in")
        own = self.guest.background(
            "(until [ -e /run/stop ]; do sleep 0.1; done) >/run/own.in & "
            f"{UNLIMITED}target_loop --listen rdma://{ADDRESS}:{OWN_PORT} --nqn {OWN_NQN} --host {HOST_NQN} --sleeps --mib {OWN_MIB} {options} "
            "</run/own.in >/run/own.out 2>&1")
        self.guest.run("until grep -q ready /run/own.out; do sleep 0.1; done")
        # The first connection has the target register its memory, for which SPDK does not wait where processors are emulated; Linux does.
        self.guest.run(f"nvme discover -t rdma -a {ADDRESS} -s {OWN_PORT} -q {HOST_NQN} -I {HOST_ID}")

        def stop():
            self.guest.run("touch /run/stop")
            own.wait()  # which fails where the target does
            self.assertNotIn("CHECK", self.guest.run("cat /run/own.out"))
        self.addCleanup(stop)
        return GuestSpdkHost(self.guest, OWN_NQN, HOST_NQN, f"{ADDRESS}:{OWN_PORT}")

    def runs(self, host, command):
        """Its output; a failed test where it fails."""
        status, output = host.run(command)
        self.assertEqual(status, 0, f"{command}\n{output[-4000:]}\n{self.guest.run('tail -n 20 /run/own.out')}")
        return output

    def loads(self, host, options):
        output = self.runs(host, host.perf(options))
        self.assertRegex(output, r"\nTotal +: +[1-9]", "requests have ended")
        self.assertNotIn("completed with error", output)

    def verifies(self, host, options):
        """bdevperf's verify: each request is written, read and compared."""
        output = self.runs(host, host.bdevperf(f"-w verify {options}"))
        self.assertRegex(output, r"\n\s*Total +: +[1-9]", "requests have ended")
        self.assertNotIn(MISMATCH, output)

    def test_3_spdks_load_ends_without_an_error(self):
        host = self.start_own()
        for number, (size, piece) in enumerate(SIZES):
            for mix in ("-w randread", "-w randwrite", "-w randrw -M 50"):
                self.loads(host, f"-q {DEPTHS[number % len(DEPTHS)]} -o {size} {f'-O {piece}' if piece else ''} {mix} -t 1")
        for depth in DEPTHS:
            self.loads(host, f"-q {depth} -o 4096 -w randrw -M 50 -P 2 -t 1")
        self.assertIn("Attached to", self.runs(host, host.perf("-q 1 -o 4096 -w read -t 1")))
        _, refused = host.run(host.perf("-q 1 -o 4096 -w read -t 1", host_nqn=OTHER_NQN))
        self.assertNotIn("Attached to", refused)

    def test_4_spdk_reads_what_it_has_written_and_so_does_linux(self):
        host = self.start_own()
        for size, depth in ((512, 32), (4096, 64), (65536, 16), (131072, 8)):
            self.verifies(host, f"-q {depth} -o {size} -t 2")
        self.guest.run(f"dd if=/dev/urandom of=/run/out bs=1024 count={FILE_KIB} 2>/dev/null")
        self.runs(host, host.dd("--if /run/out --ob Nvme0n1 --bs 65536 --qd 8"))
        self.runs(host, host.dd(f"--ib Nvme0n1 --of /run/in --bs 16384 --qd 16 --count {FILE_KIB // 16}"))
        self.guest.run("cmp /run/out /run/in")
        drives = "ls -d /sys/block/nvme*"
        before = set(self.guest.run(drives).split())
        self.guest.run(f"nvme connect -t rdma -a {ADDRESS} -s {OWN_PORT} -n {OWN_NQN} -q {HOST_NQN} -I {HOST_ID} --nr-io-queues=1")
        name = self.host.wait_for("its namespace", lambda: set(self.guest.run(drives).split()) - before, bool).pop()
        self.guest.run(f"dd if=/dev/{os.path.basename(name)} of=/run/in iflag=direct bs=65536 count={FILE_KIB // 64} 2>/dev/null && cmp /run/out /run/in")
        self.guest.run(f"nvme disconnect -n {OWN_NQN} && rm /run/out /run/in")

    def test_5_a_host_that_is_killed_under_its_load_harms_nobody(self):
        host = self.start_own()
        for size in ("4096", "131072"):
            load = host.background(host.perf(f"-q 64 -o {size} -w randrw -M 50 -t 600 2>&1"))
            self.host.wait_for("its queues", host.queue_pairs, lambda found: len(found) >= 2)
            self.guest.run(f"sleep 2; kill -9 $(cat {host.pid_file}); until [ -e {load.path}.status ]; do sleep 0.05; done")
            self.verifies(host, "-q 16 -o 16384 -t 1")

    def test_6_its_verification_finds_a_disk_that_keeps_nothing(self):
        """The negative control of those before."""
        # What is written is so small that it comes in the capsule: larger data a read of that disk may find in the memory that its write had.
        host = self.start_own("--null")
        status, output = host.run(host.bdevperf("-w verify -q 16 -o 4096 -t 1"))
        self.assertNotEqual(status, 0)
        self.assertIn(MISMATCH, output)


if __name__ == "__main__":
    unittest.main(verbosity=2)

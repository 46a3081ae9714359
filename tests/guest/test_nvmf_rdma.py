# SPDX-License-Identifier: Apache-2.0
"""NVMe over RDMA, over soft-RoCE with both ends in one guest, as this machine's kernel has no RDMA. Two adapters are two paths. Linux' own host is on Cleat's
target (target_loop: the engine's, with a disk in memory), and Cleat's disks, alone and as cleatd's, are on Linux' own target and on Cleat's. One boot for all."""

import os
import unittest

from cleat_guest import Bench, BenchTest, GuestError
from cleat_guest.nvme_host import NvmeHost
from cleat_guest.nvmf_events import wait_for
from cleat_guest.nvmf_guest import HOST_ID, HOST_NQN, OTHER_ID, OTHER_NQN, program_of
from cleat_guest.rdma_guest import ADDRESSES, PATHS, PORT, UNLIMITED, Adapters, RdmaDisk, RdmaKernelTarget, RdmaTarget
from cleat_guest.verified_load import VerifiedLoad

TEST_DIR = os.path.join(os.environ["CLEAT_BIN_DIR"], "..", "tests")
KERNEL_BYTES = 64 << 20
KERNEL_NQN, KERNEL_UUID = "nqn.2026-11.example:guest", "8d2f5a3e-4c0b-4a57-9d3e-0b9f6a1c7e11"
OWN_NQN, OWN_UUID = "nqn.2026-11.example:own", "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11"
OTHER_OWN_NQN, OTHER_OWN_UUID = "nqn.2026-11.example:other", "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f12"
OWN_PORT, OTHER_OWN_PORT = 4430, 4431
DISK_ID = "43434343-4343-4343-4343-434343434343"  # nvmf_disk.cc
DISK_NQN = f"nqn.2014-08.org.nvmexpress:uuid:{DISK_ID}"
DISKS = "/run/disks"  # a file system in memory
KEEP_ALIVE_MS = 5000
# Of a host's reconnecting. Its own notice of a silent target takes as long as the adapter's retries, or the keep alive timeout.
OPTIONS = f"--nr-io-queues=2 --keep-alive-tmo={KEEP_ALIVE_MS // 1000} --reconnect-delay=1 --ctrl-loss-tmo=120"
LOAD = "--mix read=30,write=70 --depth 8 --rate 300"
BLOCK_BYTES = 4096


class TargetLoop:
    """Cleat's target in a process of its own, at the adapters of `paths`. `more`: of its options."""

    made = 0

    def __init__(self, guest, *, nqn, host, uuid=OWN_UUID, paths=PATHS, port=OWN_PORT, more=""):
        TargetLoop.made += 1
        self._guest = guest
        self._files = f"/run/target-{TargetLoop.made}"
        listen = " ".join(f"--listen rdma://{ADDRESSES[path]}:{port}" for path in paths)
        # The program ends when its standard input does.
        self._job = guest.background(
            f"{UNLIMITED}mkfifo {self._files}.in; (until [ -e {self._files}.stop ]; do sleep 0.1; done) >{self._files}.in & "
            f"target_loop {listen} --nqn {nqn} --uuid {uuid} --host {host} --sleeps --mib 64 --reactors 2 {more} <{self._files}.in >{self._files}.out 2>&1 & "
            f"echo $! >{self._files}.pid; wait $!")
        guest.run(f"until grep -q ready {self._files}.out; do [ ! -e {self._job.path}.status ] && sleep 0.05 || {{ cat {self._files}.out; exit 1; }}; done")

    def signal(self, name):
        self._guest.run(f"kill -{name} $(cat {self._files}.pid)")

    def kill(self):
        self.signal("KILL")
        self._guest.run(f"touch {self._files}.stop")

    def stop(self):
        """What it has said until its end."""
        self._guest.run(f"touch {self._files}.stop")
        self._job.wait()
        return self.said()

    def said(self):
        return self._guest.run(f"cat {self._files}.out")


class TwoLoops(RdmaTarget):
    """One disk, shown by two processes, each at one adapter. `host`: the NvmeHost whose disk `remote` is there."""

    def __init__(self, host, adapters, processes):
        super().__init__(adapters, "target_loop", OWN_PORT)
        self._host, self.processes = host, processes

    def writes(self):
        """As the engine counts them: nothing counts what changes memory."""
        operations = self._host.ctl("stats", "remote")["disks"][0].get("operations", [])
        return sum(int(operation["count"]) for operation in operations if operation["operation"] == "write")


class RdmaTest(BenchTest):
    """`host`: NvmeHost, made for the first class."""

    host = None

    @classmethod
    def setUpClass(cls):
        if RdmaTest.host is None:
            RdmaTest.bench = unittest.enterModuleContext(Bench("nvmf_rdma"))
            RdmaTest.set_up_bench()

    @classmethod
    def set_up_bench(cls):
        with open(cls.bench.path("kernel"), "wb") as image:
            image.truncate(KERNEL_BYTES)
        programs = [os.path.join(TEST_DIR, name) for name in ("nvmf_namespace", "target_loop")] + [program_of("nvme"), program_of("fio")]
        RdmaTest.host = NvmeHost(cls.bench, {}, tools="rdma", memory_mb=1536, kernel_options="", programs=programs,
                                 images={"kernel": cls.bench.path("kernel")})
        RdmaTest.guest = cls.host.guest
        RdmaTest.adapters = Adapters(cls.guest)
        cls.guest.run(f"mkdir -p /etc/nvme {DISKS} && mount -t tmpfs none {DISKS} && chmod 1777 {DISKS}")

    def run(self, result=None):
        return self._run_and_tell(result)

    def start_target(self, **options):
        target = TargetLoop(self.guest, **options)
        self.addCleanup(self.stop_target, target)
        return target

    def stop_target(self, target):
        said = target.stop()
        self.assertNotIn("CHECK", said)
        return said


class HostTest(RdmaTest):
    """Linux' own host on Cleat's target."""

    def connect(self, path, nqn=OWN_NQN, port=OWN_PORT, host=f"-q {HOST_NQN} -I {HOST_ID}"):
        return self.guest.execute(f"nvme connect -t rdma -a {ADDRESSES[path]} -s {port} -n {nqn} {host} {OPTIONS}")

    def connect_all(self, paths=PATHS, **target):
        """The namespace's device."""
        nqn = target.get("nqn", OWN_NQN)
        self.addCleanup(self.disconnect, nqn)
        for path in paths:
            status, output = self.connect(path, **target)
            self.assertEqual(status, 0, output)
        return self.guest.run(f"until [ -b \"$device\" ]; do for s in /sys/class/nvme-subsystem/*; do if [ \"$(cat $s/subsysnqn)\" = {nqn} ]; then "
                              "device=/dev/$(ls $s | grep -m1 'nvme[0-9]*n1$'); fi; done; done; echo $device").strip()

    def disconnect(self, nqn=OWN_NQN):
        self.guest.run(f"nvme disconnect -n {nqn}")

    def live(self, nqn=OWN_NQN):
        return int(self.guest.run(f"for c in /sys/class/nvme/nvme*; do [ \"$(cat $c/subsysnqn $c/state 2>/dev/null | xargs)\" = '{nqn} live' ] && echo $c; done | wc -l"))

    def wait_live(self, count, nqn=OWN_NQN):
        wait_for(f"{count} live controllers", lambda: self.live(nqn), lambda live: live == count)

    def verify(self, device, options):
        status, output = self.guest.execute(
            f"fio --name=verify --filename={device} --direct=1 --ioengine=libaio --rw=randwrite --verify=crc32c --verify_fatal=1 --do_verify=1 {options}")
        self.assertEqual(status, 0, output)
        self.assertIn("err= 0", output)

    def test_1_a_host_finds_connects_and_reads_what_it_has_written(self):
        self.start_target(nqn=OWN_NQN, host=HOST_NQN)
        found = self.guest.run(f"nvme discover -t rdma -a {ADDRESSES[0]} -s {OWN_PORT} -q {HOST_NQN} -I {HOST_ID}")
        self.assertIn(OWN_NQN, found)
        self.assertEqual(found.count("trtype:  rdma"), 3)  # the service, and the subsystem at two addresses
        status, _ = self.connect(0, host=f"-q {OTHER_NQN} -I {OTHER_ID}")
        self.assertNotEqual(status, 0)  # it is not let in
        device = self.connect_all()
        # Up to 4 KiB come in the capsule; 1 MiB takes many READs and WRITEs.
        for sizes, depth in (("512-4k", 32), ("4k-64k", 16), ("256k-1M", 8)):
            self.verify(device, f"--iodepth={depth} --size=32M --io_size=8M --bsrange={sizes} --blockalign={sizes.split('-', maxsplit=1)[0]}")
        self.guest.run("for c in /sys/class/nvme/nvme*; do echo 1 >$c/reset_controller; done")
        self.wait_live(2)
        self.verify(device, "--iodepth=8 --size=8M --bs=16k")
        self.guest.run(f"blkdiscard -o 0 -l 1048576 {device}")

    def test_2_the_target_ends_and_comes_back_under_its_hosts(self):
        target = TargetLoop(self.guest, nqn=OWN_NQN, host=HOST_NQN)
        device = self.connect_all()
        target.kill()
        # They notice that nobody answers, and try again.
        self.wait_live(0)
        target = self.start_target(nqn=OWN_NQN, host=HOST_NQN)
        self.wait_live(2)
        self.verify(device, "--iodepth=8 --size=8M --bs=16k")
        self.stop_target(target)
        self.wait_live(0)
        self.start_target(nqn=OWN_NQN, host=HOST_NQN)
        self.wait_live(2)
        self.verify(device, "--iodepth=8 --size=8M --bs=16k")
        self.disconnect()  # before the target ends

    def test_3_an_adapter_is_taken_away_under_a_load(self):
        target = self.start_target(nqn=OWN_NQN, host=HOST_NQN)
        device = self.connect_all()
        load = VerifiedLoad(self.guest, device, name="adapter", seed=1, size="48M", io_size="8M", sizes="512-64k")
        load.wait_begun()
        self.adapters.take_away(1)
        self.wait_live(1)
        load.goes_on()
        longest_ms = load.wait()
        print(f"an adapter is taken away: the longest request took {longest_ms} ms")
        self.adapters.wait_gone(1)
        self.assertIn("what goes by it loses its connections", target.said())
        # The host has forgotten its controller with the adapter, and the target looks for one that has the address.
        self.adapters.add(1)
        wait_for("the target at the adapter that came", lambda: self.connect(1), lambda connected: connected[0] == 0)
        self.wait_live(2)

    # ---- A target that is stopped, and then goes on

    def write(self, device, value):
        """A block of it; under way at the target, or written, when this returns."""
        stat = f"/sys/block/{os.path.basename(device)}/stat"
        before = self.guest.run(f"head -c {BLOCK_BYTES} /dev/zero | tr '\\0' {value} >/run/{value}; awk '{{ print $5 + $9 }}' {stat}").strip()
        job = self.guest.background(f"dd if=/run/{value} of={device} bs={BLOCK_BYTES} count=1 oflag=direct conv=notrunc 2>/dev/null")
        self.guest.run(f"until [ $(awk '{{ print $5 + $9 }}' {stat}) -gt {before} ]; do sleep 0.02; done")
        return job

    def content(self):
        """What has landed."""
        return self.guest.run(f"head -c 1 {DISKS}/ghost")

    def test_4_a_target_that_was_stopped_has_its_hosts_back_and_executes_nothing_old(self):
        target = self.start_target(nqn=OWN_NQN, host=HOST_NQN)
        device = self.connect_all()
        other = self.start_target(nqn=OTHER_OWN_NQN, uuid=OTHER_OWN_UUID, host=HOST_NQN, paths=[0], port=OTHER_OWN_PORT, more=f"--memory {DISKS}/ghost")
        ghost = self.connect_all([0], nqn=OTHER_OWN_NQN, port=OTHER_OWN_PORT)
        # For a moment: what has come meanwhile is executed.
        other.signal("STOP")
        a = self.write(ghost, "A")
        self.assertNotEqual(self.content(), "A")
        other.signal("CONT")
        a.wait()
        self.assertEqual(self.content(), "A")
        load = VerifiedLoad(self.guest, device, name="stopped", seed=2, size="48M", io_size="8M", sizes="512-64k")
        load.wait_begun()
        for process in (target, other):
            process.signal("STOP")
        b = self.write(ghost, "B")
        # For as long as the host waits for an answer, from which on the keep alive timeouts are over at both ends. Then it forgets its write.
        for nqn in (OWN_NQN, OTHER_OWN_NQN):
            self.wait_live(0, nqn)
        self.disconnect(OTHER_OWN_NQN)
        self.assertRaises(GuestError, b.wait)
        for process in (target, other):
            process.signal("CONT")
        wait_for("the target to miss its host", lambda: "has left" in other.said(), bool)
        self.assertIn("keep alive timeout", other.said())
        self.assertEqual(self.content(), "A", "a write was executed whose association had expired")
        self.wait_live(2)
        load.goes_on()
        longest_ms = load.wait()
        print(f"the target is stopped: the longest request took {longest_ms} ms")


class DiskTest(RdmaTest):
    """Disks of Cleat's: on Linux' own target, which stays, and on Cleat's."""

    kernel = None

    def setUp(self):
        if DiskTest.kernel is None:
            DiskTest.kernel = RdmaKernelTarget(self.guest, self.adapters, self.guest.device("kernel"), nqn=KERNEL_NQN, uuid=KERNEL_UUID)

    def run_program(self, tests, port, nqn, uuid):
        nvmet = self.kernel.nvmet
        variables = f"CLEAT_NVMF_ADDRESS=rdma://{ADDRESSES[0]}:{port} CLEAT_NVMF_NQN={nqn} CLEAT_NVMF_PLAIN={uuid} " \
            f"CLEAT_NVMF_SUBSYSTEM={nvmet.subsystem} CLEAT_NVMF_LINK={nvmet.link(1)}"
        status, output = self.guest.execute(f"{UNLIMITED}cd /run && {variables} nvmf_namespace --gtest_filter={tests}")
        self.assertEqual(status, 0, output)
        self.assertIn("PASSED", output)

    def disk_on(self, target, **names):
        disk = RdmaDisk(self.host, self.adapters, target, size_bytes=4 << 20, keep_alive_ms=KEEP_ALIVE_MS, **names)
        self.addCleanup(disk.end)
        return disk

    def test_1_the_kernels_target_goes_and_comes_back_under_a_disk(self):
        self.run_program("Disk.*:Discovery.*", PORT, KERNEL_NQN, KERNEL_UUID)

    def test_2_a_disk_of_ours_on_a_target_of_ours(self):
        self.start_target(nqn=OWN_NQN, host=DISK_NQN)
        self.run_program("Disk.AgreesWithTheReference", OWN_PORT, OWN_NQN, OWN_UUID)

    def test_3_cleatds_disk_outlives_paths_adapters_and_engines(self):
        disk = self.disk_on(self.kernel, nqn=KERNEL_NQN, uuid=KERNEL_UUID)
        disk.attach()
        load = disk.load(LOAD)
        disk.wait_memory_registered()
        for path in PATHS:
            disk.cut(path)
        disk.kill_engine()
        disk.stop_engine()
        disk.upgrade()
        disk.lose_adapter(1)
        self.assertEqual(load.end_well()["reconnects"], 2)  # after the kill, and the upgrade

    def test_4_a_target_of_ours_is_stopped_and_goes_on_beside_another_one(self):
        targets = TwoLoops(self.host, self.adapters, [
            self.start_target(nqn=OWN_NQN, host=DISK_NQN, paths=[path], more=f"--memory {DISKS}/both") for path in PATHS])
        disk = self.disk_on(targets, nqn=OWN_NQN, uuid=OWN_UUID, options=("--host-nqn", DISK_NQN, "--host-id", DISK_ID))
        disk.attach()
        load = disk.load(LOAD)
        disk.wait_memory_registered()
        before = targets.lives()
        targets.processes[0].signal("STOP")
        wait_for("the disk to miss a path", disk.disk.usable_paths, lambda usable: usable < len(PATHS))
        # In the end all of the load overlaps what is in doubt, and waits for somebody's word.
        wait_for("writes that wait", disk.disk.attachment, lambda status: status["storage_state"] == "STORAGE_STATE_STUCK")
        self.assertGreater(int(disk.disk.doubt()["bytes"]), 0)
        # What it still finds when it goes on is older than its keep alive timeout, and so dead already. Newer writes land by the other path meanwhile.
        disk.disk.confirm_dead()
        disk.goes_on()
        targets.processes[0].signal("CONT")
        disk.events.settle(before, [0])
        disk.goes_on()
        load.end_well()


if __name__ == "__main__":
    unittest.main(verbosity=2)

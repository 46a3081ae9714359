# SPDX-License-Identifier: Apache-2.0
"""Disks on NVMe namespaces by the drive's own commands. This machine's kernel has no drive: Cleat itself runs in a guest that has four,
emulated by QEMU, and cleat-perf plays the virtual machine. One boot for all."""

import os
import time
import unittest

from cleat_guest import GuestError, SharedBenchTest
from cleat_guest.nvme_host import Load, NvmeHost

DRIVE_BYTES = 512 << 20
EXTENT_BYTES = 64 << 20  # of the pool
BAD_BYTES = 2 << 20  # as in nvme_namespace.cc
SLOW_WRITES = 5  # a second
KILLS = 3  # of an engine under load, each followed by a reset of the drive
TEST_DIR = os.path.join(os.environ["CLEAT_BIN_DIR"], "..", "tests")
WITH_SYS_ADMIN = "--inh-caps +sys_admin --ambient-caps +sys_admin "
TOO_HOT, READ_ONLY = 1 << 1, 1 << 3  # of a drive's critical warnings


class NvmeTest(SharedBenchTest):
    """Drives with one controller each, unless a test says otherwise: what comes during a reset waits in the kernel."""

    @classmethod
    def set_up_bench(cls):
        path = cls.bench.path
        for name in ("plain", "large", "bad", "slow"):
            with open(path(name), "wb") as image:
                image.truncate(DRIVE_BYTES)
        with open(path("bad.conf"), "w", encoding="utf-8") as rules:
            rules.write(f'[inject-error]\nevent = "read_aio"\nerrno = "5"\nsector = "{BAD_BYTES // 512}"\nonce = "off"\n')
        cls.host = NvmeHost(cls.bench, {
            "plain": {"drive": f"file={path('plain')},format=raw"},
            "large": {"drive": f"file={path('large')},format=raw", "device": "logical_block_size=4096,physical_block_size=4096"},
            "bad": {"drive": f"driver=raw,file.driver=blkdebug,file.config={path('bad.conf')},"
                             f"file.image.driver=file,file.image.filename={path('bad')}"},
            "slow": {"drive": f"file={path('slow')},format=raw,throttling.iops-write={SLOW_WRITES}"}},
            programs=[os.path.join(TEST_DIR, "nvme_namespace")],
            files={"/no_ofd_lock.so": os.path.join(TEST_DIR, "libcleat_no_ofd_lock.so")})
        cls.guest = cls.host.guest
        cls.ctl = cls.host.ctl
        cls.find_drives()
        cls.host.start_cleatd()
        cls.host.start_engine()

    @classmethod
    def find_drives(cls):
        cls.drives = {serial: f"/dev/{cls.host.namespace(serial)}" for serial in ("plain", "large", "bad", "slow")}

    def status(self, disk):
        return self.ctl("disk", "get", disk)["status"]

    def reset_drive(self, serial):
        """As the kernel does with a drive that does not answer: what it has is taken back, and nothing reaches it meanwhile."""
        self.guest.run(f"echo 1 >/sys/class/nvme/{os.path.basename(self.drives[serial])[:-2]}/reset_controller")

    def survive_engine_and_resets(self):
        """A virtual machine's verified load, while the engine is killed and the drive is reset."""
        self.ctl("disk", "create", "d", "--size", "32M", "--file", self.drives["plain"])
        self.ctl("controller", "create", "c", "--socket", "/run/c.sock")
        load = Load(self.host, "c", "--mix read=50,write=50 --depth 16")
        self.ctl("attach", "d", "c", "--wait=120")
        for _ in range(KILLS):
            self.assertRegex(self.status("d")["io_path"], r"^NVMe commands \(/dev/ng\d+n1, QEMU NVMe Ctrl\)$")
            time.sleep(0.5)
            self.host.kill_engine()
            self.host.launch_engine()
            self.ctl("wait", "controllers/c/attachments/d", "--timeout", "120")
            time.sleep(0.5)
            self.reset_drive("plain")
        load.end_well()
        for arguments in (("detach", "c", "--wait=120"), ("disk", "delete", "d"), ("controller", "delete", "c")):
            self.ctl(*arguments)

    def run_program(self, environment="", arguments=""):
        drives = {"CLEAT_NVME": "plain", "CLEAT_NVME_4K": "large", "CLEAT_NVME_BAD": "bad", "CLEAT_NVME_SLOW": "slow"}
        variables = " ".join(f"{variable}={self.drives[drive]}" for variable, drive in drives.items())
        return self.guest.execute(f"cd /run && {variables} {environment} nvme_namespace {arguments}")

    def test_1_a_disk_by_commands(self):
        status, output = self.run_program()
        self.assertEqual(status, 0, output)
        self.assertIn("PASSED", output)

    def test_2_without_locks_a_late_write_is_found(self):
        """The control: the test of successors must see what they wait for."""
        status, output = self.run_program("LD_PRELOAD=/no_ofd_lock.so", "--gtest_filter=NamespaceOwnership.*")
        self.assertEqual(status, 1, output)
        for what in ("all were given to the drive", "nobody waits at the block device"):
            self.assertIn(what, output)

    def test_3_a_virtual_machines_disk_survives_its_engine_and_resets_of_the_drive(self):
        self.survive_engine_and_resets()

    # ---- Pools

    def pool(self):
        return self.pool_and_health()[0]

    def pool_and_health(self):
        """The pool's status, and what its drive says of its condition, which may change each minute."""
        status = self.ctl("pool", "get", "p")["status"]
        return status, status.pop("health")

    def wait_erased(self):
        self.host.wait_for("erasing what was a disk's", self.pool, lambda status: int(status["to_erase_bytes"]) == 0)

    @staticmethod
    def extents(disk):
        """One by one."""
        return [run["first"] + at for run in disk["spec"]["pool"]["extents"] for at in range(run["count"])]

    def make(self, disk, size, *more):
        return self.ctl("disk", "create", disk, "--size", size, "--block", "4K", "--pool", "p", *more)

    def is_erased(self, extents):
        """All of it as QEMU has it; of both ends of each extent as the block device has them past its page cache, too."""
        with open(self.bench.path("large"), "rb") as image:
            for extent in extents:
                image.seek((1 + extent) * EXTENT_BYTES)
                if image.read(EXTENT_BYTES).strip(b"\0"):
                    return False
        ends = " ".join(f"{64 * (1 + extent)} {64 * (1 + extent) + 63}" for extent in extents)
        return self.guest.run(f"for at in {ends}; do dd if={self.drives['large']} bs=1M skip=$at count=1 iflag=direct 2>/dev/null; done | "
                              "tr -d '\\0' | wc -c").strip() == "0"

    def start_load(self, disk, *more):
        """With pauses, since emulated processors have more to do."""
        self.ctl("controller", "create", disk, "--socket", f"/run/{disk}.sock", *more)
        load = Load(self.host, disk)
        self.ctl("attach", disk, disk)
        self.ctl("wait", f"controllers/{disk}", "--for", "in-use", "--timeout", "120")
        return load

    def end_load(self, load):
        self.assertEqual(load.end_well()["reconnects"], 1)  # the engine has ended under the load, once

    def refused(self, words, *arguments):
        with self.assertRaises(GuestError) as caught:
            self.ctl(*arguments)
        for word in words:
            self.assertIn(word, caught.exception.output)

    def restart_cleatd(self, *privileges):
        self.host.kill_cleatd()
        self.host.start_cleatd(*privileges)
        self.ctl("wait", "pools/p", "--timeout", "120")

    def warn(self, warnings):
        """The pool's drive does so from now on."""
        self.guest.qmp.command("qom-set", path="/machine/peripheral/nvme-large", property="smart_critical_warning", value=warnings)

    def check_condition(self, pool):
        """A cleatd that may ask the drive knows all that it says; one without privileges its temperature alone, where the kernel has a sensor
        for it (CONFIG_NVME_HWMON)."""
        celsius = 50  # as QEMU's drives have it
        self.warn(TOO_HOT | READ_ONLY)
        self.restart_cleatd(WITH_SYS_ADMIN)
        now, health = self.pool_and_health()
        self.assertEqual(pool, now)
        self.assertEqual((health["wear_percent"], health["temperature_celsius"], health["media_errors"]), (0, celsius, "0"))
        self.assertGreater(int(health["written_bytes"]), 0)
        self.assertEqual(health["unknown_because"], "")
        self.assertEqual(health["warnings"], ["the temperature is beyond a threshold", "the media is read-only"])
        self.guest.run("grep 'pools/p: drive warns: the temperature .*; the media is read-only; ' /run/cleatd.log")
        self.restart_cleatd()
        _, health = self.pool_and_health()
        self.assertIn("CAP_SYS_ADMIN", health["unknown_because"])
        has_sensor = self.guest.execute(f"ls -d /sys/class/nvme/{os.path.basename(self.drives['large'])[:-2]}/hwmon*")[0] == 0
        known = (celsius, ["the temperature is beyond a threshold"]) if has_sensor else (None, [])
        self.assertEqual((health.get("temperature_celsius"), health["warnings"]), known)
        self.assertNotIn("wear_percent", health)
        self.warn(0)

    def await_engine_log(self, pattern):
        self.guest.run(f"i=0; until grep -q '{pattern}' /run/engine-0.log; do i=$((i + 1)); [ $i -lt 600 ]; sleep 0.1; done")

    def test_4_disks_of_a_pool_outlive_engine_and_cleatd_and_are_erased(self):
        """One of two is purged while the other one, an encrypted one, is written to. The first one's VM has its memory vouched for: the
        engine may lock too little of it and serves it as it is, the next one may lock it all. Costs 20 to 30 s, most of it starts of
        cleatctl."""
        drive = self.drives["large"]
        self.ctl("pool", "create", "p", "--device", drive, "--extent-size", "64M", "--overwrite", "--wait=120")
        self.wait_erased()
        self.guest.run(f"ln -sf {drive} /run/another_name")
        for name in (drive, "/run/another_name"):
            self.refused(["FILE_TAKEN", "pools/p"], "disk", "create", "whole", "--size", "512M", "--block", "4K", "--file", name)
        self.guest.run("umask 077 && head -c 64 /dev/urandom >/run/b.key")
        self.make("a", "64M")
        disks = {"b": self.make("b", "80M", "--encryption-key-file", "/run/b.key")}
        loads = {"a": self.start_load("a", "--memory-pinned"), "b": self.start_load("b")}
        self.await_engine_log("controllers/a: .* MiB of its memory not registered, so its I/O costs more: RLIMIT_MEMLOCK is 8 MiB, and .* "
                              "MiB are needed, .* for 1 io_urings: raise LimitMEMLOCK= in the unit")
        # Under its load, by an extent behind the other disk's: the guest is told when the engine has it locked on both nodes.
        disks["a"] = self.ctl("disk", "resize", "a", "72M", "--wait=120")
        of_a, of_b = self.extents(disks["a"]), self.extents(disks["b"])
        self.assertEqual((len(of_a), len(of_b), len({*of_a, *of_b})), (2, 2, 4), (of_a, of_b))
        self.host.kill_engine()
        self.host.start_engine(limits="ulimit -l unlimited; ")
        pool = self.pool()
        self.check_condition(pool)
        for disk in loads:
            self.ctl("wait", f"controllers/{disk}/attachments/{disk}", "--timeout", "120")
        self.assertEqual(pool, self.pool())
        self.await_engine_log("controllers/a: .* MiB of its memory registered with 1 io_urings, and locked")
        self.assertEqual(self.guest.run("grep -c 'of its memory not registered' /run/engine-0.log").strip(), "1")
        present = {disk["name"]: disk for disk in self.ctl("disk", "list")["disks"]}
        for disk in disks.values():
            now = present[disk["name"]]
            self.assertEqual((disk["spec"], disk["uid"]), (now["spec"], now["uid"]))
            self.assertRegex(now["status"]["io_path"], r"^NVMe commands \(/dev/ng\d+n1, QEMU NVMe Ctrl\)$")
        self.end_load(loads["a"])
        self.assertFalse(self.is_erased(of_a))
        self.ctl("detach", "a", "--wait=120")
        self.ctl("disk", "delete", "a", "--purge")
        self.wait_erased()
        self.assertTrue(self.is_erased(of_a))
        of_c = self.extents(self.make("c", "320M"))
        self.assertLessEqual({*of_a}, {*of_c})
        self.assertTrue(self.is_erased(of_c))
        self.end_load(loads["b"])
        self.refused(["POOL_IN_USE"], "pool", "delete", "p")
        for arguments in (("detach", "b", "--wait=120"), ("disk", "delete", "b", "--purge", "--yes"), ("disk", "delete", "c", "--purge"),
                          ("controller", "delete", "a"), ("controller", "delete", "b"), ("pool", "delete", "p", "--wait=120")):
            self.ctl(*arguments)

    # ---- Paths

    def load_driver(self, multipath):
        self.host.load_driver(multipath)
        self.find_drives()

    def test_5_it_survives_them_where_several_controllers_may_reach_the_drive(self):
        """As QEMU's drives say of themselves: during a reset the kernel has no way to them, and says so."""
        self.addCleanup(self.load_driver, multipath=False)
        self.load_driver(multipath=True)
        self.survive_engine_and_resets()


if __name__ == "__main__":
    unittest.main()

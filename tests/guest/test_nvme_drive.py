# SPDX-License-Identifier: Apache-2.0
"""`make test-nvme` (scripts/test_nvme_drive.py) on a drive that QEMU emulates: what it refuses, and that all of its checks go well."""

import os
import sysconfig
import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.nvme_host import NvmeHost

SCRIPTS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "scripts")
SCRIPT_PARTS = ("test_nvme_drive.py", "nvme_trial")
PYTHON = os.path.realpath("/usr/bin/python3")
RUN = f"PYTHONHOME=/usr PYTHONDONTWRITEBYTECODE=1 {os.path.basename(PYTHON)} /test_nvme_drive.py"
LEFT_OUT = {"test", "idlelib", "tkinter", "ensurepip", "lib2to3", "pydoc_data", "distutils", "dist-packages"}
DRIVE_BYTES = 640 << 20


def python_library():
    """Python's own, as paths in the guest -> paths here."""
    root = sysconfig.get_path("stdlib")
    return {os.path.join(root, name): os.path.join(root, name) for name in os.listdir(root)
            if name not in LEFT_OUT and not name.startswith("config-")}


class NvmeDriveTest(SharedBenchTest):
    @classmethod
    def set_up_bench(cls):
        with open(cls.bench.path("drive"), "wb") as image:
            image.truncate(DRIVE_BYTES)
        # Busybox's setpriv knows no other users.
        setpriv = {"/bin/setpriv": cls.bench.path("run_as")}
        cls.host = NvmeHost(cls.bench, {"trial": {"drive": f"file={cls.bench.path('drive')},format=raw"}}, programs=[PYTHON],
                            files={**{f"/{part}": os.path.join(SCRIPTS, part) for part in SCRIPT_PARTS}, **python_library(), **setpriv})

    def run_script(self, more):
        return self.host.guest.execute(f"{RUN} {self.host.by_id('trial')} --bin-dir /bin "
                                       f"--seconds 0.2 {more}", 1000)

    def test_1_asks_before_it_destroys(self):
        drive = self.host.by_id("trial")
        status, output = self.run_script("--yes-destroy another")
        self.assertEqual(status, 2, output)
        self.assertIn("'another' is not the serial number", output)
        # What was written after the drive was shown was not agreed to.
        self.host.guest.run("mkfifo /run/answer")
        job = self.host.guest.background(f"{RUN} {drive} --bin-dir /bin </run/answer >/run/said 2>&1; echo status $?")
        self.host.guest.run(f"exec 9>/run/answer; until grep -q 'to go on' /run/said; do sleep 0.05; done; "
                            f"echo secret | dd of={drive} conv=fsync 2>/dev/null; echo trial >&9")
        self.assertIn("status 2", job.wait())
        output = self.host.guest.run("cat /run/said")
        self.assertIn("has nothing at its beginning", output)
        self.assertIn("has changed since the question", output)
        self.assertIn("it has data", output)
        self.assertEqual(self.host.guest.run(f"head -c 6 {drive}"), "secret")

    def test_1_names_who_has_it_open(self):
        """Nobody of these has claimed it; one has it under a name of its own."""
        self.host.guest.run("mknod /run/its-own b $(tr : ' ' </sys/block/nvme0n1/dev)")
        status, output = self.host.guest.execute(
            "sleep 1001 </dev/ng0n1 >/dev/null 2>&1 & commands=$!; sleep 1002 </run/its-own >/dev/null 2>&1 & block=$!; "
            f"{RUN} {self.host.by_id('trial')} --bin-dir /bin --yes-destroy trial; status=$?; kill $commands $block; exit $status")
        self.assertEqual(status, 2, output)
        self.assertRegex(output, r"in use: .*process \d+ \(sleep 1001\) has ng0n1 open")
        self.assertRegex(output, r"process \d+ \(sleep 1002\) has nvme0n1 open")

    def test_2_all_of_its_checks_go_well_by_both_ways(self):
        status, output = self.run_script("--yes-destroy trial")
        self.assertEqual(status, 0, output)
        for what in ("path      commands: NVMe commands (/dev/ng0n1, QEMU NVMe Ctrl)", "path      block device: io_uring", "MDTS 7", "DLFEAT",
                     "commands: a purged disk's bytes are erased on the drive: ok", "in flight, block device: ", "test-nvme: ok"):
            self.assertIn(what, output)


if __name__ == "__main__":
    unittest.main()

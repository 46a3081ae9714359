# SPDX-License-Identifier: Apache-2.0
"""`make test-nvme` (scripts/test_nvme_drive.py) on a drive that QEMU emulates: what it refuses, and that all of its checks go well."""

import os
import sysconfig
import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.nvme_host import NvmeHost

SCRIPT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "scripts", "test_nvme_drive.py")
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
                            files={"/test_nvme_drive.py": SCRIPT, **python_library(), **setpriv})

    def run_script(self, more):
        return self.host.guest.execute(f"{RUN} {self.host.by_id('trial')} --bin-dir /bin "
                                       f"--seconds 0.2 {more}", 1000)

    def test_1_asks_before_it_destroys(self):
        status, output = self.run_script("--yes-destroy another")
        self.assertEqual(status, 2, output)
        self.assertIn("'another' is not the serial number", output)
        self.host.guest.run(f"echo secret | dd of={self.host.by_id('trial')} conv=fsync 2>/dev/null")
        status, output = self.host.guest.execute(f"echo no | {RUN} {self.host.by_id('trial')} --bin-dir /bin")
        self.assertEqual(status, 2, output)
        self.assertIn("has data", output)
        self.assertEqual(self.host.guest.run(f"head -c 6 {self.host.by_id('trial')}"), "secret")

    def test_2_all_of_its_checks_go_well_by_both_ways(self):
        status, output = self.run_script("--yes-destroy trial")
        self.assertEqual(status, 0, output)
        for what in ("path      commands: NVMe commands (/dev/ng0n1, QEMU NVMe Ctrl)", "path      block device: io_uring", "MDTS 7", "DLFEAT",
                     "commands: a purged disk's bytes are erased on the drive: ok", "in flight, block device: ", "test-nvme: ok"):
            self.assertIn(what, output)


if __name__ == "__main__":
    unittest.main()

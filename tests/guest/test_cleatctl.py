# SPDX-License-Identifier: Apache-2.0
"""cleatctl's manners when something can't be done: its exit status, and a message that names the object, the cause
and the next step. No guest; both daemons run without root. The API's own errors are tests/system's."""

import os
import socket
import unittest

from cleat_guest import BenchTest, CtlError

NOBODY = 65534


class CleatctlTest(BenchTest):
    def setUp(self):
        self.cleat = self.bench.cleat(user_id=NOBODY if os.geteuid() == 0 else None)

    def refused(self, arguments, *words, status=1):
        """cleatctl fails with this status and says these words; afterwards cleatd and the engine still answer."""
        with self.assertRaises(CtlError) as caught:
            self.cleat.ctl_text(*arguments)
        self.assertEqual(caught.exception.status, status)
        for word in words:
            self.assertIn(word, caught.exception.message)
        self.cleat.engine.check_running()
        self.cleat.list("disk")

    def test_file_missing(self):
        path = self.bench.path("none.img")
        self.refused(["disk", "create", "d0", "--size", "64M", "--file", path], "disks/d0", path, "does not exist",
                     "--create")
        self.assertEqual(self.cleat.list("disk"), [])
        self.assertFalse(os.path.exists(path))

    def test_file_of_another_user(self):
        path = self.bench.path("locked.img")
        with open(path, "wb") as file:
            file.truncate(64 << 20)
        os.chmod(path, 0o400)
        self.refused(["disk", "create", "d0", "--size", "64M", "--file", path], "disks/d0", path, "Permission denied",
                     "runs as user")

    def test_socket_without_permission(self):
        path = self.bench.path("vm.sock")
        self.cleat.create_memory_disk("d0", "64M")
        self.cleat.create_controller("c0", path)
        with socket.socket(socket.AF_UNIX) as qemu:
            qemu.bind(path)
            os.chmod(path, 0)
            qemu.listen()
            self.refused(["attach", "d0", "c0", "--wait=1"], "controllers/c0", path, "permission", "write access")

    def test_unknown_names(self):
        self.cleat.create_memory_disk("d0", "64M")
        self.refused(["attach", "d0", "none"], "controllers/none", "not exist")
        self.cleat.create_controller("c0", self.bench.path("c0.sock"))
        self.refused(["attach", "none", "c0"], "disks/none", "not exist")

    def test_wrong_command_line(self):
        for arguments in (["disk", "create", "d0"], ["disk", "create", "d0", "--size", "64M"], ["fly"]):
            self.refused(arguments, "--help", status=2)

    def test_cleatd_not_there(self):
        self.cleat.cleatd.kill()
        with self.assertRaises(CtlError) as caught:
            self.cleat.ctl_text("disk", "list")
        self.assertEqual(caught.exception.status, 3)
        self.assertIn("api.sock", caught.exception.message)


if __name__ == "__main__":
    unittest.main()

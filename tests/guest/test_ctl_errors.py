# SPDX-License-Identifier: Apache-2.0
"""What cleatctl says when something can't be done names the object, the cause and the next step, and what was there
before is as it was. No guest; both daemons run without root."""

import os
import socket
import unittest

from cleat_guest import BenchTest, CtlError

NOBODY = 65534
MIB = 1 << 20


class CtlErrorsTest(BenchTest):
    def setUp(self):
        self.cleat = self.bench.cleat(user_id=NOBODY if os.geteuid() == 0 else None)

    def refused(self, arguments, *words):
        """cleatctl fails and says these words; afterwards cleatd and the engine still answer."""
        with self.assertRaises(CtlError) as caught:
            self.cleat.ctl_text(*arguments)
        self.assertNotEqual(caught.exception.status, 0)
        for word in words:
            self.assertIn(word, caught.exception.message)
        self.assertNotIn("Traceback", caught.exception.message)
        self.cleat.engine.check_running()
        self.cleat.list("disk")

    def make_file(self, name, size, mode=0o666):
        path = self.bench.path(name)
        with open(path, "wb") as file:
            file.truncate(size)
        os.chmod(path, mode)
        return path

    def names(self, kind):
        return [item["name"] for item in self.cleat.list(kind)]

    def test_file_missing(self):
        path = self.bench.path("none.img")
        self.refused(["disk", "create", "d0", "--size", "64M", "--file", path], "disks/d0", path, "does not exist",
                     "--create")
        self.assertEqual(self.names("disk"), [])
        self.assertFalse(os.path.exists(path))

    def test_file_too_small(self):
        path = self.make_file("small.img", MIB)
        self.refused(["disk", "create", "d0", "--size", "64M", "--file", path], "disks/d0", path, str(MIB),
                     f"truncate -s {64 * MIB}")
        self.assertEqual(os.path.getsize(path), MIB)

    def test_file_unwritable(self):
        path = self.make_file("locked.img", 64 * MIB, 0o444)
        if os.geteuid() != 0:
            os.chmod(path, 0o400)
        self.refused(["disk", "create", "d0", "--size", "64M", "--file", path], "disks/d0", path, "Permission denied",
                     "user")

    def test_not_a_file(self):
        self.refused(["disk", "create", "d0", "--size", "64M", "--file", self.bench.dir], "disks/d0", self.bench.dir,
                     "neither a regular file nor a block device")

    def test_name_exists(self):
        self.cleat.create_memory_disk("d0", "64M")
        self.cleat.create_memory_disk("d0", "64M")  # the same again is no error
        self.refused(["disk", "create", "d0", "--size", "32M", "--memory"], "disks/d0", "exists", "another id")
        self.assertEqual(self.names("disk"), ["disks/d0"])

    def test_file_of_another_disk(self):
        path = self.make_file("disk.img", 64 * MIB)
        self.cleat.ctl("disk", "create", "d0", "--size", "64M", "--file", path)
        self.refused(["disk", "create", "d1", "--size", "64M", "--file", path], "disks/d1", path, "disks/d0")

    def test_socket_of_another_controller(self):
        path = self.bench.path("vm.sock")
        self.cleat.create_controller("c0", path)
        self.refused(["controller", "create", "c1", "--type", "blk", "--socket", path], "controllers/c1", path,
                     "controllers/c0")

    def test_socket_path_taken_by_a_file(self):
        path = self.make_file("vm.sock", 10)
        self.cleat.create_memory_disk("d0", "64M")
        # Whether the call is refused or the controller reports it, the path and the cause are said.
        said = ""
        try:
            self.cleat.create_controller("c0", path)
            self.cleat.ctl("attach", "d0", "c0", "--wait=5")
        except CtlError as error:
            said = error.message
        said += self.cleat.ctl_text("--output", "json", "controller", "list")
        self.assertIn(path, said)
        self.assertRegex(said, "(?i)not a socket|no socket")
        with open(path, "rb") as file:
            self.assertEqual(file.read(), bytes(10))

    def test_disk_in_use(self):
        self.cleat.create_memory_disk("d0", "64M")
        with socket.socket(socket.AF_UNIX) as qemu:
            qemu.bind(self.bench.path("d0.sock"))
            qemu.listen()
            self.cleat.attach("d0", self.bench.path("d0.sock"))
            self.cleat.create_controller("c1", self.bench.path("c1.sock"))
            self.refused(["attach", "d0", "c1"], "disks/d0", "controllers/d0-blk/attachments/d0", "cleatctl detach")
            self.refused(["disk", "delete", "d0"], "disks/d0", "cleatctl detach")
            self.refused(["controller", "delete", "d0-blk"], "controllers/d0-blk", "cleatctl detach")
        self.assertEqual(self.names("attachment"), ["controllers/d0-blk/attachments/d0"])

    def test_unknown_names(self):
        self.cleat.create_memory_disk("d0", "64M")
        self.refused(["attach", "d0", "none"], "controllers/none", "not exist")
        self.cleat.create_controller("c0", self.bench.path("c0.sock"))
        self.refused(["attach", "none", "c0"], "disks/none", "not exist")

    def test_cleatd_not_there(self):
        self.cleat.cleatd.kill()
        with self.assertRaises(CtlError) as caught:
            self.cleat.ctl_text("disk", "list")
        self.assertIn("api.sock", caught.exception.message)


if __name__ == "__main__":
    unittest.main()

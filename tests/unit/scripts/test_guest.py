# SPDX-License-Identifier: Apache-2.0
"""What scripts/guest/cleat_guest/guest.py makes of a boot's end, with sockets in place of QEMU."""

import contextlib
import io
import os
import socket
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../scripts/guest"))
from cleat_guest.guest import BOOTS_MAX, Guest  # noqa: E402
from cleat_guest.process import BenchError  # noqa: E402


class FakeQmp:
    """A guest whose boots end as `ready` says, one after the other."""

    def __init__(self, port, ready):
        self._port = port
        self._ready = iter(ready)
        self.resets = 0
        self.boot()

    def boot(self):
        self._port.sendall(f"{next(self._ready)}\n".encode())

    def command(self, name):
        assert name == "system_reset"
        self.resets += 1
        self.boot()


class WaitReady(unittest.TestCase):
    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        ours, self.theirs = socket.socketpair()
        self.enterContext(ours)
        self.enterContext(self.theirs)
        self.guest = Guest("guest", folder, folder)
        # As start() leaves it, a hundred seconds ago.
        self.guest._port, self.guest._buffer, self.guest._boot_id = ours, b"", None
        self.guest._boot_began = time.monotonic() - 100
        self.said = self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def boots(self, *ready):
        self.guest.qmp = FakeQmp(self.theirs, ready)

    def test_a_clock_that_agrees_is_taken(self):
        self.boots("READY a 99.00", "READY b 0.00")
        self.guest.wait_ready()
        self.assertEqual(self.guest.qmp.resets, 0)
        self.guest.reset()
        self.assertEqual(self.guest.qmp.resets, 1)
        self.assertEqual(self.said.getvalue(), "")

    def test_a_clock_that_is_too_fast_gets_another_boot(self):
        self.boots("READY a 1400.00", "READY b 0.00")
        self.guest.wait_ready()
        self.assertEqual(self.guest.qmp.resets, 1)
        self.assertIn("guest guest: its clock says 1400 s after 100 s of booting", self.said.getvalue())

    def test_one_that_never_agrees_is_an_error(self):
        self.boots(*(f"READY {boot} 1400.00" for boot in range(BOOTS_MAX + 1)))
        with self.assertRaisesRegex(BenchError, "too fast at each of 3 boots"):
            self.guest.wait_ready()

    def test_the_boot_before_does_not_count(self):
        self.boots("READY a 99.00\nREADY a 99.00", "READY b 0.00")
        self.guest.wait_ready()
        self.guest.reset()
        self.assertEqual(self.guest._boot_id, "b")


if __name__ == "__main__":
    unittest.main()

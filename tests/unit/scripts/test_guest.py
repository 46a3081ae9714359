# SPDX-License-Identifier: Apache-2.0
"""What scripts/guest/cleat_guest/guest.py makes of a boot's end, with sockets in place of QEMU."""

import contextlib
import io
import os
import socket
import sys
import tempfile
import threading
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../scripts/guest"))
from cleat_guest.guest import BOOTS_MAX, PANIC, TCG_RACE, TIMER_LOST, Guest, GuestSilent, QemuEnded  # noqa: E402
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
        self.guest._begin_boot()
        self.guest._boot_began -= 100
        self.enterContext(mock.patch("cleat_guest.guest.LOOK_SECONDS", 0.01))
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
        with self.assertRaisesRegex(BenchError, "its clock says 1400 s after"):
            self.guest.wait_ready()
        self.assertEqual(self.guest.qmp.resets, BOOTS_MAX - 1)

    def console_says(self, text):
        with open(self.guest._console_path, "a", encoding="utf-8") as console:
            console.write(text)

    def test_one_that_waits_for_a_lost_timer_gets_another_boot(self):
        self.boots("", "READY b 0.00")
        self.console_says(f"[   23.4] rcu: \t{TIMER_LOST}0 timer-softirq=9\n")
        self.guest.wait_ready()
        self.assertEqual(self.guest.qmp.resets, 1)
        self.assertIn("guest guest: its kernel waits for a timer that QEMU lost", self.said.getvalue())

    def test_one_that_is_silent_for_another_reason_is_an_error(self):
        self.console_says(f"{TIMER_LOST}0, and the boot before got over it\n")
        self.guest._begin_boot()
        self.boots("")
        self.console_says("nobody answers\n")
        with self.assertRaisesRegex(GuestSilent, "nobody answers"):
            self.guest.wait_ready(timeout_s=0.1)
        self.assertEqual(self.guest.qmp.resets, 0)

    def test_one_whose_kernel_ends_without_any_back_end_gets_another_boot(self):
        self.boots("", "READY b 0.00")
        self.console_says(f"BUG: unable to handle page fault\n{PANIC}: Fatal exception in interrupt\n")
        self.guest.wait_ready()
        self.assertEqual(self.guest.qmp.resets, 1)
        self.assertIn("guest guest: its kernel ended at boot; its console:\nBUG: unable to handle page fault", self.said.getvalue())

    def test_one_whose_kernel_ends_beside_a_back_end_is_an_error_soon(self):
        for kind in ("_disks", "_scsi"):
            with self.subTest(kind), mock.patch.object(self.guest, kind, {"disk": "socket"}):
                self.boots("")
                self.console_says(f"{PANIC}\n")
                with self.assertRaisesRegex(BenchError, "its kernel ended at boot"):
                    self.guest.wait_ready()
                self.assertEqual(self.guest.qmp.resets, 0)

    def test_one_whose_kernel_ends_at_a_later_boot_is_an_error(self):
        self.boots("READY a 99.00", "")
        self.guest.wait_ready()
        self.guest._reset()
        self.console_says(f"{PANIC}\n")
        with self.assertRaisesRegex(BenchError, "its kernel ended at boot"):
            self.guest.wait_ready()

    def test_one_that_is_silent_for_a_while_is_waited_for(self):
        self.boots("")
        threading.Timer(0.1, self.theirs.sendall, (b"READY a 0.00\n",)).start()
        self.guest.wait_ready()
        self.assertEqual((self.guest._boot_id, self.guest.qmp.resets), ("a", 0))

    def qemu_ends(self, *log):
        """QEMU ends after these lines in its log; the one that is started after it boots."""
        ours, theirs = socket.socketpair()
        self.enterContext(ours)
        self.enterContext(theirs)

        def start():
            self.guest._port, self.guest._buffer = ours, b""
            theirs.sendall(b"READY b 0.00\n")

        self.enterContext(mock.patch.object(self.guest, "start", start))
        self.guest._process, self.guest._qmp_socket = mock.Mock(), mock.Mock()
        with open(self.guest._log_path, "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in log)
        self.theirs.close()

    def test_one_whose_qemu_died_of_its_race_is_started_again(self):
        self.qemu_ends(f"qemu: {TCG_RACE} failed")
        self.guest.wait_ready()
        self.assertEqual(self.guest._boot_id, "b")
        self.assertIn("guest guest: QEMU died of its own at boot", self.said.getvalue())

    def test_one_whose_qemu_died_of_something_else_is_an_error(self):
        with open(self.guest._log_path, "a", encoding="utf-8") as log:
            log.write(f"qemu: {TCG_RACE} failed, a boot before\n")
        self.guest._begin_boot()
        self.qemu_ends("qemu: out of memory")
        with self.assertRaisesRegex(QemuEnded, "out of memory"):
            self.guest.wait_ready()

    def test_a_lost_timer_after_the_first_boot_is_an_error(self):
        self.boots("READY a 99.00", "")
        self.guest.wait_ready()
        self.guest._reset()
        self.console_says(f"{TIMER_LOST}0\n")
        with self.assertRaises(GuestSilent):
            self.guest.wait_ready(timeout_s=0.1)

    def test_the_boot_before_does_not_count(self):
        self.boots("READY a 99.00\nREADY a 99.00", "READY b 0.00")
        self.guest.wait_ready()
        self.guest.reset()
        self.assertEqual(self.guest._boot_id, "b")


if __name__ == "__main__":
    unittest.main()

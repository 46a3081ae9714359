# SPDX-License-Identifier: Apache-2.0
"""Where a test's processes, sockets, files and logs live."""

import os
import shutil
import signal
import sys
import tempfile
import unittest

from cleat_guest.ceph import MiniCeph
from cleat_guest.cleat import Cleat
from cleat_guest.guest import Guest
from cleat_guest.process import BenchError
from cleat_guest.spdk_target import SpdkTarget

_ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


def _setting(name, default):
    return os.environ.get(name) or os.path.join(_ROOT, default)


class Bench:
    """A folder for sockets and disks (short path: a unix socket's is limited to 107 bytes), removed at the end,
    and one for logs, which stays. Ends in reverse order everything that was made through it."""

    def __init__(self, name, log=None):
        self.name = name
        self.bin_dir = _setting("CLEAT_BIN_DIR", "build/bin")
        self.image_dir = _setting("CLEAT_GUEST_DIR", "build/guest")
        self.log_dir = os.path.join(_setting("CLEAT_LOG_DIR", "build/logs"), name)
        self._log = log
        self._made = []

    def __enter__(self):
        shutil.rmtree(self.log_dir, ignore_errors=True)
        os.makedirs(self.log_dir)
        self.dir = tempfile.mkdtemp(prefix="cleat-")
        return self

    def __exit__(self, *unused):
        while self._made:
            self._made.pop().kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def cleat(self, host="", **options):
        """cleatd and one engine, ready for calls. `host`: one of several, whose folders below ours have that name."""
        run_dir, log_dir = os.path.join(self.dir, host), os.path.join(self.log_dir, host)
        for folder in (run_dir, log_dir):
            os.makedirs(folder, exist_ok=True)
        cleat = Cleat(self.bin_dir, run_dir.rstrip("/"), log_dir, **options)
        self._made.append(cleat)
        cleat.start()
        return cleat

    def ceph(self):
        """A Ceph cluster that takes requests. Made before cleat(), it outlives its clients."""
        ceph = MiniCeph(self.path("ceph"), self.log_dir)
        self._made.append(ceph)
        return ceph

    def spdk(self, number=1, **options):
        """SPDK's target, which takes calls (spdk_target.py)."""
        return self.keep(SpdkTarget(self, number, **options)).start()

    def keep(self, made):
        """Ends it with the bench; it has `kill`."""
        self._made.append(made)
        return made

    def guest(self, name="guest", **options):
        """A guest that runs already, but may wait for the back ends of its disks."""
        guest = Guest(name, self.image_dir, self.log_dir, **options)
        self._made.append(guest)
        return guest.start()


def exit_on_sigterm():
    """Makes SIGTERM run the same clean-up as Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))


class BenchTest(unittest.TestCase):
    """A test case with a bench of its own in self.bench; a failure says where its logs are."""

    def run(self, result=None):
        self.bench = Bench(self.id().replace("__main__.", ""))
        with self.bench:
            return self._run_and_tell(result)

    def _run_and_tell(self, result):
        seen = len(result.errors) + len(result.failures) if result else 0
        super().run(result)
        if result and len(result.errors) + len(result.failures) > seen:
            print(f"\n{self.id()}: logs are in {self.bench.log_dir}", file=sys.stderr)
        return result


class SharedBenchTest(BenchTest):
    """Tests that share one bench, and in it what `set_up_bench` makes: a boot takes longer than many a test. Each leaves it as it has
    found it, in any order; what kills or wedges a guest is no such test."""

    @classmethod
    def set_up_bench(cls):
        raise NotImplementedError

    @classmethod
    def setUpClass(cls):
        cls.bench = cls.enterClassContext(Bench(f"{cls.__module__}.{cls.__qualname__}".replace("__main__.", "")))
        cls.set_up_bench()

    def run(self, result=None):
        return self._run_and_tell(result)


__all__ = ["Bench", "BenchError", "BenchTest", "SharedBenchTest", "exit_on_sigterm"]

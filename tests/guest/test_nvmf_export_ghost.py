# SPDX-License-Identifier: Apache-2.0
"""Linux' own host with one path to the engine that serves an export, and one to the engine that stands by for it. A write that the first one has - in its
socket, or in its storage - when the host gives the path up must not land behind newer ones that the host writes by the second path. CLEAT_GHOST_RUNS: so many
runs of each."""

import os
import signal
import sys
import unittest

from cleat_guest import BenchTest
from cleat_guest.export import Export
from cleat_guest.held_disk import HeldDisk
from cleat_guest.nvmf_events import wait_for
from cleat_guest.nvmf_guest import HOST_NQN, PATHS, NvmfGuest, free_ports

NQN = "nqn.2026-11.example:exported"
RUNS = int(os.environ.get("CLEAT_GHOST_RUNS") or 1)
DISK_BYTES = 64 << 20
BLOCK_BYTES = 4096
# The host gives a path up after 5 s without an answer; the limit for a silent engine is later than that.
OPTIONS = "-k 5 -c 1 -i 1"
LIMIT_SECONDS = 15
SERVES, STANDS_BY = 0, 1  # which of the two paths


class GhostTest(BenchTest):
    """A file, or a device that stands still when it is told to, exported by two engines, each of which stands by for the other one."""

    def begin(self, path, *, limit):
        self.cleat = self.bench.cleat(cleatd_options=("--kill-silent-engine-seconds", str(LIMIT_SECONDS)) if limit else ())
        self.engines = {"engine-0": self.cleat.engine}
        self.start_engine("engine-1", "engine-0")
        self.cleat.ctl("disk", "create", "one", "--size", str(DISK_BYTES), "--file", path)
        self.ports = free_ports()
        self.export = Export(self.cleat, "exported", nqn=NQN, ports=self.ports[:1], hosts=[HOST_NQN],
                             options=("--engine", "engine-0", "--standby-listen", f"127.0.0.1:{self.ports[STANDS_BY]}"))
        self.export.attach("one")
        self.wait_standing_by("engine-1")
        self.host = NvmfGuest(self.bench, NQN, self.ports).wait_ready()
        self.device = self.host.connect_all(OPTIONS)
        self.path = path
        self.serving, self.standby = "engine-0", "engine-1"
        self.wait_paths()
        for value in "0AB":
            self.host.guest.run(f"head -c {BLOCK_BYTES} /dev/zero | tr '\\0' {value} >/run/{value}")

    # ---- Engines

    def start_engine(self, name, principal):
        self.cleat.add_engine(name, "--standby-for", principal)
        self.engines[name] = self.cleat.more_engines[name]

    def wait_standing_by(self, name):
        self.cleat.wait_status(name, "standing by for the export", lambda status: int(status.get("standing_by", 0)) == 1)

    def stop(self):
        os.kill(self.engines[self.serving].pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.engines[self.serving].pid, signal.SIGCONT)

    def change_places(self):
        """The engine that died stands by for the one that serves now, and the host's second path leads there."""
        self.serving, self.standby = self.standby, self.serving
        self.engines[self.standby].kill()
        self.start_engine(self.standby, self.serving)
        self.wait_standing_by(self.standby)
        for name, (_, address) in self.host.controllers().items():
            if f"trsvcid={self.ports[STANDS_BY]}" in address:
                self.host.guest.run(f"nvme disconnect -d {name}")
        self.host.connect(STANDS_BY, OPTIONS)
        self.wait_paths()

    # ---- The host

    def wait_paths(self):
        self.host.wait_live(PATHS)
        self.host.wait("one path that may be used and one that may not", lambda: self.host.ana_states(self.device),
                       lambda states: sorted(states) == ["inaccessible", "optimized"])

    def write(self, value):
        return self.host.guest.background(f"dd if=/run/{value} of={self.device} bs={BLOCK_BYTES} count=1 oflag=direct conv=notrunc 2>/dev/null")

    def read(self):
        return self.host.guest.run(f"dd if={self.device} bs={BLOCK_BYTES} count=1 iflag=direct 2>/dev/null | head -c 1")

    def content(self):
        """What has landed."""
        with open(self.path, "rb", buffering=0) as disk:
            os.posix_fadvise(disk.fileno(), 0, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
            return disk.read(1).decode()

    def wait_given_up(self):
        """The host has lost the path to the engine that serves."""
        self.host.wait("the first path lost", self.host.controllers, lambda found: not any(
            state == "live" and f"trsvcid={self.ports[SERVES]}" in address for state, address in found.values()))

    def wait_untouched_while_alive(self, engine, a):
        """Until the engine that had A first is dead: nobody has answered A before, and nothing has landed."""
        while True:
            done, content = a.done(), self.content()
            if not engine.running():
                return
            self.assertFalse(done, "A was answered while the engine that had it first was alive")
            self.assertEqual(content, "0", "A has landed while the engine that had it first was alive")

    def write_b(self):
        self.write("B").wait()
        self.assertEqual(self.read(), "B")

    def check(self):
        """When all that was older than B has had its time."""
        self.assertEqual(self.read(), "B", "an older write has landed behind it")
        self.assertEqual(self.content(), "B")

    # ---- What is in the socket of a stopped engine

    def test_1_the_engine_is_killed_at_its_limit(self):
        self.begin(self.image(), limit=True)
        for run in range(RUNS):
            self.write("0").wait()
            first = self.engines[self.serving]
            self.stop()
            a = self.write("A")
            self.wait_given_up()
            self.wait_untouched_while_alive(first, a)
            a.wait()
            self.write_b()
            self.change_places()
            self.check()
            self.tell(run)

    def test_2_the_engine_goes_on_before(self):
        self.begin(self.image(), limit=False)
        for run in range(RUNS):
            self.write("0").wait()
            self.stop()
            a = self.write("A")
            self.wait_given_up()
            self.assertFalse(a.done(), "the engine that stands by has executed a write")
            self.assertEqual(self.content(), "0")
            self.go_on()
            a.wait()
            self.write_b()
            self.wait_paths()  # what was in the old sockets has been looked at
            self.check()
            self.tell(run)

    # ---- What is in its storage

    def test_3_the_write_is_in_the_storage(self):
        disk = self.bench.keep(HeldDisk(self.bench.path("held.img"), DISK_BYTES))
        if disk.lacks:
            self.skipTest(f"{disk.lacks}: NOTHING was tested here")
        self.begin(disk.path, limit=True)
        for run in range(RUNS):
            self.write("0").wait()
            first = self.engines[self.serving]
            waits = self.count("waiting for the lock")
            disk.hold(first.pid)
            a = self.write("A")
            wait_for("A in the storage", self.in_storage, lambda requests: requests == 1)
            self.stop()
            wait_for("the engine that stands by waiting for the disk", lambda: self.count("waiting for the lock"), lambda now: now > waits)
            self.assertFalse(first.running())
            self.assertFalse(a.done(), "A was answered by the second engine while the first one's could still land")
            self.assertEqual(self.content(), "0")
            disk.release()
            a.wait()
            self.write_b()
            self.change_places()
            self.check()
            self.tell(run)

    def in_storage(self):
        return sum(int(disk.get("in_flight", 0)) for disk in self.cleat.ctl("stats", "one").get("disks", []))

    def count(self, text):
        """Lines of the engine that stands by."""
        with open(self.engines[self.standby].log_path, encoding="utf-8", errors="replace") as log:
            return sum(text in line for line in log)

    def image(self):
        path = self.bench.path("one.img")
        with open(path, "wb") as image:
            image.truncate(DISK_BYTES)
        return path

    def tell(self, run):
        print(f"{self.id().rsplit('.', maxsplit=1)[-1]}: run {run + 1} of {RUNS}: B stands", file=sys.stderr, flush=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo-export`: a guest with Linux' own NVMe/TCP host writes and verifies a disk that Cleat exports, reached by two paths. One path is cut,
without a word to anybody; the engine is exchanged for another one, and the host's connections go along; then a third path is made, by an engine that
stands by, and the engine that has the disk is killed. Prints how long the guest was without an answer each time, and how long when nothing happens:
emulated guests make pauses of their own.

Neither root, KVM nor NVMe is needed. Exit status 0 and "demo-export: ok" at the end, or the step that failed, the reason and where the logs are."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "guest"))

from cleat_guest.export import Export  # noqa: E402: needs the path above
from cleat_guest.narrator import narrate  # noqa: E402
from cleat_guest.nvmf_guest import HOST_NQN, NvmfGuest, free_ports  # noqa: E402
from cleat_guest.process import BenchError  # noqa: E402
from cleat_guest.verified_load import VerifiedLoad  # noqa: E402

NQN = "nqn.2026-11.example:exported"
DISK = "32M"
PATHS, BY_STANDBY = 2, 2  # by the engine that has the disk; the number of the one by the engine that stands by
CUT = 0  # the path
OPTIONS = "-k 5 -c 1"  # an emulated host takes its time; a path that is lost is tried again each second
OLD, NEW, STANDBY = "engine-0", "engine-1", "engine-2"


class Demo:
    def __init__(self, bench, say):
        self.say = say
        self.rows = []
        say(f"start cleatd and cleat-engine ({OLD}); make a disk, and an export of it at two addresses and one more for an engine that stands by")
        self.cleat = bench.cleat()
        self.cleat.create_file_disk("one", DISK, bench.path("one.img"))
        ports = free_ports(PATHS + 1)
        self.export = Export(self.cleat, "exported", nqn=NQN, ports=ports[:PATHS], hosts=[HOST_NQN],
                             options=("--standby-listen", f"127.0.0.1:{ports[BY_STANDBY]}"))
        self.export.attach("one")
        say.show(self.cleat.ctl_text("export", "get", "exported"))
        say("start the guest that is the host, with three network cards (no KVM: a few seconds)")
        self.host = NvmfGuest(bench, NQN, ports)
        self.host.wait_ready()
        for path in range(PATHS):
            self.host.connect(path, OPTIONS)
        self.device = self.host.device(1)
        self.show_paths()

    def under_load(self, what, event):
        """fio on the disk, and the event in the middle of it."""
        number = len(self.rows)
        load = VerifiedLoad(self.host.guest, self.device, name=f"load-{number}", seed=number + 1, size="16M", io_size="6M", gaps=True)
        load.wait_begun()
        event()
        load.goes_on()
        longest = load.wait()
        gap = load.longest_gap_ms()
        self.rows.append((what, gap, longest))
        self.say.show(f"all verified, no I/O error; no request was answered for {gap} ms at most, the longest request took {longest} ms")

    def show_paths(self):
        states = self.host.ana_states(self.device)
        self.say.show(f"the host has {self.host.live()} live controllers, {', '.join(map(str, self.host.associations()))}; ANA: {', '.join(states)}")

    def cut(self):
        self.host.guest.plug_cable(CUT, False)
        cut = time.monotonic()
        self.say.show("the cable of one path is pulled: what is sent there is lost")
        self.host.wait_live(PATHS - 1)
        self.say.show(f"after {time.monotonic() - cut:.1f} s the host has given the path up")
        self.host.guest.plug_cable(CUT, True)
        self.host.wait_live(PATHS)
        self.show_paths()

    def upgrade(self):
        before = self.host.associations()
        pause = self.cleat.upgrade(OLD, NEW)
        self.say.show(f"cleatctl engine upgrade {OLD} --to {NEW}: the pause by cleatd's clock: {pause:.1f} ms")
        if self.host.associations() != before:
            raise BenchError(f"the host has connected anew: controllers {self.host.associations()}, {before} before")
        self.say.show("the host has the connections that it had before")

    def kill(self):
        self.cleat.more_engines[NEW].kill()
        self.say.show(f"{NEW} killed with SIGKILL")
        self.host.wait("an optimized path", lambda: self.host.ana_states(self.device), lambda states: "optimized" in states)
        self.host.wait_live(PATHS + 1)
        self.show_paths()

    def run(self):
        self.say("guest: fio writes the disk and verifies what it wrote, undisturbed")
        self.under_load("nothing", lambda: None)
        self.say("guest: the same again, while one path is cut, and mended")
        self.under_load("a path cut", self.cut)
        self.say(f"start {NEW}; guest: the same again, while the engine is upgraded: {NEW} takes over the connections")
        self.cleat.add_engine(NEW)
        self.under_load("engine upgraded", self.upgrade)
        self.say(f"start {STANDBY}, which stands by for {NEW}; the host connects to it as well")
        self.cleat.add_engine(STANDBY, "--standby-for", NEW)
        self.cleat.wait_status(STANDBY, "standing by", lambda status: status.get("standing_by", 0) >= 1)
        self.host.connect(BY_STANDBY, OPTIONS)
        self.host.wait_live(PATHS + 1)
        self.show_paths()
        self.say(f"guest: the same again, while {NEW} is killed")
        self.under_load("engine killed", self.kill)
        self.table()
        self.say("the host disconnects; power the guest off")
        self.host.disconnect()
        self.host.guest.kill()
        self.export.detach("one")
        self.export.delete()

    def table(self):
        self.say("how long the guest waited: the longest time without any answer, and its longest request")
        self.say.show(f"{'what happened':20}{'no answer':>14}{'request':>14}")
        for what, gap, longest in self.rows:
            self.say.show(f"{what:20}{gap:>11} ms{longest:>11} ms")


if __name__ == "__main__":
    sys.exit(narrate("demo-export", lambda bench, say: Demo(bench, say).run()))

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo-nvmeof` (TRANSPORT=tcp): a guest writes and verifies a disk that is a namespace of another host, reached over NVMe/TCP by two paths. One
path is cut, without a word to anybody; the engine is exchanged for another one, as an upgrade does it; then it is killed. Prints how
long the guest was without an answer each time, and how long when nothing happens: emulated guests make pauses of their own.

The target is Linux' own, in a second guest, so that neither root, KVM, hugepages nor NVMe is needed; or SPDK's, where PEER_SPDK names the
folder that it was built in, as root. Exit status 0 and "demo-nvmeof: ok" at the end, or the step that failed, the reason and where the
logs are."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "guest"))

from cleat_guest.kernel_target import KernelTarget  # noqa: E402: needs the path above
from cleat_guest.narrator import narrate  # noqa: E402
from cleat_guest.nvmf_events import NvmfEvents, RemoteDisk  # noqa: E402
from cleat_guest.process import BenchError  # noqa: E402
from cleat_guest.spdk_target import SpdkNamespace, built_in  # noqa: E402
from cleat_guest.verified_load import VerifiedLoad  # noqa: E402

NQN = "nqn.2026-11.example:array"
UUID = "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11"
DISK_BYTES = 32 << 20
KEEP_ALIVE_MS = 10000  # an emulated target takes its time to answer
CUT = 0  # the path
OLD, NEW = "engine-0", "engine-1"


def make_target(bench, say):
    image = bench.path("disk.img")
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES)
    if built_in() is None:
        say("start the target: a guest with Linux 6.12's own, and two network cards that lead to it (no KVM: a few seconds)")
        return KernelTarget(bench, image, NQN, UUID).wait_ready()
    if os.geteuid() != 0:
        raise BenchError("PEER_SPDK is set, and SPDK's target wants huge pages: run it as root, or without PEER_SPDK, which takes Linux' target")
    say("start the target: SPDK's, in a network of its own that two links lead to")
    return bench.keep(SpdkNamespace(bench, image, NQN, UUID)).wait_ready()


class Demo:
    def __init__(self, bench, say):
        self.say = say
        self.rows = []
        self.target = make_target(bench, say)
        say(f"start cleatd and cleat-engine ({OLD}); make the target known to them, and a disk of its namespace")
        self.cleat = bench.cleat()
        self.disk = RemoteDisk(self.cleat, self.target.addresses, nqn=NQN, uuid=UUID, size_bytes=DISK_BYTES, keep_alive_ms=KEEP_ALIVE_MS)
        self.events = NvmfEvents(self.disk, self.target, KEEP_ALIVE_MS)
        say.show(self.cleat.ctl_text("subsystem", "get", "peer"))
        say("start the guest that has the disk (no KVM: a few seconds)")
        path = bench.path("remote.sock")
        self.guest = bench.guest(disks={"remote": path}, tools="fio", cpus=1)
        self.cleat.attach("remote", path)
        self.guest.wait_ready()
        self.device = self.guest.device("remote")

    def under_load(self, what, event):
        """fio on the disk, and the event in the middle of it."""
        number = len(self.rows)
        load = VerifiedLoad(self.guest, self.device, name=f"load-{number}", seed=number + 1, size="16M", io_size="6M", gaps=True)
        load.wait_begun()
        event()
        longest = load.wait()
        gap = load.longest_gap_ms()
        self.rows.append((what, gap, longest))
        self.say.show(f"all verified, no I/O error; no request was answered for {gap} ms at most, the longest request took {longest} ms")

    def show_paths(self):
        doubt = self.disk.doubt()
        self.say.show(f"cleatctl attachment get: {self.disk.usable_paths()} of {len(self.target.addresses)} paths; cleatctl disk get: "
                      f"{int(doubt.get('bytes', 0)) >> 10 if doubt else 0} KiB are in doubt")

    def settle(self, before, lost):
        self.events.settle(before, lost)
        self.say.show("the target has nothing left of the connections that died; cleatctl disk confirm-dead says so, and nothing is in doubt")

    def cut(self):
        before = self.target.lives()
        self.target.swallow(CUT, True)
        cut = time.monotonic()
        self.say.show(f"the link of {self.target.addresses[CUT]} is down: what is sent there is lost")
        self.events.goes_on_without_one()
        self.show_paths()
        self.events.miss(before, CUT)
        self.say.show(f"after {time.monotonic() - cut:.1f} s the target has missed its host, and given the connections up")
        self.target.swallow(CUT, False)
        self.settle(before, [CUT])
        self.show_paths()

    def upgrade(self):
        pause = self.cleat.upgrade(OLD, NEW)
        self.say.show(f"cleatctl engine upgrade {OLD} --to {NEW}: the pause by cleatd's clock: {pause:.1f} ms")
        self.show_paths()

    def kill(self):
        before = self.target.lives()
        self.cleat.more_engines[NEW].kill()
        self.say.show(f"{NEW} killed with SIGKILL")
        self.cleat.add_engine(NEW)
        self.say.show(f"another {NEW} started: what the dead one had under way is in doubt")
        self.settle(before, range(len(self.target.addresses)))
        self.show_paths()

    def run(self):
        self.show_paths()
        self.say("guest: fio writes the disk and verifies what it wrote, undisturbed")
        self.under_load("nothing", lambda: None)
        self.say("guest: the same again, while one path is cut, and mended")
        self.under_load("a path cut", self.cut)
        self.say(f"start {NEW}; guest: the same again, while the engine is upgraded: {NEW} takes over the running guest")
        self.cleat.add_engine(NEW)
        self.under_load("engine upgraded", self.upgrade)
        self.say(f"guest: the same again, while {NEW} is killed")
        self.under_load("engine killed", self.kill)
        self.table()
        self.say("power the guest off")
        self.guest.kill()
        self.cleat.detach("remote")

    def table(self):
        self.say("how long the guest waited: the longest time without any answer, and its longest request")
        self.say.show(f"{'what happened':20}{'no answer':>14}{'request':>14}")
        for what, gap, longest in self.rows:
            self.say.show(f"{what:20}{gap:>11} ms{longest:>11} ms")


if __name__ == "__main__":
    sys.exit(narrate("demo-nvmeof", lambda bench, say: Demo(bench, say).run()))

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo-nvmeof TRANSPORT=rdma`: a disk that is a namespace of an NVMe/RDMA target, reached by two adapters. This machine's kernel may have no RDMA, so both
ends run in one guest, over adapters in software (soft-RoCE): Linux' own target, and cleatd and cleat-engine with the disk, which cleat-perf, as the virtual
machine, writes and verifies. One path is cut; one adapter is taken away, and another one put in its place; the engine is exchanged for another one, as an
upgrade does it; then it is killed. Prints how long the virtual machine was without an answer each time, and how long when nothing happens: an emulated
machine makes pauses of its own.

Needs no root, KVM, hugepages, NVMe or RDMA. Exit status 0 and "demo-nvmeof: ok" at the end, or the step that failed, the reason and where the logs are."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "guest"))

from cleat_guest.narrator import narrate  # noqa: E402: needs the path above
from cleat_guest.nvme_host import NvmeHost  # noqa: E402
from cleat_guest.rdma_guest import ADDRESSES, Adapters, RdmaDisk, RdmaKernelTarget  # noqa: E402

NQN = "nqn.2026-11.example:array"
UUID = "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11"
DISK_BYTES = 32 << 20
KEEP_ALIVE_MS = 10000  # an emulated target takes its time to answer
CUT, TAKEN = 0, 1  # the paths
LOAD = "--mix read=50,write=50 --depth 8 --block-size 16k"
LOAD_SECONDS = 1.5  # before and after what happens


class Demo:
    def __init__(self, bench, say):
        self.say = say
        self.rows = []
        image = bench.path("disk.img")
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        say("start a guest with Linux 6.12 and soft-RoCE (no KVM: a few seconds)")
        host = NvmeHost(bench, {}, tools="rdma", memory_mb=1536, kernel_options="", images={"disk": image})
        adapters = Adapters(host.guest)
        say("in the guest: start the target, Linux' own, at the address of each of two RDMA adapters")
        target = RdmaKernelTarget(host.guest, adapters, host.guest.device("disk"), nqn=NQN, uuid=UUID)
        say.show(host.guest.run("rdma link"))
        say("in the guest: start cleatd and cleat-engine (engine-0), as a user without any privilege; make the target known to them, and a disk of its namespace")
        self.disk = RdmaDisk(host, adapters, target, nqn=NQN, uuid=UUID, size_bytes=DISK_BYTES, keep_alive_ms=KEEP_ALIVE_MS, tell=say.show)
        say.show(host.ctl_text("subsystem", "get", "peer"))

    def under_load(self, what, event):
        """A load on the disk, and the event in the middle of it."""
        load = self.disk.load(LOAD)
        time.sleep(LOAD_SECONDS)
        event()
        time.sleep(LOAD_SECONDS)
        result = load.end_well()
        gap, longest = (nanoseconds / 1e6 for nanoseconds in (result["longest_gap_ns"], result["latency_ns"]["max"]))
        self.rows.append((what, gap, longest))
        self.say.show(f"{result['verified_blocks']} blocks verified, no I/O error; no request was answered for {gap:.0f} ms at most, "
                      f"the longest request took {longest:.0f} ms")

    def run(self):
        self.say("a virtual machine writes, reads and verifies the disk, undisturbed")
        self.disk.attach()
        self.under_load("nothing", lambda: None)
        self.say("the same again, while one path is cut, and mended")
        self.under_load("a path cut", lambda: self.disk.cut(CUT))
        self.say(f"the same again, while the adapter of {ADDRESSES[TAKEN]} is taken away, and another one put in its place")
        self.under_load("an adapter gone", lambda: self.disk.lose_adapter(TAKEN))
        self.say("the same again, while the engine is upgraded: engine-1 takes over the running machine")
        self.under_load("engine upgraded", self.disk.upgrade)
        self.say("the same again, while engine-1 is killed")
        self.under_load("engine killed", self.disk.kill_engine)
        self.table()
        self.say("detach the disk; power the guest off")
        self.disk.end()

    def table(self):
        self.say("how long the virtual machine waited: the longest time without any answer, and its longest request")
        self.say.show(f"{'what happened':20}{'no answer':>14}{'request':>14}")
        for what, gap, longest in self.rows:
            self.say.show(f"{what:20}{gap:>11.0f} ms{longest:>11.0f} ms")


if __name__ == "__main__":
    sys.exit(narrate("demo-nvmeof", lambda bench, say: Demo(bench, say).run()))

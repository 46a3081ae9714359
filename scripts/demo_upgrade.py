#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo-upgrade`: a guest writes and verifies two disks, one behind virtio-blk and one behind virtio-scsi, while both are
moved to another engine and back, as an upgrade does it, and while the engine that serves them is killed beside one that
stands by. Prints how long the longest request took each time, and how long it takes when nothing happens: a guest without
KVM makes pauses of its own.

Needs no root, KVM, hugepages, NVMe or Ceph. Exit status 0 and "demo-upgrade: ok" at the end, or the step that failed, the
reason and where the logs are."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "guest"))

from cleat_guest.narrator import narrate  # noqa: E402: needs the path above
from cleat_guest.process import BenchError  # noqa: E402
from cleat_guest.verified_load import VerifiedLoad  # noqa: E402

OLD, NEW = "engine-0", "engine-1"


class Demo:
    def __init__(self, bench, say):
        self.say = say
        self.rows = []
        say("start cleatd and cleat-engine (engine-0); a disk in a file for virtio-blk, one in memory for virtio-scsi")
        self.cleat = bench.cleat()
        blk_socket, scsi_socket = bench.path("file.sock"), bench.path("vm.sock")
        self.cleat.create_file_disk("file", "64M", bench.path("file.img"))
        self.cleat.create_memory_disk("memory", "64M")
        self.cleat.create_controller("vm", scsi_socket, kind="scsi")
        say("start a guest (no KVM: a few seconds)")
        self.guest = bench.guest(disks={"file": blk_socket}, scsi={"vm": scsi_socket}, tools="fio")
        self.cleat.attach("file", blk_socket)
        target = self.cleat.attach_scsi("memory", "vm")
        self.guest.wait_ready()
        self.devices = {"blk": self.guest.device("file"), "scsi": self.guest.scsi_device("vm", target)}

    def under_load(self, what, event):
        """fio on both disks, and the event in the middle of it."""
        number = len(self.rows)
        loads = {name: VerifiedLoad(self.guest, device, name=f"{name}-{number}", seed=number + 1, io_size="12M")
                 for name, device in self.devices.items()}
        for load in loads.values():
            load.wait_begun()
        engine = event()
        gaps = {name: load.wait() for name, load in loads.items()}
        self.rows.append((what, engine, gaps))
        self.say.show("all verified, no I/O error; the longest request: " +
                      ", ".join(f"{name} {gap} ms" for name, gap in gaps.items()))

    def upgrade(self, source, target):
        pause = self.cleat.upgrade(source, target)
        self.say.show(f"cleatctl engine upgrade {source} --to {target}: both controllers are on {target}")
        return f"{pause:.1f} ms"

    def kill(self):
        pid = self.cleat.engine.pid
        self.cleat.engine.kill()
        self.cleat.wait_status(NEW, "the one that serves", lambda status: status.get("controllers") == 2)
        self.say.show(f"cleat-engine {pid} killed with SIGKILL; {NEW} has both controllers")
        return "-"

    def run(self):
        self.say("guest: fio writes both disks and verifies what it wrote, undisturbed")
        self.under_load("nothing", lambda: "-")
        self.say(f"start {NEW}, which stands by for {OLD} from now on")
        self.cleat.add_engine(NEW, "--standby-for", OLD)
        self.say(f"guest: the same again, while everything is moved to {NEW}")
        self.under_load(f"upgrade {OLD} to {NEW}", lambda: self.upgrade(OLD, NEW))
        self.say(f"guest: the same again, and back to {OLD}")
        self.under_load(f"upgrade {NEW} to {OLD}", lambda: self.upgrade(NEW, OLD))
        self.say("guest: undisturbed once more")
        self.under_load("nothing", lambda: "-")
        self.cleat.wait_status(NEW, "standing by again", lambda status: status.get("standing_by") == 2)
        self.say(f"guest: the same again, while {OLD} is killed")
        self.under_load(f"{OLD} killed", self.kill)
        self.table()
        self.say("power the guest off")
        self.guest.kill()
        if self.cleat.engine.running():
            raise BenchError(f"{OLD} was killed and runs")

    def table(self):
        self.say("what the guest saw (its longest request) and what cleatd measured (the longest pause of a controller):")
        self.say.show(f"{'what happened':28}{'blk':>10}{'scsi':>10}{'pause':>10}")
        for what, engine, gaps in self.rows:
            self.say.show(f"{what:28}{gaps['blk']:>7} ms{gaps['scsi']:>7} ms{engine:>10}")


if __name__ == "__main__":
    sys.exit(narrate("demo-upgrade", lambda bench, say: Demo(bench, say).run()))

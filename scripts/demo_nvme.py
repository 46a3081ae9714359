#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo-nvme`: an NVMe drive is cut into disks. This machine's kernel has no drive, so Cleat runs in a guest that has one, which
QEMU emulates; cleat-perf plays the virtual machines. Two disks of a pool, an encrypted one among them, are written and verified
while the engine is killed and while it is exchanged for another one; then one of them is purged, and erased before anybody else gets its
place. Prints how long the longest request took each time, and how long it takes when nothing happens: an emulated machine makes pauses
of its own.

Needs no root, KVM, hugepages, NVMe or Ceph. Exit status 0 and "demo-nvme: ok" at the end, or the step that failed, the reason and where
the logs are."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "guest"))

from cleat_guest.narrator import narrate  # noqa: E402: needs the path above
from cleat_guest.nvme_host import Load, NvmeHost  # noqa: E402
from cleat_guest.process import BenchError  # noqa: E402

SERIAL = "demo"
DRIVE_BYTES = 512 << 20
EXTENT_BYTES = 64 << 20
DISKS = ("plain", "secret")
LOAD_SECONDS = 1.5  # before and after what happens


class Demo:
    def __init__(self, bench, say):
        self.say = say
        self.rows = []
        self.image = bench.path("drive")
        with open(self.image, "wb") as image:
            image.truncate(DRIVE_BYTES)
        say("start a guest with Linux 6.12 and an NVMe drive of 512 MiB (no KVM: a few seconds)")
        self.host = NvmeHost(bench, {SERIAL: {"drive": f"file={self.image},format=raw"}})
        say("in the guest: start cleatd and cleat-engine, as a user without any privilege")
        self.host.start_cleatd()
        self.host.start_engine()

    def pool(self):
        return self.host.ctl("pool", "get", "nvme0")["status"]

    def make_pool(self):
        self.say("make a pool of the drive: it is labelled, and erased, whatever was on it")
        self.host.ctl("pool", "create", "nvme0", "--device", self.host.by_id(SERIAL), "--extent-size", "64M", "--wait=120")
        status = self.wait_erased()
        self.say.show(f"cleatctl pool get nvme0: READY, {int(status['free_bytes']) >> 20} MiB in extents of {EXTENT_BYTES >> 20} MiB are free")

    def wait_erased(self):
        return self.host.wait_for("erasing the pool's extents", self.pool, lambda status: int(status["to_erase_bytes"]) == 0)

    def make_disks(self):
        self.say("cut two disks from it; the engine encrypts the second one (AES-XTS)")
        self.host.guest.run("umask 077 && head -c 64 /dev/urandom >/run/secret.key")
        for disk, more in (("plain", ()), ("secret", ("--encryption-key-file", "/run/secret.key"))):
            made = self.host.ctl("disk", "create", disk, "--size", "96M", "--pool", "nvme0", *more)
            self.say.show(f"{disk}: extents {', '.join(map(str, self.extents(made)))}")
            self.host.ctl("controller", "create", disk, "--socket", f"/run/{disk}.sock")
            self.host.ctl("attach", disk, disk)

    @staticmethod
    def extents(disk):
        return [run.get("first", 0) + at for run in disk["spec"]["pool"]["extents"] for at in range(run["count"])]

    def under_load(self, what, event):
        loads = {disk: Load(self.host, disk) for disk in DISKS}
        for disk in DISKS:
            self.host.ctl("wait", f"controllers/{disk}", "--for", "in-use", "--timeout", "120")
        time.sleep(LOAD_SECONDS)
        event()
        time.sleep(LOAD_SECONDS)
        results = {disk: load.end_well() for disk, load in loads.items()}
        gaps = {disk: result["latency_ns"]["max"] / 1e6 for disk, result in results.items()}
        self.rows.append((what, gaps))
        self.say.show("nothing lost, no I/O error: " + ", ".join(
            f"{disk} {result['verified_blocks']} blocks verified, longest request {gaps[disk]:.0f} ms" for disk, result in results.items()))

    def kill(self):
        self.host.kill_engine(0)
        self.say.show("cleat-engine killed with SIGKILL")
        self.host.start_engine(0)
        self.say.show("another one started: it waits until the dead one's last write has landed, then goes on")

    def upgrade(self):
        self.host.start_engine(1)
        self.host.ctl("engine", "upgrade", "engine-0", "--to", "engine-1")
        pause = self.host.ctl("engine", "get", "engine-0")["status"]["upgrade"]["longest_pause"]
        self.say.show("cleatctl engine upgrade engine-0 --to engine-1: both disks moved; the longest pause by cleatd's clock: "
                      f"{1000 * float(pause.rstrip('s')):.0f} ms")

    def purge(self):
        extents = self.extents(self.host.ctl("disk", "get", "plain"))
        self.say("delete and purge the disk 'plain': its extents are erased, and free afterwards")
        if self.is_zero(extents):
            raise BenchError("the drive has nothing where the disk was written to")
        self.host.ctl("detach", "plain", "--wait=120")
        self.host.ctl("disk", "delete", "plain", "--purge")
        status = self.wait_erased()
        if not self.is_zero(extents):
            raise BenchError(f"extents {extents} do not read as zeroes on the drive")
        self.say.show(f"extents {', '.join(map(str, extents))}: all of their bytes are zero on the drive; "
                      f"{int(status['free_bytes']) >> 20} MiB are free")

    def is_zero(self, extents):
        """As QEMU has the drive."""
        with open(self.image, "rb") as image:
            for extent in extents:
                image.seek((1 + extent) * EXTENT_BYTES)
                if image.read(EXTENT_BYTES).strip(b"\0"):
                    return False
        return True

    def run(self):
        self.make_pool()
        self.make_disks()
        self.say("two virtual machines write, read and verify the disks, undisturbed")
        self.under_load("nothing", lambda: None)
        path = self.host.ctl("disk", "get", "secret")["status"]["io_path"]
        self.say.show(f"cleatctl disk get secret: I/O PATH {path}")
        self.say("the same again, while the engine is killed")
        self.under_load("engine killed", self.kill)
        self.say("the same again, while the engine is exchanged for a new one, which takes over the running machines")
        self.under_load("engine upgraded", self.upgrade)
        self.purge()
        self.table()

    def table(self):
        self.say("the longest request of each virtual machine:")
        self.say.show(f"{'what happened':20}" + "".join(f"{disk:>12}" for disk in DISKS))
        for what, gaps in self.rows:
            self.say.show(f"{what:20}" + "".join(f"{gaps[disk]:>9.0f} ms" for disk in DISKS))


if __name__ == "__main__":
    sys.exit(narrate("demo-nvme", lambda bench, say: Demo(bench, say).run()))

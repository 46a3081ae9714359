#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo-crash`: a guest writes and verifies two disks, one behind virtio-blk and one behind virtio-scsi, while the
engine that serves them is killed (SIGKILL) and started again, three times. Prints how long the guest waited.

Needs no root, KVM, hugepages, NVMe or Ceph. Exit status 0 and "demo-crash: ok" at the end, or the step that failed, the
reason and where the logs are."""

import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "guest"))

from cleat_guest.narrator import narrate  # noqa: E402: needs the path above
from cleat_guest.verified_load import VerifiedLoad  # noqa: E402

KILLS = 3


def start_loads(guest, devices, number):
    return {name: VerifiedLoad(guest, device, name=f"{name}-{number}", seed=number + 1)
            for name, device in devices.items()}


def wait_for(loads):
    return ", ".join(f"{name}: {load.wait()} ms" for name, load in loads.items())


def kill_engine(cleat, say):
    pid = cleat.engine.pid
    start = time.monotonic()
    cleat.restart_engine()
    say(f"cleat-engine {pid} killed with SIGKILL; {cleat.engine.pid} started, and connected to cleatd after "
        f"{(time.monotonic() - start) * 1000:.0f} ms")


def demo(bench, say):
    say("start cleatd and cleat-engine; a disk in a file (io_uring) for virtio-blk, one in memory for virtio-scsi")
    cleat = bench.cleat()
    blk_socket, scsi_socket = bench.path("file.sock"), bench.path("vm.sock")
    cleat.create_file_disk("file", "64M", bench.path("file.img"))
    cleat.create_memory_disk("memory", "64M")
    cleat.create_controller("vm", scsi_socket, kind="scsi")

    say("start a guest (no KVM: a few seconds)")
    guest = bench.guest(disks={"file": blk_socket}, scsi={"vm": scsi_socket}, tools="fio")
    cleat.attach("file", blk_socket)
    target = cleat.attach_scsi("memory", "vm")
    guest.wait_ready()
    devices = {"blk": guest.device("file"), "scsi": guest.scsi_device("vm", target)}

    say("guest: fio writes both disks and verifies what it wrote, undisturbed; the longest request of each:")
    say.show(wait_for(start_loads(guest, devices, 0)))

    for number in range(1, KILLS + 1):
        say(f"guest: the same again, with the engine's death {number} of {KILLS}")
        loads = start_loads(guest, devices, number)
        for load in loads.values():
            load.wait_begun()
        time.sleep(random.uniform(0, 1.5))
        kill_engine(cleat, say)
        say.show(f"all verified, no I/O error; the longest request (the gap): {wait_for(loads)}")

    say("power the guest off")
    guest.kill()
    cleat.stop()


if __name__ == "__main__":
    sys.exit(narrate("demo-crash", demo))

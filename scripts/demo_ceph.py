#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo-ceph`: a guest on two encrypted disks that are images of a real Ceph cluster and share a limit. It makes a file
system and verifies what fio writes; an image grows from outside (`rbd resize`); the cluster's OSD stands still for some seconds
under the guest's load, which waits, and goes on without an error.

Needs no root, KVM or hugepages, and no Ceph cluster: it brings up its own, of one monitor and one OSD in memory. Exit status 0
and "demo-ceph: ok" at the end, or the step that failed, the reason and where the logs are."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "guest"))

from cleat_guest import BenchError  # noqa: E402: needs the path above
from cleat_guest.measured_load import measure  # noqa: E402
from cleat_guest.narrator import narrate  # noqa: E402
from cleat_guest.verified_load import VerifiedLoad  # noqa: E402

CLUSTER = "ceph1"
DISKS = ("db", "log")
MIB = 1 << 20
DISK_MIB = 64
GROUP, GROUP_IOPS = "vm", 600
OSD_STOPPED_S = 5
WRITES_BEFORE = 100  # of each disk, so that the stop meets a load
PATTERN = "CLEAT"


def attach_images(bench, ceph, cleat, say):
    """The disks' targets behind the controller of the guest to come."""
    say(f"rbd create: an image of {DISK_MIB} MiB for each of two disks")
    for disk in DISKS:
        ceph.create_image(disk, f"{DISK_MIB}M")
    say(f"create a group limited to {GROUP_IOPS} requests a second, a SCSI controller in it, and two encrypted disks")
    cleat.ctl("group", "create", GROUP, "--limit", f"iops={GROUP_IOPS}")
    cleat.ctl("controller", "create", "vm", "--type", "scsi", "--socket", bench.path("vm.sock"), "--group", GROUP)
    targets = {}
    for disk in DISKS:
        key = bench.path(f"{disk}.key")
        with open(key, "wb") as file:
            file.write(os.urandom(64))
        cleat.create_rbd_disk(disk, f"{DISK_MIB}M", f"{CLUSTER}/rbd/{disk}", "--encryption-key-file", key)
        targets[disk] = cleat.attach_scsi(disk, "vm")
    say.show(cleat.ctl_text("disk", "list"))
    return targets


def use_file_system(guest, device, say):
    say(f"guest: {device} is disk '{DISKS[0]}': make an ext4 file system, write 8 MiB, compare after a remount")
    guest.run(f"mkfs.ext4 -q {device} && mount {device} /mnt", 60)
    guest.run(f"head -c {8 * MIB} /dev/urandom >/mnt/file && sha256sum /mnt/file >/run/file.sum && umount /mnt", 60)
    guest.run(f"echo 3 >/proc/sys/vm/drop_caches && mount {device} /mnt", 60)
    say.show(guest.run("sha256sum -c /run/file.sum", 60))


def grow(guest, ceph, device, say):
    say(f"rbd resize, by the cluster's administrator: the image of '{DISKS[0]}' to {2 * DISK_MIB} MiB; the guest is told")
    ceph.rbd("resize", "--no-progress", f"rbd/{DISKS[0]}", "--size", f"{2 * DISK_MIB}M")
    guest.wait_size(device, 2 * DISK_MIB * MIB)
    guest.run(f"resize2fs {device} 2>/dev/null", 60)
    say.show(guest.run("df -m /mnt | tail -n1 && echo 3 >/proc/sys/vm/drop_caches && sha256sum -c /run/file.sum", 60))
    guest.run("umount /mnt", 60)


def completed(guest, devices):
    """Reads and writes that the guest's kernel has seen the end of, of all of them."""
    files = " ".join(f"/sys/block/{device.removeprefix('/dev/')}/stat" for device in devices.values())
    return int(guest.run(f"cat {files} | awk '{{ n += $1 + $5 }} END {{ print n }}'"))


def wait_completed(guest, devices, count, what):
    deadline = time.monotonic() + 60
    while (seen := completed(guest, devices)) < count:
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: {seen} requests of the guest have ended, {count} were waited for")
        time.sleep(0.1)


def stop_osd(guest, ceph, cleat, devices, say):
    say("guest: fio writes both disks with random blocks and verifies them, undisturbed; the longest request of each:")
    loads = start_loads(guest, devices, 0)
    say.show(wait_for(loads))
    say(f"guest: the same again; the OSD stands still (SIGSTOP) for {OSD_STOPPED_S} s meanwhile; cleatctl top then:")
    before = completed(guest, devices)
    loads = start_loads(guest, devices, 1)
    wait_completed(guest, devices, before + WRITES_BEFORE, "the load's beginning")
    with ceph.stopped("osd.0"):
        stopped = time.monotonic()
        time.sleep(1)  # what the OSD had answered before arrives
        then = completed(guest, devices)
        time.sleep(max(0, stopped + OSD_STOPPED_S - time.monotonic()))
        say.show(cleat.ctl_text("top", "--once", "--all"))
        say.show(f"requests that ended in the guest in the last {time.monotonic() - stopped - 1:.0f} s: "
                 f"{completed(guest, devices) - then}")
    say("the OSD goes on, and so does fio")
    say.show(f"all verified, no I/O error; the longest request: {wait_for(loads)}")


def start_loads(guest, devices, number):
    return {name: VerifiedLoad(guest, device, name=f"{name}-{number}", seed=number + 1, size="16M", io_size="6M")
            for name, device in devices.items()}


def wait_for(loads):
    return ", ".join(f"{name}: {load.wait()} ms" for name, load in loads.items())


def show_host(ceph, cleat, say):
    say("what the engine has of Ceph: cleatctl engine get; and who the image's owner is: rbd image-meta list")
    say.show(cleat.ctl_text("engine", "get", "engine-0"))
    say.show(ceph.rbd("image-meta", "list", f"rbd/{DISKS[0]}"))


def show_encryption(bench, guest, ceph, cleat, device, say):
    """Detaches the disk whose image is looked at: what it owns nobody else should read."""
    disk = DISKS[1]
    say(f"what the guest wrote can't be found in the image: a pattern, on disk '{disk}' and in what rbd export gives")
    guest.run(f"yes {PATTERN} | head -c {MIB} >/run/pattern && dd if=/run/pattern of={device} bs=64k oflag=direct 2>/dev/null")
    on_disk = guest.run(f"dd if={device} bs=64k count=16 iflag=direct 2>/dev/null | grep -c {PATTERN}").strip()
    cleat.detach_scsi(disk, "vm")
    ceph.export(disk, bench.path("export"))
    with open(bench.path("export"), "rb") as file:
        in_image = file.read().count(PATTERN.encode())
    say.show(f"lines with the pattern: {on_disk} as the guest reads it, {in_image} in the image")


def demo(bench, say):
    say("start a Ceph cluster: one monitor, one OSD, as this user, in a folder of their own")
    ceph = bench.ceph()
    say("start cleatd and cleat-engine")
    cleat = bench.cleat(engine_options=("--kek-file", bench.path("state/kek")))
    say(f"cleatctl cluster create {CLUSTER}, with the key of client.cleat, which is shown nowhere from then on")
    cleat.create_cluster(CLUSTER, ceph)
    say.show(cleat.ctl_text("cluster", "get", CLUSTER))
    targets = attach_images(bench, ceph, cleat, say)

    say("start a guest (no KVM: a few seconds)")
    guest = bench.guest(scsi={"vm": bench.path("vm.sock")}, tools="fio")
    guest.wait_ready()
    devices = {disk: guest.scsi_device("vm", target) for disk, target in targets.items()}
    use_file_system(guest, devices[DISKS[0]], say)
    show_host(ceph, cleat, say)
    grow(guest, ceph, devices[DISKS[0]], say)
    stop_osd(guest, ceph, cleat, devices, say)
    say("guest: fio, random reads and writes of 4 KiB on both disks at once, 5 seconds")
    measured = measure(guest, devices, 5)
    say.show(f"promised: {GROUP_IOPS} requests a second at most for both together; measured: {measured:.0f}")
    show_encryption(bench, guest, ceph, cleat, devices[DISKS[1]], say)

    say("power the guest off, detach and delete the disks, forget the cluster, end it; the images stay while it lasts")
    guest.kill()
    cleat.detach_scsi(DISKS[0], "vm")
    for disk in DISKS:
        cleat.delete_disk(disk)
    cleat.delete_controller("vm")
    cleat.ctl("group", "delete", GROUP)
    cleat.ctl("cluster", "delete", CLUSTER, "--yes")
    say.show(ceph.rbd("ls", "-l", "rbd"))
    cleat.stop()


if __name__ == "__main__":
    sys.exit(narrate("demo-ceph", demo))

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make demo`: two disks, attached over gRPC to a real guest, which makes file systems on them and uses them, while
`cleatctl top` looks on; then a SCSI disk that comes into the running guest, grows, and goes; and an encrypted pair of disks
that share a limit, measured by fio in the guest.

Needs no root, KVM, hugepages, NVMe or Ceph. Says each step in a line; exit status 0 and "demo: ok" at the end, or the
step that failed, the reason and where the logs are."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "guest"))

from cleat_guest.measured_load import measure  # noqa: E402: needs the path above
from cleat_guest.narrator import narrate  # noqa: E402

DISKS = {"files": "256M", "scratch": "128M"}
GROUP, GROUP_IOPS = "vm", 600
PAIR = ("secret-a", "secret-b")
MIB = 1 << 20
WRITE_FILES = "for n in 1 2 3 4; do dd if=/dev/urandom of=/mnt/$n bs=1M count=$((n * n)) 2>/dev/null; done"


def use_disk(guest, disk, say):
    device = guest.device(disk)
    say(f"guest: {device} is disk '{disk}': make an ext4 file system, mount it, write 30 MiB")
    guest.run(f"mkfs.ext4 -q {device} && mount {device} /mnt")
    guest.run(f"{WRITE_FILES} && cd /mnt && sha256sum 1 2 3 4 >/run/{disk}.sums", 120)
    say(f"guest: unmount {device}, mount it again, compare checksums")
    guest.run("umount /mnt")
    # What is compared must come from the disk, not from the guest's cache.
    guest.run("echo 3 >/proc/sys/vm/drop_caches")
    guest.run(f"mount -o ro {device} /mnt")
    say.show(guest.run(f"cd /mnt && sha256sum -c /run/{disk}.sums", 120))
    guest.run("umount /mnt")


def show_size(guest, device, say):
    say.show(guest.run(f"echo {device}: $(cat /sys/block/{device[5:]}/size) sectors of 512 bytes"))


def use_scsi_disk(cleat, guest, say):
    say("create disk 'data' and attach it to the SCSI controller of the running guest")
    cleat.create_memory_disk("data", "64M")
    target = cleat.attach_scsi("data", "vm")
    device = guest.scsi_device("vm", target)
    say(f"guest: the disk has appeared as {device}; make an ext4 file system, write 4 MiB")
    show_size(guest, device, say)
    guest.run(f"mkfs.ext4 -q {device} && mount {device} /mnt")
    guest.run(f"head -c {4 * MIB} /dev/urandom >/mnt/file && sha256sum /mnt/file >/run/data.sum && sync")
    say("resize 'data' to 128 MiB; the guest is told")
    cleat.resize_disk("data", "128M")
    guest.wait_size(device, 128 * MIB)
    show_size(guest, device, say)
    guest.run(f"resize2fs {device} 2>/dev/null", 60)
    say.show(guest.run("df -m /mnt | tail -n1 && echo 3 >/proc/sys/vm/drop_caches && sha256sum -c /run/data.sum"))
    say("guest: unmount; detach 'data': it disappears from the guest")
    guest.run("umount /mnt")
    cleat.detach_scsi("data", "vm")
    guest.wait_scsi_gone("vm", target)
    cleat.delete_disk("data")


def use_limited_disks(bench, cleat, guest, say):
    """Two encrypted disks of one group; the guest has their controllers since it was started."""
    devices = {}
    for disk in PAIR:
        with open(bench.path(f"{disk}.key"), "wb") as key:
            key.write(os.urandom(64))
        cleat.create_file_disk(disk, "64M", bench.path(f"{disk}.img"), "--encryption-key-file", bench.path(f"{disk}.key"))
        target = cleat.attach_scsi(disk, disk)
        devices[disk] = guest.scsi_device(disk, target)
    say.show(cleat.ctl_text("group", "get", GROUP))
    say.show(cleat.ctl_text("disk", "get", PAIR[0]))
    promised = GROUP_IOPS
    for again in (False, True):
        if again:
            promised = GROUP_IOPS // 2
            say(f"halve the group's limit while both are in use: cleatctl group limit {GROUP} iops={promised}")
            cleat.ctl("group", "limit", GROUP, f"iops={promised}", "--wait=30")
        say("guest: fio, random reads and writes of 4 KiB on both at once, 5 seconds")
        measured = measure(guest, devices, 5)
        say.show(f"promised: {promised} requests a second for both disks together; measured: {measured:.0f} "
                 f"({100 * measured / promised:.1f} %)")
    say("what the guest wrote can't be found in the files: the blocks of a pattern, on the disk and in its file")
    guest.run(f"yes CLEAT | head -c 1048576 >/run/pattern && dd if=/run/pattern of={devices[PAIR[0]]} bs=64k oflag=direct "
              "2>/dev/null")
    on_disk = guest.run(f"dd if={devices[PAIR[0]]} bs=64k count=16 iflag=direct 2>/dev/null | grep -c CLEAT").strip()
    with open(bench.path(f"{PAIR[0]}.img"), "rb") as file:
        in_file = file.read(1 << 20).count(b"CLEAT")
    say.show(f"lines with the pattern: {on_disk} as the guest reads it, {in_file} in the file")
    for disk in PAIR:
        cleat.detach_scsi(disk, disk)
        cleat.delete_disk(disk)


def watch_requests(cleat, guest, say):
    """The guest reads one disk and writes the other in the background while `cleatctl top` looks on for a second."""
    files, scratch = guest.device("files"), guest.device("scratch")
    say("guest: read disk 'files' and write disk 'scratch' without an end; cleatctl top --once --all:")
    guest.run("(while :; do echo 3 >/proc/sys/vm/drop_caches; "
              f"dd if={files} of=/dev/null bs=64k count=500 2>/dev/null; "
              f"dd if=/dev/zero of={scratch} bs=64k count=500 conv=fsync 2>/dev/null; done) >/dev/null 2>&1 & "
              "echo $! >/run/load")
    say.show(cleat.ctl_text("top", "--once", "--all"))
    guest.run("kill $(cat /run/load)")
    say("what became of all requests since they were attached: cleatctl stats")
    say.show(cleat.ctl_text("stats"))


def demo(bench, say):
    say("start cleatd and cleat-engine, as this user, in a folder of their own")
    cleat = bench.cleat(engine_options=("--kek-file", bench.path("state/kek")))
    sockets = {disk: bench.path(f"{disk}.sock") for disk in DISKS}

    say("create disk 'files' in a file (io_uring), and disk 'scratch' in memory")
    cleat.create_file_disk("files", DISKS["files"], bench.path("files.img"))
    cleat.create_memory_disk("scratch", DISKS["scratch"])

    say("create a SCSI controller, without a disk yet, for the same guest")
    scsi_socket = bench.path("vm.sock")
    cleat.create_controller("vm", scsi_socket, kind="scsi")

    say(f"create a group limited to {GROUP_IOPS} requests a second, and two more SCSI controllers in it")
    scsi = {"vm": scsi_socket, **{disk: bench.path(f"{disk}.sock") for disk in PAIR}}
    cleat.ctl("group", "create", GROUP, "--limit", f"iops={GROUP_IOPS}")
    for disk in PAIR:
        cleat.ctl("controller", "create", disk, "--type", "scsi", "--socket", scsi[disk], "--group", GROUP)

    say("start a guest; its QEMU listens on five vhost-user sockets and waits for us")
    guest = bench.guest(disks=sockets, scsi=scsi, tools="fio")

    say("attach both disks")
    for disk, path in sockets.items():
        cleat.attach(disk, path)

    say("the guest boots (no KVM: a few seconds)")
    guest.wait_ready()
    for disk in DISKS:
        use_disk(guest, disk, say)

    watch_requests(cleat, guest, say)
    use_scsi_disk(cleat, guest, say)
    say("create and attach two encrypted disks, one behind each of the group's controllers")
    use_limited_disks(bench, cleat, guest, say)

    say("what cleatd knows: cleatctl disk list; cleatctl attachment list")
    say.show(cleat.ctl_text("disk", "list"))
    say.show(cleat.ctl_text("attachment", "list"))

    say("power the guest off, detach and delete both disks")
    guest.kill()
    for disk in DISKS:
        cleat.detach(disk)
        cleat.delete_disk(disk)
    for controller in ("vm", *PAIR):
        cleat.delete_controller(controller)
    cleat.ctl("group", "delete", GROUP)
    cleat.stop()


if __name__ == "__main__":
    sys.exit(narrate("demo", demo))

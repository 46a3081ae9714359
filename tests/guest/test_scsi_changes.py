# SPDX-License-Identifier: Apache-2.0
"""SCSI disks that come, grow and go while the guest uses them and others: nothing but the change is noticed, and nobody
has to rescan. And virtio-blk disks that grow."""

import unittest

from cleat_guest import SharedBenchTest

MIB = 1 << 20
# Writes what is in a file, until it is told to stop or an error ends it. By way of a mount in which dd can make no file of its
# own where a disk has gone.
NO_NEW_FILES = "mkdir -p /run/dev && mount -o bind /dev /run/dev && mount -o remount,bind,ro /run/dev"
WRITER = "until [ -e /run/stop ]; do dd if=/run/data of=/run{device} bs=64k oflag=direct conv=fsync 2>&1 || exit 1; done"


class ScsiChangesTest(SharedBenchTest):
    @classmethod
    def set_up_bench(cls):
        cls.cleat = cls.bench.cleat()
        scsi, blk = cls.bench.path("vm.sock"), cls.bench.path("blk.sock")
        cls.cleat.create_controller("vm", scsi, kind="scsi")
        cls.cleat.create_file_disk("first", "64M", cls.bench.path("first.img"))
        cls.cleat.create_memory_disk("blk", "64M")
        cls.guest = cls.bench.guest(disks={"blk": blk}, scsi={"vm": scsi})
        cls.cleat.attach("blk", blk)
        cls.cleat.attach_scsi("first", "vm")
        cls.guest.wait_ready()
        cls.guest.run(f"head -c {4 * MIB} /dev/urandom >/run/data && {NO_NEW_FILES}")

    def tearDown(self):
        """No writer is left."""
        self.guest.run("touch /run/stop")
        for job in self.jobs:
            self.guest.run(f"until [ -e {job.path}.status ]; do sleep 0.05; done")
        self.guest.run("rm /run/stop")

    def setUp(self):
        self.jobs = []

    def writer(self, device):
        self.jobs.append(self.guest.background(WRITER.format(device=device)))
        return self.jobs[-1]

    def write_and_compare(self, device, offset=0):
        self.guest.run(f"dd if=/run/data of={device} bs=1M seek={offset // MIB} conv=fsync 2>/dev/null && "
                       "echo 3 >/proc/sys/vm/drop_caches && "
                       f"dd if={device} bs=1M skip={offset // MIB} count=4 2>/dev/null | cmp - /run/data")

    def test_plugged_and_unplugged_under_load(self):
        first = self.guest.scsi_device("vm", 0)
        others = self.writer(first)
        self.cleat.create_memory_disk("second", "64M")
        for _ in range(3):
            target = self.cleat.attach_scsi("second", "vm")
            self.assertEqual(target, 1)
            device = self.guest.scsi_device("vm", target)
            self.write_and_compare(device)
            victim = self.writer(device)
            self.guest.run(f"until [ $(awk '{{print $7}}' /sys/block/{device[5:]}/stat) -gt 9000 ]; do sleep 0.05; done")
            self.cleat.detach_scsi("second", "vm")
            # An error that the writer can see, and the disk is gone: no hang.
            self.guest.wait_scsi_gone("vm", target)
            self.guest.run(f"until [ -e {victim.path}.status ]; do sleep 0.05; done")
            self.assertEqual(self.guest.run(f"cat {victim.path}.status").strip(), "1")
            self.assertEqual(self.guest.scsi_targets("vm"), [0])
            self.assertFalse(others.done(), "the other disk's I/O ended, too")
        # No command was left for the kernel's time-out to find.
        self.assertNotIn("timing out command", self.guest.run("dmesg"))

    def test_growing_disks_reach_the_guest(self):
        scsi, blk = self.guest.scsi_device("vm", 0), self.guest.device("blk")
        for device, disk in ((scsi, "first"), (blk, "blk")):
            with self.subTest(disk=disk):
                self.write_and_compare(device)
                job = self.writer(device)
                self.cleat.resize_disk(disk, "128M")
                self.guest.wait_size(device, 128 * MIB)
                self.assertFalse(job.done(), "the resize disturbed the I/O")
                self.write_and_compare(device, 120 * MIB)
        # A disk that grew while it was behind nothing.
        self.cleat.create_memory_disk("late", "64M", "--block", "4096")
        self.cleat.resize_disk("late", "96M")
        target = self.cleat.attach_scsi("late", "vm")
        self.guest.wait_size(self.guest.scsi_device("vm", target), 96 * MIB)
        self.cleat.detach_scsi("late", "vm")
        self.guest.wait_scsi_gone("vm", target)


if __name__ == "__main__":
    unittest.main()

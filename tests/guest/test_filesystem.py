# SPDX-License-Identifier: Apache-2.0
"""A guest's file system survives: remounts, the guest's reboot, and its reset button after a sync."""

import unittest

from cleat_guest import SharedBenchTest

DISKS = ("file", "memory")
# No multiples of a block, and one large enough for several requests in flight.
SIZES = (1, 511, 4097, 65537, 1000003, 12000000)
WRITE_FILES = (f"cd /mnt && for size in {' '.join(map(str, SIZES))}; do head -c $size /dev/urandom >$size; done; "
               "sha256sum [0-9]* >sums; cd /")


class FilesystemTest(SharedBenchTest):
    """Each test makes its file systems anew, and leaves them unmounted."""

    @classmethod
    def set_up_bench(cls):
        cleat = cls.bench.cleat()
        cleat.create_file_disk("file", "256M", cls.bench.path("disk.img"))
        cleat.create_memory_disk("memory", "256M")
        sockets = {disk: cls.bench.path(f"{disk}.sock") for disk in DISKS}
        cls.guest = cls.bench.guest(disks=sockets)
        for disk, path in sockets.items():
            cleat.attach(disk, path)
        cls.guest.wait_ready()

    def fill(self, disk):
        device = self.guest.device(disk)
        self.guest.run(f"mkfs.ext4 -q -F {device} && mount {device} /mnt")
        self.guest.run(WRITE_FILES)
        self.guest.run("umount /mnt")

    def check(self, disk):
        device = self.guest.device(disk)
        self.guest.run("echo 3 >/proc/sys/vm/drop_caches")
        self.guest.run(f"mount {device} /mnt")
        output = self.guest.run("cd /mnt && sha256sum -c sums")
        self.assertEqual(output.count(": OK"), len(SIZES), output)
        self.guest.run("umount /mnt")
        self.guest.run(f"fsck.ext4 -f -n {device}")

    def test_remount_and_reboot(self):
        for disk in DISKS:
            self.fill(disk)
            self.check(disk)
        self.guest.reboot()
        for disk in DISKS:
            self.check(disk)

    def test_reset_keeps_what_was_synced(self):
        for disk in DISKS:
            device = self.guest.device(disk)
            self.guest.run(f"mkfs.ext4 -q -F {device} && mkdir -p /run/{disk} && mount {device} /run/{disk}")
            self.guest.run(f"cd /run/{disk} && head -c 3000001 /dev/urandom >kept && sha256sum kept >sum && sync")
            # Never synced: may be there or not, but must not harm what is.
            self.guest.background(f"while :; do head -c 100000 /dev/urandom >/run/{disk}/lost; done")
        self.guest.reset()
        for disk in DISKS:
            device = self.guest.device(disk)
            # The journal is replayed by the mount; the file system must be whole after it.
            self.guest.run(f"mount {device} /mnt && cd /mnt && sha256sum -c sum")
            self.guest.run(f"umount /mnt && fsck.ext4 -f -n {device}")


if __name__ == "__main__":
    unittest.main()

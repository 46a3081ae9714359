# SPDX-License-Identifier: Apache-2.0
"""Disks that come and go while the guest runs."""

import unittest

from cleat_guest import SharedBenchTest

ROUNDS = 3


class HotplugTest(SharedBenchTest):
    """Each test leaves the disk unplugged and detached."""

    @classmethod
    def set_up_bench(cls):
        cls.cleat = cls.bench.cleat()
        cls.path = cls.bench.path("disk.sock")
        cls.cleat.create_file_disk("disk", "64M", cls.bench.path("disk.img"))
        cls.guest = cls.bench.guest(ports=1).wait_ready()

    def test_content_stays_over_unplug_and_detach(self):
        self.guest.run("head -c 1000000 /dev/urandom >/run/data")
        for number in range(ROUNDS):
            self.guest.listen("disk", self.path)
            self.cleat.attach("disk", self.path)
            self.guest.plug("disk")
            device = self.guest.device("disk")
            if number > 0:
                self.guest.run(f"cmp -n 1000000 /run/data {device}")
            self.guest.run(f"head -c 1000000 /dev/urandom >/run/data; "
                           f"dd if=/run/data of={device} bs=64k conv=fsync 2>/dev/null")
            self.guest.unplug("disk")
            self.assertFalse(self.guest.is_present("disk"))
            self.cleat.detach("disk")
            self.assertEqual(self.cleat.list("attachment"), [])

    def test_io_waits_while_a_plugged_disk_is_detached(self):
        self.guest.listen("disk", self.path)
        self.cleat.attach("disk", self.path)
        self.guest.plug("disk")
        device = self.guest.device("disk")
        self.guest.run("head -c 1048576 /dev/urandom >/run/data")
        job = self.guest.background(f"until [ -e /run/stop ]; do "
                                    f"dd if=/run/data of={device} bs=4k oflag=direct conv=fsync || exit 1; done")
        for _ in range(ROUNDS):
            self.cleat.detach("disk")
            self.assertEqual(self.cleat.list("attachment"), [])
            self.cleat.attach("disk", self.path)
        self.guest.run("touch /run/stop")
        # An I/O error would have ended it with another status.
        job.wait()
        self.guest.run(f"echo 3 >/proc/sys/vm/drop_caches; cmp -n 1048576 /run/data {device}")
        self.guest.unplug("disk")
        self.cleat.detach("disk")


if __name__ == "__main__":
    unittest.main()

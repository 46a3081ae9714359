# SPDX-License-Identifier: Apache-2.0
"""Processes that die at a bad moment: cleatd under a guest's I/O, QEMU under its own."""

import os
import random
import time
import unittest

from cleat_guest import BenchTest
from cleat_guest.verified_load import VerifiedLoad

# A seed of one's own repeats a failure: CLEAT_SEED=123 python3 test_restarts.py
SEED = int(os.environ.get("CLEAT_SEED") or random.randrange(1 << 32))


class RestartsTest(BenchTest):
    def setUp(self):
        self.random = random.Random(SEED)
        self.cleat = self.bench.cleat()
        self.sockets = {disk: self.bench.path(f"{disk}.sock") for disk in ("file", "memory")}
        self.cleat.create_file_disk("file", "128M", self.bench.path("disk.img"))
        self.cleat.create_memory_disk("memory", "128M")
        self.guest = self.bench.guest(disks=self.sockets, ports=1, tools="fio")
        for disk, path in self.sockets.items():
            self.cleat.attach(disk, path)
        self.guest.wait_ready()

    def loads(self, name):
        """On the second half of each disk, and begun."""
        loads = [VerifiedLoad(self.guest, self.guest.device(disk), name=f"{name}-{disk}", seed=1, offset="64M", io_size="6M")
                 for disk in self.sockets]
        for load in loads:
            load.wait_begun()
        return loads

    def at_a_random_moment(self, seconds):
        time.sleep(self.random.uniform(0, seconds))

    def test_cleatd_killed_under_io(self):
        loads = self.loads("cleatd")
        engine = self.cleat.engine.pid
        with self.subTest(seed=SEED):
            for _ in range(4):
                self.at_a_random_moment(0.5)
                self.cleat.restart_cleatd()
            for load in loads:
                load.wait()
            self.assertEqual(self.cleat.engine.pid, engine)
            self.cleat.engine.check_running()
            self.assertEqual({disk["name"] for disk in self.cleat.list("disk")}, {"disks/file", "disks/memory"})
            self.plug_another_disk()

    def plug_another_disk(self):
        path = self.bench.path("late.sock")
        self.cleat.create_memory_disk("late", "64M")
        self.guest.listen("late", path)
        self.cleat.attach("late", path)
        self.guest.plug("late")
        device = self.guest.device("late")
        self.guest.run(f"head -c 1000000 /dev/urandom >/run/data && dd if=/run/data of={device} conv=fsync 2>/dev/null "
                       f"&& cmp -n 1000000 /run/data {device}")

    def test_qemu_killed_under_io(self):
        for disk in self.sockets:
            device = self.guest.device(disk)
            self.guest.run(f"mkfs.ext4 -q {device} 48m")
        with self.subTest(seed=SEED):
            for number in range(2):
                self.write_synced_file(number)
                self.loads(f"qemu-{number}")
                self.at_a_random_moment(2)
                self.guest.kill()
                self.cleat.engine.check_running()
                self.guest.start().wait_ready()
                self.check_synced_files(number + 1)

    def write_synced_file(self, number):
        for disk in self.sockets:
            self.guest.run(f"mount {self.guest.device(disk)} /mnt && cd /mnt && head -c 2000003 /dev/urandom >{number} "
                           f"&& sha256sum {number} >{number}.sum && sync && cd / && umount /mnt")

    def check_synced_files(self, count):
        for disk in self.sockets:
            device = self.guest.device(disk)
            self.guest.run(f"fsck.ext4 -f -n {device}")
            self.guest.run(f"mount -o ro {device} /mnt")
            output = self.guest.run("cd /mnt && for sum in *.sum; do sha256sum -c $sum || exit 1; done")
            self.guest.run("umount /mnt")
            self.assertEqual(output.count(": OK"), count, output)


if __name__ == "__main__":
    unittest.main()

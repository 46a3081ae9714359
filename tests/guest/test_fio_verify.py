# SPDX-License-Identifier: Apache-2.0
"""fio in the guest finds what it wrote: mixed sizes, flushes, discards, two queues on two reactors."""

import unittest

from cleat_guest import SharedBenchTest

MIB = 1 << 20
# Both processors submit, each on a queue and a half of the disk of its own.
FIO = ("fio --name=verify --filename={device} --direct=1 --ioengine=libaio --iodepth=16 --numjobs=2 "
       "--cpus_allowed=0-1 --cpus_allowed_policy=split --size=64M --offset_increment=64M --io_size=24M "
       "--bsrange=512-128k --blockalign=512 --randrepeat=1 --randseed=7 "
       "--verify=crc32c --verify_fatal=1 --do_verify=1 --output=/run/fio.out {more} || {{ cat /run/fio.out; false; }}")


class FioBench(SharedBenchTest):
    """What is on the disks is nobody's: each test writes what it reads."""
    PACKED = False

    @classmethod
    def set_up_bench(cls):
        cleat = cls.bench.cleat(reactors=2)
        cls.bench_disks = {disk: cls.bench.path(f"{disk}.sock") for disk in ("file", "memory")}
        cleat.create_file_disk("file", "128M", cls.bench.path("disk.img"))
        cleat.create_memory_disk("memory", "128M")
        cls.guest = cls.bench.guest(disks=cls.bench_disks, queues=2, tools="fio", packed=cls.PACKED)
        for disk, path in cls.bench_disks.items():
            cleat.attach(disk, path, queues=2)
        cls.guest.wait_ready()

    def fio(self, disk, more):
        device = self.guest.device(disk)
        self.assertEqual(self.guest.run(f"ls /sys/block/{device[5:]}/mq | wc -l").strip(), "2")
        self.guest.run(FIO.format(device=device, more=more))


class FioVerifyTest(FioBench):
    def test_mixed_sizes_with_flushes(self):
        for disk in self.bench_disks:
            self.fio(disk, "--rw=randwrite --fsync=24")

    def test_each_block_discarded_then_written(self):
        for disk in self.bench_disks:
            self.fio(disk, "--rw=randtrimwrite")

    def test_discard_and_write_zeroes_clear_their_range_only(self):
        for disk in self.bench_disks:
            device = self.guest.device(disk)
            queue = f"/sys/block/{device[5:]}/queue"
            for limit in ("discard_max_bytes", "write_zeroes_max_bytes"):
                self.assertGreater(int(self.guest.run(f"cat {queue}/{limit}")), 0, f"{disk} {limit}")
            self.guest.run(f"head -c {8 * MIB} /dev/urandom >/run/data && dd if=/run/data of={device} bs=1M 2>/dev/null")
            self.guest.run(f"/usr/sbin/blkdiscard -o {MIB} -l {2 * MIB} {device}")
            self.guest.run(f"/usr/sbin/blkdiscard -z -o {5 * MIB} -l {MIB} {device}")
            self.guest.run("sync; echo 3 >/proc/sys/vm/drop_caches")
            for first, count, expected in ((0, 1, "/run/data"), (1, 2, "/dev/zero"), (3, 2, "/run/data"),
                                           (5, 1, "/dev/zero"), (6, 2, "/run/data")):
                skip = first if expected == "/run/data" else 0
                self.guest.run(f"dd if={device} of=/run/found bs=1M skip={first} count={count} 2>/dev/null; "
                               f"dd if={expected} of=/run/expected bs=1M skip={skip} count={count} 2>/dev/null; "
                               "cmp /run/found /run/expected")


class PackedFioVerifyTest(FioBench):
    PACKED = True

    def test_flushes_and_discards_over_packed_rings(self):
        for disk in self.bench_disks:
            features = self.guest.run(f"cat /sys/block/{self.guest.device(disk)[5:]}/device/features").strip()
            self.assertEqual(features[34], "1", "VIRTIO_F_RING_PACKED was not negotiated")
            self.fio(disk, "--rw=randwrite --fsync=24" if disk == "file" else "--rw=randtrimwrite")


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""fio in the guest finds what it wrote on SCSI disks, over a reboot and over an engine that is killed; with split and
with packed rings."""

import unittest

from cleat_guest import BenchTest
from cleat_guest.verified_load import VerifiedLoad

FIO = ("fio --name=verify --filename={device} --direct=1 --ioengine=libaio --iodepth=16 --numjobs=2 "
       "--cpus_allowed=0-1 --cpus_allowed_policy=split --size=32M --offset_increment=32M --io_size=12M "
       "--bsrange={block}-128k --blockalign={block} --randrepeat=1 --randseed=7 --fsync=32 --rw=randwrite "
       "--verify=crc32c --verify_fatal=1 --do_verify=1 --output=/run/fio.out {more} || {{ cat /run/fio.out; false; }}")
DISKS = {"file": 512, "large": 4096}


class ScsiFioTest(BenchTest):
    def start(self, packed):
        self.cleat = self.bench.cleat(reactors=2)
        socket = self.bench.path("vm.sock")
        self.cleat.create_controller("vm", socket, queues=2, kind="scsi")
        self.cleat.create_file_disk("file", "64M", self.bench.path("disk.img"))
        self.cleat.create_memory_disk("large", "64M", "--block", "4096")
        for disk in DISKS:
            self.cleat.attach_scsi(disk, "vm")
        self.guest = self.bench.guest(scsi={"vm": socket}, queues=2, packed=packed, tools="fio").wait_ready()

    def fio(self, disk, more=""):
        device = self.guest.scsi_device("vm", list(DISKS).index(disk))
        self.guest.run(FIO.format(device=device, block=DISKS[disk], more=more))

    def test_split_rings_reboot_and_another_engine(self):
        self.start(packed=False)
        self.fio("file")
        self.guest.reboot()
        self.fio("file", "--verify_only")
        self.fio("large")
        load = VerifiedLoad(self.guest, self.guest.scsi_device("vm", 0), name="load", seed=1, depth=16, size="32M",
                            io_size="12M", sizes="512-128k", jobs=2)
        load.wait_begun()
        self.cleat.restart_engine()
        load.wait()

    def test_packed_rings(self):
        self.start(packed=True)
        for disk in DISKS:
            self.fio(disk)


if __name__ == "__main__":
    unittest.main()

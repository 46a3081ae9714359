# SPDX-License-Identifier: Apache-2.0
"""sg3-utils, sdparm, blkdiscard and lsblk in a guest, on SCSI disks of 512 and 4096-byte blocks and a read-only one."""

import re
import unittest

from cleat_guest import BenchTest

MIB = 1 << 20
SIZE = 64 * MIB
WWN = "0x5000c500a1b2c3d4"
# sg3-utils' exit statuses.
ILLEGAL_REQUEST, DATA_PROTECT, INVALID_OPCODE, MISCOMPARE, LBA_OUT_OF_RANGE = 5, 7, 9, 14, 22


class ScsiCommandsTest(BenchTest):
    def setUp(self):
        cleat = self.bench.cleat()
        socket = self.bench.path("vm.sock")
        cleat.create_controller("vm", socket, kind="scsi")
        cleat.create_file_disk("small", "64M", self.bench.path("disk.img"), "--serial", "serial-1", "--wwn", WWN)
        cleat.create_memory_disk("large", "64M", "--block", "4096")
        cleat.create_memory_disk("fixed", "64M")
        targets = {"small": cleat.attach_scsi("small", "vm"), "large": cleat.attach_scsi("large", "vm"),
                   "fixed": cleat.attach_scsi("fixed", "vm", "--read-only")}
        self.guest = self.bench.guest(scsi={"vm": socket}, tools="scsi").wait_ready()
        self.devices = {disk: self.guest.scsi_device("vm", target) for disk, target in targets.items()}

    def test_everything_sg3_utils_ask(self):
        # One guest for all: booting takes longer than what is tried.
        for disk, block in (("small", 512), ("large", 4096)):
            self.device, self.block = self.devices[disk], block
            self.guest.run(f"tr '\\0' 'A' </dev/zero | head -c {block} >/run/a; "
                           f"tr '\\0' 'B' </dev/zero | head -c {block} >/run/b; head -c {block} /dev/zero >/run/zero")
            for step in (self.identity, self.limits, self.capacity, self.opcodes, self.modes, self.simple_commands,
                         self.reservations, self.verify, self.write_same, self.compare_and_write, self.unmap, self.reset,
                         self.block_device_ioctls, self.listed_by_lsblk):
                with self.subTest(disk=disk, step=step.__name__):
                    step()
        self.device, self.block = self.devices["fixed"], 512
        self.guest.run("head -c 512 /dev/zero >/run/a; head -c 512 /dev/zero >/run/zero")
        with self.subTest(disk="fixed"):
            self.read_only()

    def sg(self, command, *words, status=0):
        """The command's output, with the device's name added to it; it ends with this status and says these words."""
        got, output = self.guest.execute(f"{command} {self.device}")
        self.assertEqual(got, status, f"{command}: {output}")
        for word in words:
            self.assertIn(word, output, command)
        return output

    def expect_block(self, number, pattern):
        """Block `number` holds what is in the file, read past the guest's cache."""
        self.guest.run(f"dd if={self.device} of=/run/got bs={self.block} skip={number} count=1 iflag=direct 2>/dev/null "
                       f"&& cmp /run/got /run/{pattern}")

    def put_block(self, number, pattern):
        self.guest.run(f"dd if=/run/{pattern} of={self.device} bs={self.block} seek={number} count=1 oflag=direct "
                       "2>/dev/null")

    def identity(self):
        self.sg("sg_inq", "PDT=0", "CmdQue=1", "CLEAT", "Peripheral device type: disk")
        self.sg("sg_vpd -p 0x00", "Unit serial number", "Device identification", "Block limits",
                "Block device characteristics", "Logical block provisioning")
        self.sg("sg_luns", "1 lun entry", "0000000000000000")
        names = self.sg("sg_vpd -p 0x83", "NAA")
        if self.block == 512:
            self.assertIn(WWN, names)
            self.sg("sg_vpd -p 0x80", "serial-1")
        else:
            self.assertIn("0x3", names)  # locally assigned, from the disk's id
            self.sg("sg_vpd -p 0x80", "large")
        self.assertEqual(self.guest.status(f"sg_raw -r 252 {self.device} 12 01 c7 00 fc 00"), ILLEGAL_REQUEST)

    def limits(self):
        limits = self.sg("sg_vpd -p 0xb0", "Maximum compare and write length", "Maximum unmap LBA count")
        self.assertNotIn("Command not implemented", limits)
        self.sg("sg_vpd -p 0xb1", "Non-rotating medium")
        provisioning = self.sg("sg_vpd -p 0xb2", "thin provisioned")
        for field in ("LBPU", "LBPWS", "LBPWS10"):
            self.assertRegex(provisioning, rf"\b{field}(\): |=)1\b")  # as sg3_utils 1.46 and 1.48 say it

    def capacity(self):
        blocks = SIZE // self.block
        words = (f"Last LBA={blocks - 1} ", f"Number of logical blocks={blocks}", f"block length={self.block} ")
        self.sg("sg_readcap", *words)
        self.sg("sg_readcap --16", *words, "lbpme=1")
        self.sg("sg_turs")

    def opcodes(self):
        self.sg("sg_opcodes", "Inquiry", "Read(6)", "Write(12)", "Read(16)", "Compare and write", "Unmap", "Write same(16)",
                "Synchronize cache(16)", "Verify(10)", "Read capacity(16)", "Report luns")
        self.sg("sg_opcodes --opcode=0x89", "Compare and write")
        self.sg("sg_opcodes --opcode=0xf7", "NOT supported")

    def modes(self):
        self.sg("sg_modes -p 0x08", "Caching")
        self.sg("sg_modes -6 -p 0x0a", "Control")
        self.assertIn("WP=0", self.sg("sg_modes -a", "DpoFua=1"))
        # There are no saved values to be shown, which sdparm mentions in its exit status.
        cache = re.search(r"WCE +([01]) +\[cha: n", self.sg("sdparm --get=WCE", status=ILLEGAL_REQUEST))
        self.assertIsNotNone(cache, "the write cache is there or not, nothing to be changed")
        self.sg(f"sdparm --quiet --set=WCE={1 - int(cache[1])}", status=ILLEGAL_REQUEST)
        for value in (1, 0):
            self.sg(f"sdparm --quiet --set=D_SENSE={value}")
            self.assertRegex(self.sg("sdparm --get=D_SENSE", status=ILLEGAL_REQUEST), f"D_SENSE +{value} ")
        self.sg("sg_modes -p 0x1d", status=ILLEGAL_REQUEST)

    def simple_commands(self):
        self.sg("sg_requests")
        self.sg("sg_sync")
        self.sg("sg_sync --16")
        self.sg("sg_start --start")
        self.sg("sg_senddiag --test")
        self.sg("sg_senddiag --selftest=1", status=ILLEGAL_REQUEST)
        # FORMAT UNIT is refused, and nothing is lost.
        self.assertEqual(self.guest.status(f"sg_raw {self.device} 04 00 00 00 00 00"), INVALID_OPCODE)
        # PRE-FETCH, 10 and 16 bytes: the blocks fit into the cache, or may not; both are good answers.
        for cdb in ("34 00 00 00 00 00 00 00 08 00", "90 00 00 00 00 00 00 00 00 00 00 00 00 08 00 00"):
            status, output = self.guest.execute(f"sg_raw {self.device} {cdb}")
            self.assertRegex(output, "SCSI Status: (Good|Condition Met)", status)
        # Either done or refused as a field or a command that isn't there.
        self.assertIn(self.guest.status(f"sg_get_lba_status --lba=0 {self.device}"), (0, ILLEGAL_REQUEST, INVALID_OPCODE))
        # A vendor's command.
        self.assertEqual(self.guest.status(f"sg_raw {self.device} f7 00 00 00 00 00"), INVALID_OPCODE)

    def reservations(self):
        self.sg("sg_persist --in -k", status=INVALID_OPCODE)
        self.sg("sg_persist --out --register --param-sark=1", status=INVALID_OPCODE)

    def verify(self):
        self.put_block(5, "a")
        for form in ("", "--16"):
            self.sg(f"sg_verify {form} --lba=0 --count=64")
            self.sg(f"sg_verify {form} --lba=5 --count=1 --ndo={self.block} --in=/run/a")
            self.sg(f"sg_verify {form} --quiet --lba=5 --count=1 --ndo={self.block} --in=/run/b", status=MISCOMPARE)
        self.sg(f"sg_verify --16 --lba={SIZE // self.block} --count=1", status=LBA_OUT_OF_RANGE)
        self.sg(f"sg_write_verify --lba=6 --num=1 --ilen={self.block} --in=/run/b")
        self.expect_block(6, "b")

    def write_same(self):
        length = f"--xferlen={self.block}"
        self.sg(f"sg_write_same --10 --in=/run/a --lba=16 --num=8 {length}")
        self.expect_block(16, "a")
        self.expect_block(23, "a")
        self.expect_block(24, "zero")
        self.sg(f"sg_write_same --16 --in=/run/b --lba=17 --num=2 {length}")
        self.expect_block(16, "a")
        self.expect_block(18, "b")
        self.sg("sg_write_same --16 --ndob --lba=18 --num=1")
        self.expect_block(17, "b")
        self.expect_block(18, "zero")
        self.sg(f"sg_write_same --16 --unmap --in=/run/zero --lba=20 --num=4 {length}")
        self.expect_block(19, "a")
        self.expect_block(20, "zero")

    def compare_and_write(self):
        self.put_block(40, "a")
        command = f"sg_compare_and_write --quiet --lba=40 --num=1 --xferlen={2 * self.block}"
        self.sg(f"{command} --inc=/run/a --inw=/run/b")
        self.expect_block(40, "b")
        self.sg(f"{command} --inc=/run/a --inw=/run/zero", status=MISCOMPARE)
        self.expect_block(40, "b")

    def unmap(self):
        granularity = 4096 // self.block
        self.guest.run(f"for n in $(seq 0 {4 * granularity - 1}); do cat /run/a; done | "
                       f"dd of={self.device} bs=4096 seek=64 count=4 oflag=direct iflag=fullblock 2>/dev/null")
        first = 64 * granularity
        self.sg(f"sg_unmap --force --lba={first + granularity} --num={granularity}")
        self.expect_block(first, "a")
        self.expect_block(first + 2 * granularity, "a")
        self.expect_block(first + 3 * granularity, "a")
        self.sg(f"sg_unmap --force --lba={SIZE // self.block} --num=1", status=LBA_OUT_OF_RANGE)

    def reset(self):
        self.sg("sg_reset --device")
        # A reset is told once, by a unit attention that sg_turs takes.
        self.guest.execute(f"sg_turs {self.device}")
        self.sg("sg_turs")

    def block_device_ioctls(self):
        self.guest.run(f"head -c {8 * MIB} /dev/urandom >/run/data && dd if=/run/data of={self.device} bs=1M 2>/dev/null")
        self.guest.run(f"/usr/sbin/blkdiscard -o {MIB} -l {2 * MIB} {self.device}")
        self.guest.run(f"/usr/sbin/blkdiscard -z -o {5 * MIB} -l {MIB} {self.device}")
        self.guest.run("sync; echo 3 >/proc/sys/vm/drop_caches")
        for first, count, expected in ((0, 1, "/run/data"), (3, 2, "/run/data"), (5, 1, "/dev/zero"),
                                       (6, 2, "/run/data")):
            skip = first if expected == "/run/data" else 0
            self.guest.run(f"dd if={self.device} of=/run/found bs=1M skip={first} count={count} 2>/dev/null; "
                           f"dd if={expected} of=/run/expected bs=1M skip={skip} count={count} 2>/dev/null; "
                           "cmp /run/found /run/expected")

    def listed_by_lsblk(self):
        columns = "SIZE,LOG-SEC,PHY-SEC,RO,ROTA,TYPE,VENDOR,DISC-GRAN"
        line = self.guest.run(f"lsblk -dnb -o {columns} {self.device}").split()
        self.assertEqual(line[:7], [str(SIZE), str(self.block), "4096", "0", "0", "disk", "CLEAT"])
        self.assertGreater(int(line[7]), 0)

    def read_only(self):
        self.assertEqual(self.guest.run(f"cat /sys/block/{self.device[5:]}/ro").strip(), "1")
        self.sg("sg_modes -a", "WP=1")
        self.expect_block(0, "zero")
        # Past the guest's own checks.
        self.device = f"/dev/{self.guest.run(f'ls /sys/block/{self.device[5:]}/device/scsi_generic').strip()}"
        self.sg("sg_write_same --10 --in=/run/a --lba=16 --num=8 --xferlen=512", status=DATA_PROTECT)
        self.sg("sg_compare_and_write --lba=0 --num=1 --xferlen=1024 --inc=/run/a --inw=/run/a", status=DATA_PROTECT)
        self.sg("sg_unmap --force --lba=0 --num=8", status=DATA_PROTECT)
        # WRITE (10).
        self.assertEqual(self.guest.status(f"sg_raw -s 512 -i /run/a {self.device} 2a 00 00 00 00 00 00 00 01 00"),
                         DATA_PROTECT)


if __name__ == "__main__":
    unittest.main()

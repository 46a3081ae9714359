# SPDX-License-Identifier: Apache-2.0
"""NVMe drives that fail under verified loads: pulled out and put back, silent, without a cure for writes, with a bad block. Each as a disk
by the drive's commands, as one by its block device, and as a pool. One boot for all."""

import os
import time
import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.nvme_host import LOAD, Load, NvmeHost

DRIVE_BYTES = 512 << 20
EXTENT_BYTES = 64 << 20
DISK_BYTES = 32 << 20
TIMEOUT_MS = 2000  # after which the kernel gives a command up; 30 s otherwise
BAD_BYTES = 2 << 20  # of the pool's disk, in the middle of what is looked at when an extent was erased
WRITES_FAIL_AT = DRIVE_BYTES - 1  # who writes this byte alone has all writes fail from then on
LARGE = "logical_block_size=4096,physical_block_size=4096"
# A disk and the drive that it lies on. "block" has smaller blocks than its drive, and so gets no commands.
WHOLE = {"whole": "one", "block": "large", "neighbour": "two"}
KINDS = ("whole", "block", "pooled")
SCSI = "--type scsi --targets 0 "  # how the guest of "whole" has it; the others are virtio-blk's
NO_DRIVE = "sense key 4, additional sense 68/0"  # HARDWARE ERROR, INTERNAL TARGET FAILURE (44h/00h)
POOL_DRIVE = "pool"


class NvmeFaults(SharedBenchTest):
    """The guest, and what every test begins with: a disk of each kind, loads on them, and one on a drive that nothing happens to."""

    @classmethod
    def set_up_bench(cls):
        path = cls.bench.path
        for serial in ("one", "two", "large", POOL_DRIVE, "bad"):
            with open(path(serial), "wb") as image:
                image.truncate(DRIVE_BYTES)
        with open(path("bad.conf"), "w", encoding="utf-8") as rules:
            rules.write(f'[inject-error]\nevent = "read_aio"\niotype = "read"\nerrno = "5"\nsector = "{(EXTENT_BYTES + BAD_BYTES) // 512}"\nonce = "off"\n'
                        '[set-state]\nstate = "1"\nevent = "pwritev_rmw_head"\nnew_state = "2"\n'
                        '[inject-error]\nevent = "write_aio"\nstate = "2"\niotype = "write"\nerrno = "5"\nonce = "off"\n')
        drives = {serial: {"drive": f"driver=raw,file.driver=file,file.filename={path(serial)}"} for serial in ("one", "two", POOL_DRIVE)}
        drives["large"] = {"drive": f"driver=raw,file.driver=file,file.filename={path('large')}", "device": LARGE}
        drives["bad"] = {"drive": f"driver=raw,file.driver=blkdebug,file.align=512,file.config={path('bad.conf')},"
                                  f"file.image.driver=file,file.image.filename={path('bad')}"}
        cls.host = NvmeHost(cls.bench, drives, ports=True)
        cls.guest = cls.host.guest
        cls.ctl = cls.host.ctl
        cls.host.start_cleatd()
        cls.host.start_engine()
        for disk, serial in WHOLE.items():
            cls.ctl("disk", "create", disk, "--size", str(DISK_BYTES), "--file", cls.host.by_id(serial))
        cls.make_pool("p", POOL_DRIVE)
        cls.ctl("disk", "create", "pooled", "--size", str(DISK_BYTES), "--pool", "p")
        for disk in (*WHOLE, "pooled"):
            cls.serve(disk)

    @classmethod
    def make_pool(cls, pool, serial):
        cls.ctl("pool", "create", pool, "--device", cls.host.by_id(serial), "--extent-size", "64M", "--wait=120")
        cls.wait_pool(pool, lambda status: int(status["to_erase_bytes"]) == 0)

    @classmethod
    def serve(cls, disk):
        cls.ctl("controller", "create", disk, "--socket", f"/run/{disk}.sock", "--type", "scsi" if disk == "whole" else "blk")
        cls.ctl("attach", disk, disk)

    @classmethod
    def wait_pool(cls, pool, there):
        return cls.host.wait_for(f"pool {pool}", lambda: cls.ctl("pool", "get", pool)["status"], there)

    def attachment(self, disk):
        return self.ctl("attachment", "get", disk, disk)["status"]

    def wait_attachment(self, disk, there):
        return self.host.wait_for(f"the attachment of {disk}", lambda: self.attachment(disk), there)

    def wait_storage(self, disk, state):
        return self.wait_attachment(disk, lambda status: status["storage_state"] == f"STORAGE_STATE_{state}")

    def begin_loads(self, *disks):
        loads = {disk: Load(self.host, disk, (SCSI if disk == "whole" else "") + LOAD) for disk in disks}
        for disk in disks:
            self.ctl("wait", f"controllers/{disk}", "--for", "in-use", "--timeout", "200")
        return loads

    def check_well(self, load):
        """Also that it went on to the end: only a request that was made last of all is checked against later ones."""
        result = load.end_well()
        self.assertEqual(result["reconnects"], 0, "the engine has ended")
        return result

    # ---- Tests

    def test_1_what_is_pulled_out_fails_at_once_and_its_neighbours_go_on(self):
        drives = {"whole": "one", "block": "large", "pooled": POOL_DRIVE}
        loads = self.begin_loads(*KINDS, "neighbour")
        for serial in drives.values():
            self.guest.pull_nvme(serial)
        for disk in KINDS:
            # A block device's first failure may be one that was under way, and has another reason.
            status = self.wait_attachment(disk, lambda status: "No such device; the drive was pulled out" in status["message"])
            self.assertEqual(status["storage_state"], "STORAGE_STATE_FAILING")
            result = loads[disk].end()
            self.assertGreater(result["errors"], 0)
            self.assertEqual(result["faults"], 0, result)
        # What was under way when the drive went may have another reason than what comes now.
        late = Load(self.host, "whole", SCSI + "--mix read=50,write=50 --depth 1 --requests 20").wait()
        self.assertGreater(late["errors"], 0)
        self.assertIn(NO_DRIVE, late["first_error"])
        failed = self.wait_pool("p", lambda status: status["state"] == "POOL_STATE_FAILED")
        self.assertIn(self.host.by_id(POOL_DRIVE), failed["message"])
        for serial in drives.values():
            self.guest.plug_nvme(serial)
            self.host.link(serial)
        self.wait_pool("p", lambda status: status["state"] == "POOL_STATE_READY")
        for disk in KINDS:
            self.ctl("detach", disk, "--wait=120")
            self.ctl("attach", disk, disk, "--wait=120")
            self.assertEqual(self.attachment(disk)["storage_state"], "STORAGE_STATE_OK")
        again = self.begin_loads(*KINDS)
        time.sleep(1)
        for load in (*again.values(), loads["neighbour"]):
            self.check_well(load)

    def test_2_what_does_not_answer_is_shown_and_nothing_is_lost(self):
        """The kernel aborts what has no answer, then resets the drive, which gets the same again."""
        drives = {"whole": "one", "pooled": POOL_DRIVE}
        self.guest.run(f"for queue in /sys/block/nvme*/queue; do echo {TIMEOUT_MS} >$queue/io_timeout; done")
        loads = self.begin_loads(*drives, "neighbour")
        for serial in drives.values():
            self.guest.throttle_nvme(serial, 1)
        for disk in drives:
            self.assertIn("storage does not answer", self.wait_storage(disk, "NOT_ANSWERING")["message"])
        silent = self.wait_pool("p", lambda status: status["state"] == "POOL_STATE_NOT_ANSWERING")
        self.assertIn("does not answer", silent["message"])
        for serial in drives.values():
            self.guest.throttle_nvme(serial, 0)
        for disk in drives:
            self.wait_storage(disk, "OK")
        self.wait_pool("p", lambda status: status["state"] == "POOL_STATE_READY")
        for load in loads.values():
            self.check_well(load)
        self.assertIn("timeout, aborting", self.guest.run("dmesg"))

    def test_3_a_bad_block_of_a_pools_drive_fails_its_request_alone(self):
        self.make_pool("q", "bad")
        self.ctl("disk", "create", "bad", "--size", str(DISK_BYTES), "--pool", "q")
        self.serve("bad")
        load = Load(self.host, "bad", "--mix read=100 --pattern sequential --depth 1 --rate 100 --block-size 1M")
        message = self.wait_storage("bad", "FAILING")["message"]
        self.assertRegex(message, rf"the last a read at byte {BAD_BYTES}: NVMe status Unrecovered Read Error \(2/81h\)")
        result = load.end()
        self.assertEqual(result["errors"], -(-result["requests"] // (DISK_BYTES >> 20)), "one of each round")
        # The drive takes no writes any more.
        self.guest.monitor(f'qemu-io -d nvme-bad "write {WRITES_FAIL_AT} 1"')
        writes = Load(self.host, "bad", "--mix write=100 --depth 1 --rate 20")
        self.wait_attachment("bad", lambda status: "Write Fault (2/80h)" in status["message"])
        self.assertGreater(writes.end()["errors"], 0)
        reads = Load(self.host, "bad", "--mix read=100 --pattern sequential --depth 1 --block-size 4k --requests 100")
        result = reads.wait()
        self.assertEqual(result["errors"], 0)
        self.assertGreater(result["requests"], 0)


if __name__ == "__main__":
    unittest.main()

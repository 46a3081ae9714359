# SPDX-License-Identifier: Apache-2.0
"""Another disk at a virtio-blk controller under a running guest, whose driver and page cache know only the first."""

import time
import unittest

from cleat_guest import SharedBenchTest

SECONDS_MAX = 120
READY = "CONTROLLER_STATE_READY"
SIZE = 64 << 20
WRITES = "until [ -e /run/stop ]; do dd if=/run/data of={} bs=4k oflag=direct conv=fsync || exit 1; done"


class SwapTest(SharedBenchTest):
    @classmethod
    def set_up_bench(cls):
        cls.cleat = cls.bench.cleat()
        for disk in ("first", "second"):
            cls.cleat.create_file_disk(disk, str(SIZE), cls.bench.path(f"{disk}.img"))
        cls.cleat.create_controller("vm", cls.bench.path("vm.sock"))
        cls.guest = cls.bench.guest(disks={"disk": cls.bench.path("vm.sock")})
        cls.cleat.ctl("attach", "first", "vm")
        cls.guest.wait_ready()

    def status(self):
        return self.cleat.ctl("controller", "get", "vm")["status"]

    def wait_status(self, what, there):
        deadline = time.monotonic() + SECONDS_MAX
        while not there(status := self.status()):
            self.assertLess(time.monotonic(), deadline, f"{what}; last: {status}")
            time.sleep(0.05)
        return status

    def swap(self, to):
        self.cleat.ctl("detach", "vm", "--wait=120")
        self.cleat.ctl("attach", to, "vm")

    def assert_untouched(self, disk):
        with open(self.bench.path(f"{disk}.img"), "rb") as image:
            self.assertFalse(any(image.read()), f"{disk} was written to")

    def test_the_second_disk_gets_nothing_that_was_meant_for_the_first(self):
        device = self.guest.device("disk")
        self.guest.run("head -c 1048576 /dev/urandom >/run/data")
        self.guest.run(f"dd if=/run/data of={device} bs=64k seek=64 2>/dev/null")  # stays in the page cache for a while
        job = self.guest.background(WRITES.format(device))

        self.swap(to="second")
        status = self.wait_status("the rings wait", lambda status: "disks/first" in status.get("message", ""))
        self.assertNotEqual(status["state"], READY)
        for how in ("detach disks/second", "attach disks/first again", "reset the VM"):
            self.assertIn(how, status["message"])

        # Whoever dies meanwhile: no proof of anything.
        self.cleat.restart_engine()
        self.cleat.restart_cleatd()
        self.wait_status("the rings wait", lambda status: "disks/first" in status.get("message", ""))
        self.guest.qmp.command("stop")
        self.guest.qmp.command("cont")
        time.sleep(1)
        self.assertFalse(job.done())
        self.assert_untouched("second")

        # The first one again: the guest goes on, and never had an error.
        self.swap(to="first")
        self.wait_status("the first is served again", lambda status: status["state"] == READY)
        self.guest.run("touch /run/stop")
        job.wait()
        self.guest.run(f"sync; echo 3 >/proc/sys/vm/drop_caches; cmp -n 1048576 /run/data {device}; "
                       f"dd if={device} bs=64k skip=64 count=16 2>/dev/null | cmp /run/data")

        # A reset is the proof: the guest knows nothing of the first any more.
        self.guest.run("rm /run/stop")
        self.guest.background(WRITES.format(device))
        self.swap(to="second")
        self.wait_status("the rings wait", lambda status: "disks/first" in status.get("message", ""))
        self.guest.reset()
        self.wait_status("the second is served", lambda status: status["state"] == READY)
        self.assert_untouched("second")
        device = self.guest.device("disk")
        self.guest.run(f"head -c 1048576 /dev/urandom >/run/data; dd if=/run/data of={device} bs=64k conv=fsync 2>/dev/null")
        with open(self.bench.path("second.img"), "rb") as image:
            self.assertTrue(any(image.read(1 << 20)))
        self.assertEqual(self.status()["last_disk"], "disks/second")


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Those of blktests' tests for NVMe that can be had of a target that others have set up, on a disk that Cleat exports: `PEER_BLKTESTS` names the
folder of its checkout."""

import os
import re
import unittest

from cleat_guest import BenchTest
from cleat_guest.export import Export
from cleat_guest.nvmf_guest import HOST_NQN, NvmfGuest, free_ports
from cleat_guest.bare_host import BareHost, new_host_id

NQN = "nqn.2026-11.example:blktests"
KEEP_ALIVE_MS = 60000
DISK = "64M"  # what the tests are told that it is
TESTS = [f"nvme/{number}" for number in ("004", "008", "010", "014", "018", "019", "021", "022", "025", "026", "027", "028")]
SECONDS = 900  # for what can only hang
# What busybox has is not enough for its scripts.
PROGRAMS = ("bash", "gawk", "column", "getconf", "grep", "sed", "find", "cat", "chmod", "cp", "cut", "date", "dd", "diff", "dirname", "basename", "env", "expr", "getopt", "head",
            "ls", "blockdev", "mkdir", "mktemp", "mount", "mv", "readlink", "realpath", "rm", "rmdir", "seq", "sleep", "sort", "stat", "tail", "tee",
            "timeout", "touch", "tr", "truncate", "umount", "uname", "uniq", "wc", "xargs", "dmesg", "tput", "lsblk", "findmnt", "logger", "blkdiscard")
# The target is there already: it says where.
CONTROL = """#!/bin/bash
case "$1 $2" in
  "config --show-blkdev-type") echo device ;;
  "config --show-trtype") echo tcp ;;
  "config --show-hostnqn") cat /etc/nvme/hostnqn ;;
  "config --show-hostid") cat /etc/nvme/hostid ;;
  "config --show-host-traddr") echo 10.0.2.15 ;;
  "config --show-traddr") echo {address} ;;
  "config --show-trsvid") echo {port} ;;
  "config --show-subsys-uuid") echo {uuid} ;;
  "config --show-subsysnqn") echo {nqn} ;;
esac
"""
SETTINGS = """NVMET_TRTYPES=tcp
NVMET_BLKDEV_TYPES=device
NVME_IMG_SIZE={disk}
NVME_NUM_ITER=3
export NVME_TARGET_CONTROL=/control
"""


class BlktestsTest(BenchTest):

    def test_they_pass(self):
        folder = os.environ.get("PEER_BLKTESTS")
        if not folder:
            self.skipTest("PEER_BLKTESTS names no folder with blktests")
        cleat = self.bench.cleat()
        cleat.create_memory_disk("one", DISK)
        port = free_ports(1)[0]
        Export(cleat, "exported", nqn=NQN, ports=[port], hosts=[HOST_NQN]).attach("one")
        with BareHost(f"127.0.0.1:{port}", NQN, new_host_id(), HOST_NQN, keep_alive_ms=KEEP_ALIVE_MS) as somebody:
            uuid = somebody.namespace_uuid()
        host = NvmfGuest(self.bench, NQN, [port], programs=PROGRAMS, files={
            "/blktests": folder,
            "/control": self.script("control", CONTROL.format(address="10.0.2.2", port=port, uuid=uuid, nqn=NQN)),
            "/blktests/config": self.script("config", SETTINGS.format(disk=DISK)),
            # What they load is loaded, nothing waits for udev, and the disk needs no device behind it.
            **{f"/stubs/{name}": self.script(name, "#!/bin/bash\n") for name in ("modprobe", "udevadm", "losetup")}})
        guest = host.wait_ready().guest
        guest.run("ln -sf /bin/gawk /bin/awk; mount -t configfs none /sys/kernel/config; mkdir -p /tmp; [ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd")
        _, output = guest.execute(f"cd /blktests && PATH=/stubs:$PATH HOME=/tmp bash ./check {' '.join(TESTS)} 2>&1; "
                                  "for f in $(find results -name '*.bad'); do echo $f; head -n 20 $f; done", SECONDS)
        passed = set(re.findall(r"^(nvme/\d+).*\[passed\]", output, re.M))
        self.assertEqual(passed, set(TESTS), output)

    def script(self, name, text):
        path = self.bench.path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path


if __name__ == "__main__":
    unittest.main(verbosity=2)

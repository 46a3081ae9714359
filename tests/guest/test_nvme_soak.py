#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Engines killed and exchanged under verified load on NVMe drives: nvme_soak runs in a guest with Linux 6.12 whose drives QEMU emulates,
and asks this test for what only QEMU can do to a drive. One boot for all.

    CLEAT_SOAK_STEPS=200 CLEAT_SOAK_JSON=soak.json CLEAT_TEST_SEED=N test_nvme_soak.py    kills and upgrades; `make soak` does that
"""

import os
import shutil
import time
import unittest

from cleat_guest import SharedBenchTest
from cleat_guest.programs import pack

DRIVE_BYTES = 512 << 20
BLOCK_BYTES = {"whole": 512, "block": 512, "cached": 4096, "pool": 4096}
SLOW_WRITES = 60  # a second
HELD_WRITES = 4  # at most, of each drive
PROGRAMS = ("cleatd", "cleat-engine")
TEST_DIR = os.path.join(os.environ["CLEAT_BIN_DIR"], "..", "tests")
STEPS = int(os.environ.get("CLEAT_SOAK_STEPS") or 8)
SECONDS = 600 + 60 * STEPS  # for what can only hang
LOOK_SECONDS = 0.1
TELL_SECONDS = 30
BETWEEN_HOLDS_SECONDS = 0.05
ASK = "/run/soak.ask"


class NvmeSoakTest(SharedBenchTest):
    @classmethod
    def set_up_bench(cls):
        run_as = shutil.copy(shutil.which("setpriv"), cls.bench.path("run_as"))
        programs = pack(cls.bench.path("programs.tar"),
                        [os.path.join(cls.bench.bin_dir, name) for name in PROGRAMS] + [os.path.join(TEST_DIR, "nvme_soak"), run_as],
                        {f"/{name}.so": os.path.join(TEST_DIR, f"libcleat_{name}.so") for name in ("no_ofd_lock", "false_erase")})
        drives = {}
        for name, block in BLOCK_BYTES.items():
            with open(cls.bench.path(name), "wb") as image:
                image.truncate(DRIVE_BYTES)
            # QEMU can suspend single requests of a drive that has a blkdebug.
            drives[name] = {"drive": f"driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={cls.bench.path(name)}",
                            "device": f"logical_block_size={block},physical_block_size={block}"}
        # During a reset, what comes for a drive with one controller waits in the kernel.
        cls.guest = cls.bench.guest(tools="nvme", memory_mb=1536, kernel_options="nvme_core.multipath=0", files={"programs": programs},
                                    nvme=drives)
        cls.guest.wait_ready()
        cls.guest.run("tar x -f /dev/vda -C / && mkdir -p /tmp && chmod 1777 /tmp")
        cls.paths = {serial: cls.path_of(serial) for serial in BLOCK_BYTES}
        commands = " ".join(path.replace("nvme", "ng") for serial, path in cls.paths.items() if serial != "block")
        cls.guest.run(f"chown 65534:65534 /dev/nvme*n1 {commands}")

    @classmethod
    def path_of(cls, serial):
        found = cls.guest.run(f"until grep -lx '{serial} *' /sys/class/nvme/nvme*/serial 2>/dev/null; do sleep 0.05; done")
        number = os.path.basename(os.path.dirname(found.strip())).removeprefix("nvme")
        cls.guest.run(f"until [ -b /dev/nvme{number}n1 ] && [ -c /dev/ng{number}n1 ]; do sleep 0.05; done")
        return f"/dev/nvme{number}n1"

    # What the program asks for

    def monitor(self, line):
        return self.guest.qmp.command("human-monitor-command", command_line=line)

    def set_writes_a_second(self, writes):
        for name in BLOCK_BYTES:
            self.assertEqual(self.monitor(f"block_set_io_throttle drive-{name} 0 0 0 0 0 {writes}"), "")

    def debug(self, drive, words):
        self.monitor(f'qemu-io drive-{drive} "{words}"')

    def hold(self):
        """Each breakpoint suspends the next write: the first one that comes after it, so they are set one after another."""
        for at in range(HELD_WRITES):
            for drive in BLOCK_BYTES:
                self.debug(drive, f"break write_aio held{at}")
            time.sleep(BETWEEN_HOLDS_SECONDS)

    def release(self):
        for at in range(HELD_WRITES):
            for drive in BLOCK_BYTES:
                self.debug(drive, f"remove_break held{at}")

    def answer(self, what):
        if what == "slow":
            self.set_writes_a_second(SLOW_WRITES)
        elif what == "fast":
            self.set_writes_a_second(0)
        elif what == "hold":
            self.hold()
        elif what == "release":
            self.release()
        else:
            self.fail(f"nvme_soak asks for {what!r}")

    def attend(self, job):
        """Does what is asked for until the program has ended."""
        self.guest.run(f"rm -f {ASK} {ASK}.done")
        done, deadline, tell = "", time.monotonic() + SECONDS, time.monotonic() + TELL_SECONDS
        while not job.done():
            self.assertLess(time.monotonic(), deadline, "nvme_soak does not end")
            if time.monotonic() > tell:
                tell += TELL_SECONDS
                print(self.guest.run("tail -n 1 /run/soak.log").strip(), flush=True)
            asked = self.guest.run(f"cat {ASK} 2>/dev/null || true").split()
            if asked and asked[0] != done:
                done = asked[0]
                self.answer(asked[1])
                self.guest.run(f"echo {done} >{ASK}.done")
            time.sleep(LOOK_SECONDS)

    def run_program(self, tests):
        variables = {f"CLEAT_NVME_{name.upper()}": path for name, path in self.paths.items()}
        variables |= {"CLEAT_SOAK_ASK": ASK, "CLEAT_SOAK_STEPS": STEPS, "CLEAT_SOAK_JSON": "/run/soak.json",
                      "CLEAT_TEST_SEED": os.environ.get("CLEAT_TEST_SEED") or 1, "TMPDIR": "/tmp"}
        words = " ".join(f"{name}={value}" for name, value in variables.items())
        job = self.guest.background(f"cd /run && {words} nvme_soak --gtest_filter='{tests}' >/run/soak.log 2>&1")
        try:
            self.attend(job)
        finally:
            output = self.guest.run("cat /run/soak.log")
            with open(os.path.join(self.bench.log_dir, f"{self.id().rsplit('.', 1)[-1]}.log"), "w", encoding="utf-8") as log:
                log.write(output)
        print("\n".join(line for line in output.splitlines() if " info " not in line), flush=True)
        status = self.guest.run(f"cat {job.path}.status").strip()
        self.assertEqual(status, "0", f"nvme_soak found something: see {self.bench.log_dir}")
        self.assertIn("[  PASSED  ]", output)

    def test_1_what_each_control_breaks_is_found(self):
        self.run_program("*Control*")

    def test_2_kills_and_upgrades_under_load_find_nothing(self):
        self.run_program("NvmeSoak.*")
        counts = self.guest.run("cat /run/soak.json")
        if path := os.environ.get("CLEAT_SOAK_JSON"):
            with open(path, "w", encoding="utf-8") as file:
                file.write(counts)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""What is tried on the drive, and the page that says what came of it."""

import fcntl
import os
import platform
import signal
import subprocess
import time

from nvme_trial.common import MIB, WAIT_SECONDS, Failed
from nvme_trial.identify import features

EXTENT_BYTES_MIN = 64 * MIB
EXTENTS_MAX = 65536
DISK_BYTES = 128 * MIB
DATA_BEGINS = 64 * MIB  # of a pool's drive: docs/local-nvme.md
LABELS_AT = (0, MIB)
KILLS = 3
RUNS = 3  # of each measurement
SPEEDS = {"4 KiB random reads, 32 in flight": "--block-size 4k --depth 32 --mix read=100",
          "4 KiB random writes, 32 in flight": "--block-size 4k --depth 32 --mix write=100",
          "4 KiB random reads, 1 in flight": "--block-size 4k --depth 1 --mix read=100",
          "128 KiB sequential reads, 8 in flight": "--block-size 128k --depth 8 --mix read=100 --pattern sequential"}


class Trial:
    """What is tried, in order, and what came of it."""

    def __init__(self, cleat, drive, seconds):
        self._cleat = cleat
        self._drive = drive
        self._seconds = seconds
        self.checks = []  # (what, "ok" or why not)
        self.paths = {}  # way -> how the engine says that it reaches the drive
        self.speeds = {}  # (what, way) -> rates
        self.notes = []

    def check(self, what, call):
        """Whether it went well; the next one is tried in any case."""
        print(f"  {what} ...", end="", flush=True)
        try:
            note = call()
            self.checks.append((what, "ok"))
            print(" ok" + (f": {note}" if note else ""), flush=True)
            return True
        except (Failed, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            self.checks.append((what, f"FAILED: {error}"))
            print(f" FAILED: {error}", flush=True)
            return False

    def run(self):
        ways = ["commands"] if self._drive.node else []
        if self.check("a pool is made, and extents are erased", self.make_pool):
            for way in (*ways, "block device"):
                self.on_way(way)
            self.check("the drive is kept from others while it is a pool's", self.locks)
            self.check("the pool is deleted, and its label gone from the drive", self.delete_pool)

    def on_way(self, way):
        if self._drive.node:
            self._cleat.let_use(self._drive.node, way == "commands")
        self._cleat.start_engine()
        disk = "d" + way[0]
        if self.check(f"{way}: a disk of the pool is served so", lambda: self.serve(disk, way)):
            self.check(f"{way}: verified writes and reads, the engine killed {KILLS} times", lambda: self.survive(disk))
            self.check(f"{way}: speed", lambda: self.measure(disk, way))
            self.check(f"{way}: a purged disk's bytes are erased on the drive", lambda: self.erase(disk))
        self._cleat.stop_engine()

    def make_pool(self):
        more = ("--extent-size", "64M") if self._drive.bytes <= EXTENT_BYTES_MIN * EXTENTS_MAX else ()
        begun = time.monotonic()
        self._cleat.ctl("pool", "create", "p", "--device", self._drive.path, "--overwrite", *more, f"--wait={WAIT_SECONDS}")
        free = self.wait_free(2 * DISK_BYTES, WAIT_SECONDS * 5)
        took = time.monotonic() - begun
        self.notes.append(f"erasing a new pool: {free / MIB / took:.0f} MiB/s, for half of the time at most")
        return f"{free // MIB} MiB erased after {took:.1f} s"

    def wait_free(self, wanted, seconds):
        until = time.monotonic() + seconds
        while (free := int(self._cleat.ctl("pool", "get", "p")["status"]["free_bytes"])) < wanted:
            if time.monotonic() >= until:
                raise Failed(f"{free // MIB} MiB are erased after {seconds} s: {self._cleat.ctl('pool', 'get', 'p')['status']}")
            time.sleep(0.2)
        return free

    def serve(self, disk, way):
        block = ("--block", "4K") if self._drive.block_bytes == 4096 else ()
        self._cleat.ctl("disk", "create", disk, "--size", str(DISK_BYTES), "--pool", "p", *block)
        self.paths[way] = self._cleat.serve(disk)
        if self.paths[way].startswith("NVMe commands") != (way == "commands"):
            raise Failed(f"it goes by {self.paths[way]}")
        return self.paths[way]

    def survive(self, disk):
        load = self._cleat.begin_load(disk, "--mix read=50,write=50 --depth 16 --verify --wait call --time 3600")
        try:
            self._cleat.ctl("wait", f"controllers/{disk}", "--for", "in-use", "--timeout", str(WAIT_SECONDS))
            for _ in range(KILLS):
                time.sleep(1)
                self._cleat.kill_engine()
                self._cleat.start_engine()
                self._cleat.ctl("wait", f"controllers/{disk}/attachments/{disk}", "--timeout", str(WAIT_SECONDS))
                self._cleat.ctl("wait", f"controllers/{disk}", "--for", "in-use", "--timeout", str(WAIT_SECONDS))
            time.sleep(1)
        finally:
            load.send_signal(signal.SIGINT)
        result = self._cleat.end_load(load)
        if result["errors"] or result["faults"] or not result["verified_blocks"] or not result["reconnects"]:
            raise Failed(f"{result['errors']} errors, {result['faults']} wrong blocks, {result['verified_blocks']} verified, "
                         f"{result['reconnects']} reconnects; {result['first_error']} {result['first_fault']}")
        return f"{result['verified_blocks']} blocks verified, longest request {result['latency_ns']['max'] / 1e6:.0f} ms"

    def measure(self, disk, way):
        for what, options in SPEEDS.items():
            rates = []
            for _ in range(RUNS):
                result = self._cleat.end_load(self._cleat.begin_load(disk, f"{options} --time {self._seconds} --warmup {self._seconds / 4}"))
                if result["errors"]:
                    raise Failed(f"{what}: {result['errors']} errors, the first: {result['first_error']}")
                rates.append(result["iops"])
            self.speeds[(what, way)] = rates

    def erase(self, disk):
        runs = self._cleat.ctl("disk", "get", disk)["spec"]["pool"]["extents"]
        extent_bytes = int(self._cleat.ctl("pool", "get", "p")["spec"]["extent_bytes"])
        extents = [run.get("first", 0) + at for run in runs for at in range(run["count"])]
        if self.all_zero(extents, extent_bytes):
            raise Failed("the drive reads as zeroes where the disk was written to")
        self._cleat.remove(disk)
        until = time.monotonic() + WAIT_SECONDS
        while not self.all_zero(extents, extent_bytes):
            if time.monotonic() >= until:
                raise Failed(f"extents {extents} do not read as zeroes after {WAIT_SECONDS} s")
            time.sleep(0.5)
        return f"extents {extents} read as zeroes"

    def all_zero(self, extents, extent_bytes):
        """Of an extent as much as the disk could have."""
        return not any(self._drive.read(DATA_BEGINS + extent * extent_bytes + at, MIB).strip(b"\0")
                       for extent in extents for at in range(0, min(extent_bytes, DISK_BYTES), MIB))

    def locks(self):
        try:
            os.close(os.open(self._drive.path, os.O_RDONLY | os.O_EXCL))
            raise Failed("another program could claim it (O_EXCL): it could be mounted")
        except OSError:
            pass
        handle = os.open(self._drive.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise Failed("another program could lock it (flock)")
        except BlockingIOError:
            pass
        finally:
            os.close(handle)
        try:
            self._cleat.ctl("disk", "create", "whole", "--size", str(DISK_BYTES), "--file", self._drive.path)
        except Failed as refused:
            if "FILE_TAKEN" in str(refused):
                return
            raise
        raise Failed("cleatd made a disk of all of it")

    def delete_pool(self):
        self._cleat.ctl("pool", "delete", "p", f"--wait={WAIT_SECONDS}")
        until = time.monotonic() + WAIT_SECONDS
        while any(self._drive.read(at, 4096).strip(b"\0") for at in LABELS_AT):
            if time.monotonic() >= until:
                raise Failed(f"a label is still there after {WAIT_SECONDS} s: wipe the drive's first 2 MiB")
            time.sleep(0.1)

    def page(self):
        uname = platform.uname()
        lines = ["", "---- A page worth sending back", f"kernel    {uname.system} {uname.release} {uname.version} {uname.machine}",
                 f"drive     {self._drive.model}, firmware {self._drive.firmware}, {self._drive.bytes / 1e9:.1f} GB in blocks of "
                 f"{self._drive.block_bytes} bytes" + ("" if self._drive.is_nvme else " (not NVMe: block device path only)")]
        lines += [f"          {name} {value}" for name, value in features(self._drive).items()]
        lines += [f"path      {way}: {path}" for way, path in self.paths.items()]
        lines += [f"note      {note}" for note in self.notes]
        lines += [f"check     {what}: {outcome}" for what, outcome in self.checks]
        for what in SPEEDS:
            for way in ("commands", "block device"):
                rates = self.speeds.get((what, way))
                if rates:
                    lines.append(f"speed     {what}, {way}: {sorted(rates)[len(rates) // 2]:.0f} a second ({min(rates):.0f} to {max(rates):.0f}, {len(rates)} runs)")
        return "\n".join(lines)

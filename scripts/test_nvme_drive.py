#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make test-nvme DEVICE=/dev/disk/by-id/...`: tries Cleat on a real drive of this host, as root. DESTROYS all that is on it, and asks
before. cleatd and cleat-engine run from build/bin as a user without privileges, in a folder that is removed at the end; cleat-perf plays the
virtual machine. Ends with a page that is worth sending back: kernel, drive, each check, and speeds with their spread.

Any block device will do; one that is no NVMe namespace is used through the block device alone. Exit status: 0 - all checks went well, 1 - one
has failed, 2 - the drive was refused, or nobody agreed to its loss."""

import argparse
import array
import fcntl
import json
import mmap
import os
import platform
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

USER = 61184  # of the daemons: nobody's
WAIT_SECONDS = 120  # for what can only hang
MIB = 1 << 20
EXTENT_BYTES_MIN = 64 * MIB
EXTENTS_MAX = 65536
DISK_BYTES = 128 * MIB
DRIVE_BYTES_MIN = 512 * MIB
DATA_BEGINS = 64 * MIB  # of a pool's drive: docs/local-nvme.md
LABELS_AT = (0, MIB)
KILLS = 3
RUNS = 3  # of each measurement
SPEEDS = {"4 KiB random reads, 32 in flight": "--block-size 4k --depth 32 --mix read=100",
          "4 KiB random writes, 32 in flight": "--block-size 4k --depth 32 --mix write=100",
          "4 KiB random reads, 1 in flight": "--block-size 4k --depth 1 --mix read=100",
          "128 KiB sequential reads, 8 in flight": "--block-size 128k --depth 8 --mix read=100 --pattern sequential"}


class Refused(Exception):
    """Nothing was done to the drive; the message says why, and what to do."""


class Failed(Exception):
    """A check that did not go well."""


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


# ---- The drive

class Drive:
    """A block device: what it is, who uses it, what is on it."""

    def __init__(self, path):
        self.given = path
        self.path = os.path.realpath(path)
        try:
            self.status = os.stat(self.path)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}: name a drive, best by its link in /dev/disk/by-id") from None
        if not stat.S_ISBLK(self.status.st_mode):
            raise Refused(f"{path} is no block device: name a drive, best by its link in /dev/disk/by-id")
        self.name = os.path.basename(self.path)
        self.sysfs = f"/sys/class/block/{self.name}"
        self.bytes = int(read_text(f"{self.sysfs}/size") or 0) * 512
        self.block_bytes = int(read_text(f"{self.sysfs}/queue/logical_block_size") or 512)
        self.model = read_text(f"{self.sysfs}/device/model") or "no model"
        self.serial = read_text(f"{self.sysfs}/device/serial") or self.name
        self.firmware = read_text(f"{self.sysfs}/device/firmware_rev") or "-"
        self.is_nvme = self.name.startswith("nvme")
        self.node = self.path.replace("/nvme", "/ng", 1) if self.is_nvme else None
        if self.node and not os.path.exists(self.node):
            self.node = None

    def check_unused(self):
        if os.path.exists(f"{self.sysfs}/partition"):
            raise Refused(f"{self.given} is a partition: name a whole drive")
        parts = [name for name in os.listdir(self.sysfs) if os.path.exists(f"{self.sysfs}/{name}/partition")]
        if parts:
            raise Refused(f"{self.given} has partitions ({', '.join(sorted(parts))}): take them away first (wipefs --all), or name another drive")
        number = f"{os.major(self.status.st_rdev)}:{os.minor(self.status.st_rdev)}"
        mounts = [line.split()[4] for line in read_text("/proc/self/mountinfo").splitlines() if line.split()[2] == number]
        if mounts:
            raise Refused(f"{self.given} is mounted on {mounts[0]}: unmount it first, or name another drive")
        if any(os.path.realpath(line.split()[0]) == self.path for line in read_text("/proc/swaps").splitlines()[1:]):
            raise Refused(f"{self.given} is swap: end that first (swapoff), or name another drive")
        holders = os.listdir(f"{self.sysfs}/holders") if os.path.isdir(f"{self.sysfs}/holders") else []
        if holders:
            raise Refused(f"{self.given} is a part of {', '.join(holders)} (LVM, RAID, dm): take it out first, or name another drive")
        try:
            os.close(os.open(self.path, os.O_RDONLY | os.O_EXCL))
        except OSError as error:
            raise Refused(f"{self.given} is in use ({error.strerror}): lsblk and lslocks, as root, show by whom") from None
        if self.bytes < DRIVE_BYTES_MIN:
            raise Refused(f"{self.given} has {self.bytes // MIB} MiB: {DRIVE_BYTES_MIN // MIB} are needed")

    def content(self):
        """What is on it, in a few words."""
        if shutil.which("blkid"):
            found = subprocess.run(["blkid", "-p", "-o", "export", self.path], capture_output=True, text=True, check=False)
            if found.returncode == 0:
                told = [line for line in found.stdout.split() if line.startswith(("TYPE=", "LABEL=", "PTTYPE="))]
                return "has " + " ".join(told)
        begin = self.read(0, MIB) + self.read(MIB, 4096)
        if b"CLEATPL\0" in begin:
            return "has the label of a pool of Cleat's"
        return "has nothing at its beginning" if not begin.strip(b"\0") else "has data that nothing here knows"

    def read(self, at, length):
        """Past the page cache."""
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, length) as memory:
                os.preadv(handle, [memory], at)
                return bytes(memory)
        finally:
            os.close(handle)

    def features(self):
        """What the drive says of itself in Identify, by the names of the specification; of a drive that is none, nothing."""
        if not self.is_nvme:
            return {}
        controller, space = self._identify(1, 0), self._identify(0, self._nsid())
        formats = [f"{1 << space[128 + 4 * i + 2]}+{struct.unpack_from('<H', space, 128 + 4 * i)[0]}" for i in range(space[25] + 1)
                   if space[128 + 4 * i + 2]]
        version = struct.unpack_from("<I", controller, 80)[0]
        return {"VER": f"{version >> 16}.{version >> 8 & 255}", "MDTS": controller[77], "ONCS": f"{struct.unpack_from('<H', controller, 520)[0]:#x}",
                "VWC": controller[525], "LPA": f"{controller[261]:#x}", "SGLS": f"{struct.unpack_from('<I', controller, 536)[0]:#x}",
                "AWUPF": struct.unpack_from("<H", controller, 528)[0], "FLBAS": space[26], "DLFEAT": f"{space[33]:#x}",
                "formats (data+metadata)": ", ".join(formats)}

    def _nsid(self):
        handle = os.open(self.path, os.O_RDONLY)
        try:
            return fcntl.ioctl(handle, 0x4E40)  # NVME_IOCTL_ID
        finally:
            os.close(handle)

    def _identify(self, cns, nsid):
        data = array.array("B", bytes(4096))
        address, _ = data.buffer_info()
        command = bytearray(struct.pack("<BBHIIIQQIIIIIIIIII", 6, 0, 0, nsid, 0, 0, 0, address, 0, 4096, cns, 0, 0, 0, 0, 0, 0, 0))
        handle = os.open(self.path, os.O_RDONLY)
        try:
            status = fcntl.ioctl(handle, 0xC0484E41, command)  # NVME_IOCTL_ADMIN_CMD
        finally:
            os.close(handle)
        if status != 0:
            raise OSError(f"{self.path}: Identify {cns} ended with NVMe status {status:#x}")
        return data.tobytes()


# ---- Cleat

class Cleat:
    """cleatd and an engine in a folder of their own, and cleat-perf. The user that they run as gets the drive's nodes, and the nodes their owner
    back at the end."""

    def __init__(self, bin_dir, drive):
        self._bin = bin_dir
        self._drive = drive
        self._owners = {path: os.stat(path) for path in (drive.path, drive.node) if path}
        self.dir = tempfile.mkdtemp(prefix="cleat-test-nvme-", dir="/run")
        self._processes = {}
        for program in ("cleatd", "cleat-engine", "cleatctl", "cleat-perf"):
            if not os.path.exists(os.path.join(bin_dir, program)):
                raise Refused(f"{bin_dir}/{program} is missing: run 'make build'")

    def __enter__(self):
        os.makedirs(f"{self.dir}/state")
        with open(f"{self.dir}/paths.conf", "w", encoding="utf-8") as lists:
            lists.write(f"files {self.dir}\ndevices {self._drive.path}\nsockets {self.dir}\nkeys {self.dir}\n")
        for path in (self.dir, f"{self.dir}/state"):
            os.chown(path, USER, USER)
        self.let_use(self._drive.path, True)
        self._start("cleatd", "--listen", self._address, "--engine-socket", f"{self.dir}/engine.sock")
        until = time.monotonic() + WAIT_SECONDS
        while not os.path.exists(f"{self.dir}/api.sock"):
            if self._processes["cleatd"].poll() is not None or time.monotonic() >= until:
                said = self.log_tail()
                self.__exit__()
                raise Refused(f"cleatd does not start, and nothing was done to the drive:\n{said}")
            time.sleep(0.05)
        return self

    def __exit__(self, *unused):
        for name in list(self._processes):
            self._end(name, signal.SIGTERM)
        for path, owner in self._owners.items():
            os.chown(path, owner.st_uid, owner.st_gid)
        shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def _address(self):
        return f"unix:{self.dir}/api.sock"

    def let_use(self, node, allowed):
        os.chown(node, USER if allowed else self._owners[node].st_uid, self._owners[node].st_gid)

    def _start(self, program, *options):
        with open(f"{self.dir}/{program}.log", "ab") as log:
            self._processes[program] = subprocess.Popen(
                ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--pdeathsig", "KILL", "--", os.path.join(self._bin, program),
                 "--state-dir", f"{self.dir}/state", "--paths", f"{self.dir}/paths.conf", *options], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log)

    def _end(self, name, number):
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_engine(self):
        self._start("cleat-engine", "--name", "engine-0", "--control", f"{self.dir}/engine.sock", "--runtime-dir", f"{self.dir}/engine",
                    "--reactors", "1")
        until = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                self.ctl("wait", "engines/engine-0", "--timeout", "60")
                return
            except Failed:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.1)

    def kill_engine(self):
        self._end("cleat-engine", signal.SIGKILL)

    def stop_engine(self):
        self._end("cleat-engine", signal.SIGTERM)

    def ctl(self, *arguments):
        done = subprocess.run([os.path.join(self._bin, "cleatctl"), "--address", self._address, "--output", "json", *arguments],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * WAIT_SECONDS, check=False)
        if done.returncode != 0:
            raise Failed(f"cleatctl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None

    def serve(self, disk):
        """Over a controller of the disk's name; how the engine reaches the drive. The engine waits for its front end."""
        self.ctl("controller", "create", disk, "--socket", f"{self.dir}/{disk}.sock")
        self.ctl("attach", disk, disk, f"--wait={WAIT_SECONDS}")
        return self.ctl("disk", "get", disk)["status"]["io_path"]

    def remove(self, disk):
        self.ctl("detach", disk, f"--wait={WAIT_SECONDS}")
        self.ctl("controller", "delete", disk, f"--wait={WAIT_SECONDS}")
        self.ctl("disk", "delete", disk, "--purge", "--yes", f"--wait={WAIT_SECONDS}")

    def begin_load(self, disk, options):
        os.umask(0)  # the engine, another user, connects to its socket
        return subprocess.Popen(
            [os.path.join(self._bin, "cleat-perf"), "run", "--listen", f"{self.dir}/{disk}.sock", "--reconnect", "--no-progress", "--timeout",
             str(WAIT_SECONDS), "--json", "-", *options.split()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @staticmethod
    def end_load(load):
        said, _ = load.communicate(timeout=10 * WAIT_SECONDS)
        if "{" not in said:
            raise Failed(f"cleat-perf says: {said.strip()}")
        return json.loads(said[said.index("{"):said.rindex("}") + 1])["result"]

    def log_tail(self):
        return "".join(f"--- {name}.log\n" + "\n".join(read_text(f"{self.dir}/{name}.log").splitlines()[-15:]) + "\n"
                       for name in ("cleatd", "cleat-engine") if os.path.exists(f"{self.dir}/{name}.log"))


# ---- The trial

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
        self._pool_made = False

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
        self._pool_made = True
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
        lines += [f"          {name} {value}" for name, value in self._drive.features().items()]
        lines += [f"path      {way}: {path}" for way, path in self.paths.items()]
        lines += [f"note      {note}" for note in self.notes]
        lines += [f"check     {what}: {outcome}" for what, outcome in self.checks]
        for what in SPEEDS:
            for way in ("commands", "block device"):
                rates = self.speeds.get((what, way))
                if rates:
                    lines.append(f"speed     {what}, {way}: {sorted(rates)[len(rates) // 2]:.0f} a second ({min(rates):.0f} to {max(rates):.0f}, {len(rates)} runs)")
        return "\n".join(lines)


def agree(drive, given):
    print(f"{drive.given}\n  {drive.path}: {drive.model}, serial {drive.serial}, {drive.bytes / 1e9:.1f} GB; it {drive.content()}\n"
          f"ALL DATA ON IT WILL BE LOST.")
    if given is None:
        print(f"Type its serial number ({drive.serial}) to go on: ", end="", flush=True)
        given = sys.stdin.readline().strip()
    if given != drive.serial:
        raise Refused(f"'{given}' is not the serial number of {drive.given}: nothing was done")


def main():
    here = os.path.dirname(os.path.realpath(__file__))
    parser = argparse.ArgumentParser(description="Tries Cleat on a drive, which loses all its data.")
    parser.add_argument("device", help="the whole drive, best by its link in /dev/disk/by-id")
    parser.add_argument("--yes-destroy", metavar="SERIAL", help="agrees to the loss of that drive's data, instead of asking")
    parser.add_argument("--bin-dir", default=os.path.join(here, "..", "build", "bin"), help="where cleatd and the others are")
    parser.add_argument("--seconds", type=float, default=3, help="of each of the %(prog)s speeds' runs (default %(default)s)")
    options = parser.parse_args()
    try:
        if os.geteuid() != 0:
            raise Refused("this takes root: sudo make test-nvme DEVICE=...")
        drive = Drive(options.device)
        drive.check_unused()
        agree(drive, options.yes_destroy)
        with Cleat(os.path.realpath(options.bin_dir), drive) as cleat:
            trial = Trial(cleat, drive, options.seconds)
            trial.run()
            failed = any(outcome != "ok" for _, outcome in trial.checks)
            if failed:
                print(cleat.log_tail())
            print(trial.page())
    except Refused as refused:
        print(f"test-nvme: {refused}", file=sys.stderr)
        return 2
    print("test-nvme: " + ("FAILED" if failed else "ok"))
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))
    sys.exit(main())

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make test-nvme DEVICE=/dev/disk/by-id/...`: tries Cleat on a real drive of this host, as root. DESTROYS all that is on it, and asks
before. cleatd and cleat-engine run from build/bin as a user without privileges, in a folder that is removed at the end; cleat-perf plays the
virtual machine. Ends with a page that is worth sending back: kernel, drive, each check, and speeds with their spread.

Any block device will do; one that is no NVMe namespace is used through the block device alone. Exit status: 0 - all checks went well, 1 - one
has failed, 2 - the drive was refused, or nobody agreed to its loss."""

import argparse
import array
import contextlib
import fcntl
import glob
import grp
import json
import mmap
import os
import platform
import pwd
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

# The daemons' user is one of these, if nobody has it. No service gives them out: they lie between what systemd has for homes and the like
# (60001 to 60705) and for its DynamicUser= (61184 to 65519), and far from containers' (524288 and up): https://systemd.io/UIDS-GIDS. A package of
# Debian's may be given one of 60000 to 64999 for good, so each is looked up first.
USERS = range(60706, 61184)
WAIT_SECONDS = 120  # for what can only hang
MIB = 1 << 20
EXTENT_BYTES_MIN = 64 * MIB
EXTENTS_MAX = 65536
DISK_BYTES = 128 * MIB
DRIVE_BYTES_MIN = 512 * MIB
DATA_BEGINS = 64 * MIB  # of a pool's drive: docs/local-nvme.md
LABELS_AT = (0, MIB)
ENDS_BYTES = 4 * MIB  # at both ends of a drive: where partition tables, file systems and the like have what they are known by
LOOKS = 3  # at who has the drive open, before it is refused: udev and the like open one for a moment
LOOK_EVERY_SECONDS = 0.2
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # the kernel's PROC_PID_INIT_INO
CAP_SYS_PTRACE = 19
# Where the kernel itself uses a block device without its exclusive claim: files that have the path of one.
KERNEL_USERS = ("/sys/block/loop*/loop/backing_file", "/sys/kernel/config/nvmet/subsystems/*/namespaces/*/device_path",
                "/sys/kernel/config/target/core/*/*/udev_path")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the first one is Python's own to handle
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


# ---- The host's processes

def process_lines(pid, key):
    """The numbers in these lines of /proc/PID/status."""
    return [int(word) for line in read_text(f"/proc/{pid}/status").splitlines() if line.startswith(key) for word in line.split()[1:]]


def free_user():
    """A user and group that no process and no entry of the host's user database has."""
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    taken = {number for pid in pids for number in process_lines(pid, ("Uid:", "Gid:", "Groups:"))}
    for user in USERS:
        with contextlib.suppress(KeyError):
            pwd.getpwuid(user)
            continue
        with contextlib.suppress(KeyError):
            grp.getgrgid(user)
            continue
        if user not in taken:
            return user
    raise Refused(f"each user from {USERS[0]} to {USERS[-1]} is somebody's here: the daemons have none to run as")


def check_processes_seen():
    """What has a drive open is found in /proc, so that has to show all of the host's processes, with their files."""
    capabilities = int((read_text("/proc/self/status").partition("CapEff:")[2].split() or ["0"])[0], 16)
    if os.stat("/proc/self/ns/pid").st_ino != INITIAL_PID_NAMESPACE or not capabilities >> CAP_SYS_PTRACE & 1:
        raise Refused("the host's other processes, and what they have open, can't be seen from here: run this as root of the host itself, in no "
                      "container")


def open_files(pid):
    """The files that a process has open, as paths below /proc. PermissionError where it can't be seen."""
    for folder in (f"/proc/{pid}", *glob.iglob(f"/proc/{pid}/task/*")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found = os.listdir(f"{folder}/fd")
            if found:  # else it is the kernel's, or its first thread has ended and others have not
                return [f"{folder}/fd/{name}" for name in found]
    return []


def nodes_open(numbers):
    """Which process has which node open: `numbers` has the nodes' names by kind and device number. So it is seen also where the process has
    nodes of its own, as libvirt's virtual machines have. This process is left out."""
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        names = set()
        for file in open_files(pid) if pid != os.getpid() else ():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if not os.readlink(file).startswith("/"):
                    continue  # a socket and the like
                with contextlib.suppress(OSError):  # what FUSE shows to its user alone, what NFS has lost
                    status = os.stat(file)
                    names.add(numbers.get((stat.S_IFMT(status.st_mode), status.st_rdev)))
        names.discard(None)
        if names:
            command = read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip() or read_text(f"/proc/{pid}/comm")
            found.append(f"process {pid} ({command[:100]}) has {', '.join(sorted(names))} open")
    return found


# ---- The drive

def sysfs_number(path):
    """The device number in a file `dev` of sysfs; None where there is none."""
    major, colon, minor = read_text(path).partition(":")
    return os.makedev(int(major), int(minor)) if colon else None


def words(path):
    return " ".join(read_text(path).split())


def whole_devices():
    return [path for path in glob.glob("/sys/class/block/*") if not os.path.exists(f"{path}/partition")]


def wwid_of(sysfs):
    return words(f"{sysfs}/wwid") or words(f"{sysfs}/device/wwid")


def marks_of(sysfs):
    """What a drive says of itself that tells it from others: (what it is, its text), the handiest first."""
    serial = words(f"{sysfs}/serial") or words(f"{sysfs}/device/serial")
    nsid = words(f"{sysfs}/nsid")
    marks = [("serial number", serial)]
    if nsid and serial:
        marks.append(("serial number and namespace", f"{serial}/{nsid}"))
    return [mark for mark in (*marks, ("WWID", wwid_of(sysfs))) if mark[1]]


class Drive:
    """A block device: what it is, who uses it, what is on it. It is open as long as this is: the kernel gives its number to no other."""

    def __init__(self, path):
        self.given = path
        self.path = os.path.realpath(path)
        try:
            self.status = os.stat(self.path)
            if not stat.S_ISBLK(self.status.st_mode):
                raise Refused(f"{path} is no block device: name a drive, best by its link in /dev/disk/by-id")
            self._handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}: name a drive, best by its link in /dev/disk/by-id") from None
        self.name = os.path.basename(os.path.realpath(f"/sys/dev/block/{os.major(self.status.st_rdev)}:{os.minor(self.status.st_rdev)}"))
        self.sysfs = f"/sys/class/block/{self.name}"
        if os.fstat(self._handle).st_rdev != self.status.st_rdev or not os.path.isdir(self.sysfs):
            raise Refused(f"{path} comes or goes just now: try again")
        self.bytes = int(read_text(f"{self.sysfs}/size") or 0) * 512
        self.block_bytes = int(read_text(f"{self.sysfs}/queue/logical_block_size") or 512)
        self.model = read_text(f"{self.sysfs}/device/model") or "no model"
        self.firmware = read_text(f"{self.sysfs}/device/firmware_rev") or "-"
        self.is_nvme = self.name.startswith("nvme")
        self.node = self.path.replace("/nvme", "/ng", 1) if self.is_nvme else None
        if self.node and not os.path.exists(self.node):
            self.node = None
        self._same = self._same_drive()
        self.mark_is, self.mark = self._mark()
        # What another drive in its place would not share; `diskseq` counts the media that the kernel has seen.
        self.facts = (self.status.st_rdev, self.path, self.mark, self.model, self.firmware, self.bytes, self.block_bytes, self.node,
                      self.node and os.stat(self.node).st_rdev, read_text(f"{self.sysfs}/diskseq"))

    def close(self):
        os.close(self._handle)

    def _same_drive(self):
        """Other block devices that are this drive on another way: its second port, or the paths of a multipath device."""
        def facts(sysfs):
            return wwid_of(sysfs), words(f"{sysfs}/device/serial"), read_text(f"{sysfs}/size")
        mine = facts(self.sysfs)
        return sorted(path for path in whole_devices() if mine[0] and facts(path) == mine and path != self.sysfs)

    def _mark(self):
        """What tells this drive from all others of the host, and stays the same when the kernel names it anew: (what it is, its text). A
        drive without such a thing has its path, and the file that is behind it."""
        others = {mark for path in whole_devices() if path not in (self.sysfs, *self._same) for mark in marks_of(path)}
        links = [link for link in (self.given, *sorted(glob.glob("/dev/disk/by-id/*")))
                 if link.startswith("/dev/disk/by-id/") and os.path.realpath(link) == self.path]
        backing = read_text(f"{self.sysfs}/loop/backing_file")
        marks = [mark for mark in marks_of(self.sysfs) if mark not in others] + [("link", link) for link in links]
        return (*marks, ("path and file", f"{self.path} {backing}") if backing else ("path", self.path))[0]

    def ends(self):
        """What is at the drive's beginning and end."""
        return self.read(0, ENDS_BYTES) + self.read(self.bytes - ENDS_BYTES, ENDS_BYTES)

    def _numbers(self):
        """The names of all nodes that lead to the drive or a part of it, by kind and number, as nodes_open takes them."""
        found = {(stat.S_IFBLK, self.status.st_rdev): self.name}
        if self.node:
            found[(stat.S_IFCHR, os.stat(self.node).st_rdev)] = os.path.basename(self.node)
        for sysfs in (self.sysfs, *self._same):
            generic = "/sys/class/nvme-generic/" + os.path.basename(sysfs).replace("nvme", "ng", 1)
            parts = [os.path.dirname(path) for path in glob.glob(f"{sysfs}/*/partition")]
            for kind, paths in ((stat.S_IFBLK, [sysfs, *parts]),
                                (stat.S_IFCHR, [generic, *glob.glob(f"{sysfs}/device/scsi_generic/*"), *glob.glob(f"{sysfs}/device/bsg/*")])):
                for path in paths:
                    number = sysfs_number(f"{path}/dev")
                    if number is not None:
                        found[(kind, number)] = os.path.basename(path)
        return found

    def _users(self):
        """Who has it open, or uses it in the kernel without a claim."""
        numbers = self._numbers()
        found = nodes_open(numbers)
        for file in (file for pattern in KERNEL_USERS for file in glob.glob(pattern)):
            with contextlib.suppress(OSError):
                status = os.stat(read_text(file))
                if (stat.S_IFMT(status.st_mode), status.st_rdev) in numbers:
                    found.append(f"the kernel uses it ({file})")
        return found

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
        for path in (self.path, *(f"/dev/{os.path.basename(sysfs)}" for sysfs in self._same)):
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_EXCL))
            except FileNotFoundError:
                pass  # a path of a multipath device: the kernel's alone
            except OSError as error:
                raise Refused(f"{self.given} is in use ({path}: {error.strerror}): lsblk and lslocks, as root, show by whom") from None
        self._check_not_open()
        if self.bytes < DRIVE_BYTES_MIN:
            raise Refused(f"{self.given} has {self.bytes // MIB} MiB: {DRIVE_BYTES_MIN // MIB} are needed")

    def _check_not_open(self):
        """By anybody, who need not have claimed it: QEMU does not, and no one does who gives the drive commands alone."""
        check_processes_seen()
        try:
            for look in range(LOOKS):
                time.sleep(LOOK_EVERY_SECONDS if look else 0)
                users = self._users()
                if not users:
                    return
        except PermissionError as error:
            raise Refused(f"who uses {self.given} can't be seen ({error.filename}: {error.strerror}): run this as root of the host itself") from None
        raise Refused(f"{self.given} is in use: {'; '.join(users)}: end that first, or name another drive")

    def check_as_shown(self, ends):
        """After the question, which may have stood for long: it is the same drive, still nobody's, and what is on it is what was."""
        again = Drive(self.given)
        try:
            if again.facts != self.facts:
                raise Refused(f"{self.given} is not the drive any more that was shown: nothing was done")
            again.check_unused()
            if again.ends() != ends:
                raise Refused(f"what is on {self.given} has changed since the question: nothing was done; look at it ({again.path}; it "
                              f"{again.content()}), and begin again")
        finally:
            again.close()

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

    def __init__(self, bin_dir, drive, undo):
        """What is to be undone at the end goes to `undo`, an ExitStack, before it is done."""
        self._bin = bin_dir
        self._drive = drive
        self._undo = undo
        self._user = free_user()
        self._owners = {path: os.stat(path) for path in (drive.path, drive.node) if path}
        self._processes = {}
        for program in ("cleatd", "cleat-engine", "cleatctl", "cleat-perf"):
            if not os.path.exists(os.path.join(bin_dir, program)):
                raise Refused(f"{bin_dir}/{program} is missing: run 'make build'")
        self.dir = tempfile.mkdtemp(prefix="cleat-test-nvme-", dir="/run")
        undo.callback(shutil.rmtree, self.dir, ignore_errors=True)

    def start(self):
        os.makedirs(f"{self.dir}/state")
        with open(f"{self.dir}/paths.conf", "w", encoding="utf-8") as lists:
            lists.write(f"files {self.dir}\ndevices {self._drive.path}\nsockets {self.dir}\nkeys {self.dir}\n")
        for path in (self.dir, f"{self.dir}/state"):
            os.chown(path, self._user, self._user)
        self._undo.callback(self._give_back)
        self._undo.callback(self._end_all)
        self.let_use(self._drive.path, True)
        self._start("cleatd", "--listen", self._address, "--engine-socket", f"{self.dir}/engine.sock")
        until = time.monotonic() + WAIT_SECONDS
        while not os.path.exists(f"{self.dir}/api.sock"):
            if self._processes["cleatd"].poll() is not None or time.monotonic() >= until:
                raise Refused(f"cleatd does not start, and nothing was done to the drive:\n{self.log_tail()}")
            time.sleep(0.05)

    def _end_all(self):
        for name in list(self._processes):
            self._end(name, signal.SIGTERM)

    def _give_back(self):
        for number in ENDING:  # whoever is impatient waits this moment
            signal.signal(number, signal.SIG_IGN)
        for path, owner in self._owners.items():
            with contextlib.suppress(FileNotFoundError):  # the drive is gone, or another one has come
                if os.stat(path).st_rdev == owner.st_rdev:
                    os.chown(path, owner.st_uid, owner.st_gid)

    @property
    def _address(self):
        return f"unix:{self.dir}/api.sock"

    def let_use(self, node, allowed):
        os.chown(node, self._user if allowed else self._owners[node].st_uid, self._owners[node].st_gid)

    def _start(self, program, *options):
        with open(f"{self.dir}/{program}.log", "ab") as log:
            self._processes[program] = subprocess.Popen(
                ["setpriv", f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups", "--pdeathsig", "KILL", "--", os.path.join(self._bin, program),
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
        load = subprocess.Popen(
            [os.path.join(self._bin, "cleat-perf"), "run", "--listen", f"{self.dir}/{disk}.sock", "--reconnect", "--no-progress", "--timeout",
             str(WAIT_SECONDS), "--json", "-", *options.split()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._undo.callback(load.kill)  # of one that has ended, nothing
        return load

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
    """Returns what is at the drive's ends, as it was before the question."""
    ends = drive.ends()
    print(f"{drive.given}\n  {drive.path}: {drive.model}, {drive.mark_is} {drive.mark}, {drive.bytes / 1e9:.1f} GB; it {drive.content()}\n"
          f"ALL DATA ON IT WILL BE LOST.")
    if given is None:
        print(f"Type its {drive.mark_is} ({drive.mark}) to go on: ", end="", flush=True)
        given = sys.stdin.readline()
    if " ".join(given.split()) != " ".join(drive.mark.split()):
        raise Refused(f"'{given.strip()}' is not the {drive.mark_is} of {drive.given}, which is {drive.mark}: nothing was done")
    return ends


def main():
    here = os.path.dirname(os.path.realpath(__file__))
    parser = argparse.ArgumentParser(description="Tries Cleat on a drive, which loses all its data.")
    parser.add_argument("device", help="the whole drive, best by its link in /dev/disk/by-id")
    parser.add_argument("--yes-destroy", metavar="SERIAL", help="agrees to the loss of that drive's data, instead of asking for what it is told by")
    parser.add_argument("--bin-dir", default=os.path.join(here, "..", "build", "bin"), help="where cleatd and the others are")
    parser.add_argument("--seconds", type=float, default=3, help="of each of the %(prog)s speeds' runs (default %(default)s)")
    options = parser.parse_args()
    try:
        if os.geteuid() != 0:
            raise Refused("this takes root: sudo make test-nvme DEVICE=...")
        drive = Drive(options.device)
        drive.check_unused()
        drive.check_as_shown(agree(drive, options.yes_destroy))
        with contextlib.ExitStack() as undo:
            cleat = Cleat(os.path.realpath(options.bin_dir), drive, undo)
            cleat.start()
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
    for ending in ENDING[1:]:
        signal.signal(ending, lambda number, unused: sys.exit(128 + number))
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The drive that is tried."""

import glob
import mmap
import os
import shutil
import stat
import subprocess
import time

from nvme_trial.common import MIB, Refused, read_text, words
from nvme_trial.users import check_processes_seen, users_of

DRIVE_BYTES_MIN = 512 * MIB
ENDS_BYTES = 4 * MIB  # at both ends of a drive: where partition tables, file systems and the like have what they are known by
LOOKS = 3  # at who has the drive open, before it is refused: udev and the like open one for a moment
LOOK_EVERY_SECONDS = 0.2


def sysfs_number(path):
    """The device number in a file `dev` of sysfs; None where there is none."""
    major, colon, minor = read_text(path).partition(":")
    return os.makedev(int(major), int(minor)) if colon else None


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
        """A program that has it open need not have claimed it: QEMU does not, nor does one that gives the drive commands alone."""
        check_processes_seen()
        try:
            for look in range(LOOKS):
                time.sleep(LOOK_EVERY_SECONDS if look else 0)
                users = users_of(self._numbers())
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

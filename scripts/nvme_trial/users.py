# SPDX-License-Identifier: Apache-2.0
"""Who uses what of this host: users that nobody has, and processes and parts of the kernel that have a drive open."""

import contextlib
import glob
import grp
import os
import pwd
import stat

from nvme_trial.common import Refused, read_text

# The daemons' user is one of these, if nobody has it. No service gives them out: they lie between what systemd has for homes and the like
# (60001 to 60705) and for its DynamicUser= (61184 to 65519), and far from containers' (524288 and up): https://systemd.io/UIDS-GIDS. A package of
# Debian's may be given one of 60000 to 64999 for good, so each is looked up first.
USERS = range(60706, 61184)
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # the kernel's PROC_PID_INIT_INO
CAP_SYS_PTRACE = 19
# Where the kernel itself uses a block device without its exclusive claim: files that have the path of one.
KERNEL_USERS = ("/sys/block/loop*/loop/backing_file", "/sys/kernel/config/nvmet/subsystems/*/namespaces/*/device_path",
                "/sys/kernel/config/target/core/*/*/udev_path")


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


def users_of(numbers):
    """Who has these nodes open, or uses them in the kernel without a claim; `numbers` as nodes_open takes them."""
    found = nodes_open(numbers)
    for file in (file for pattern in KERNEL_USERS for file in glob.glob(pattern)):
        with contextlib.suppress(OSError):
            status = os.stat(read_text(file))
            if (stat.S_IFMT(status.st_mode), status.st_rdev) in numbers:
                found.append(f"the kernel uses it ({file})")
    return found

# SPDX-License-Identifier: Apache-2.0
"""A block device that stands still for the writes of one process when it is told to, whether that lives on or not: a loop device, with the kernel's own
throttle in front of it. Takes root, a loop device and the blkio or io controller of control groups."""

import contextlib
import os
import subprocess

_BLKIO, _UNIFIED = "/sys/fs/cgroup/blkio", "/sys/fs/cgroup"


def _write(path, line):
    """Control files take a line a write."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(line)


class HeldDisk:
    """A device over the file `image`, which is made. `lacks`: what this machine has not, or None."""

    def __init__(self, image, size_bytes):
        self.path = self._group = None
        self._unified = not os.path.exists(f"{_BLKIO}/blkio.throttle.io_serviced")
        self.lacks = self._make(image, size_bytes)

    def _make(self, image, size_bytes):
        if os.geteuid() != 0:
            return "no root"
        with open(image, "wb") as file:
            file.truncate(size_bytes)
        found = subprocess.run(["losetup", "--find", "--show", "--direct-io=off", image], capture_output=True, text=True, check=False)
        if found.returncode != 0:
            return f"no loop device: {found.stderr.strip()}"
        self.path = found.stdout.strip()
        name = f"cleat-held-{os.getpid()}-{os.path.basename(self.path)}"
        try:
            if self._unified:
                _write(f"{_UNIFIED}/cgroup.subtree_control", "+io")
            group = f"{_UNIFIED if self._unified else _BLKIO}/{name}"
            os.mkdir(group)
        except OSError as error:
            return f"no control group: {error}"
        self._group = group
        return None

    def _limit(self, bytes_per_second):
        node = os.stat(self.path).st_rdev
        device = f"{os.major(node)}:{os.minor(node)}"
        if self._unified:
            _write(f"{self._group}/io.max", f"{device} wbps={bytes_per_second or 'max'}")
        else:
            _write(f"{self._group}/blkio.throttle.write_bps_device", f"{device} {bytes_per_second}")

    def hold(self, pid):
        """From now on nothing lands that the process writes: at a byte a second a block takes more than an hour."""
        self._limit(1)
        _write(f"{self._group}/cgroup.procs", str(pid))

    def release(self):
        self._limit(0)

    def kill(self):
        """After the ends of those who use it."""
        if self._group is not None:
            self._limit(0)
            with open(f"{self._group}/cgroup.procs", encoding="utf-8") as processes:
                for pid in processes.read().split():
                    with contextlib.suppress(OSError):
                        _write(f"{os.path.dirname(self._group)}/cgroup.procs", pid)
            os.rmdir(self._group)
        if self.path is not None:
            subprocess.run(["losetup", "--detach", self.path], check=False)

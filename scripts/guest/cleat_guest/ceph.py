# SPDX-License-Identifier: Apache-2.0
"""A real Ceph cluster of one monitor and one OSD, in memory, for a test, a demonstration or a measurement."""

import contextlib
import os
import shutil
import signal
import subprocess

from cleat_guest.process import BenchError

SCRIPT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", "..", "tests", "ceph", "mini_ceph.sh"))
SECONDS = 400  # for what takes about one, and beyond the script's own limits
USER = "cleat"
POOL = "rbd"
FEATURES = "layering,exclusive-lock"


class MiniCeph:
    """Runs from its making until kill(); should this process die before, it goes down by itself. Made by Bench.ceph. The folder
    holds the cluster, is made here and removed at the end; the daemons' logs are moved to `log_dir` then."""

    def __init__(self, folder, log_dir, size="2G"):
        for program in ("ceph-mon", "ceph-osd", "rbd"):
            if not shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
                raise BenchError(f"{program} is missing: run 'make setup'")
        self._folder = folder
        self._log_dir = log_dir
        self._environment = dict(os.environ, OWNER_PID=str(os.getpid()), SIZE=size, POOL=POOL)
        self._up = True
        try:
            self._call([SCRIPT, "up", folder])
        except BaseException:
            self.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.kill()

    @property
    def conf(self):
        return os.path.join(self._folder, "ceph.conf")

    @property
    def keyring(self):
        """Of USER."""
        return os.path.join(self._folder, f"client.{USER}.keyring")

    @property
    def monitors(self):
        with open(self.conf, encoding="utf-8") as file:
            return next(line.split(" = ", 1)[1].strip() for line in file if line.startswith("mon host = "))

    def rbd(self, *arguments):
        """What `rbd` prints; as the administrator, who is somebody else than Cleat's user."""
        return self._call(["rbd", "-c", self.conf, *arguments])

    def create_image(self, image, size):
        self.rbd("create", f"{POOL}/{image}", "--size", size, "--image-feature", FEATURES)

    def export(self, image, path):
        """All of the image's bytes in a file."""
        self.rbd("export", "--no-progress", f"{POOL}/{image}", path)

    def pid(self, daemon):
        """Of "osd.0" or "mon.a"; the script gives pids of daemons of this cluster alone."""
        for line in self._call([SCRIPT, "pids", self._folder]).splitlines():
            name, pid, *_ = line.split()
            if name == daemon:
                return int(pid)
        raise BenchError(f"{daemon} of the cluster in {self._folder} does not run; its log is there")

    @contextlib.contextmanager
    def stopped(self, daemon):
        """The daemon stands still (SIGSTOP) inside of the `with`."""
        pid = self.pid(daemon)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def kill(self):
        """Ends the daemons, and removes the folder."""
        if not self._up:
            return
        self._up = False
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                if name.endswith((".log", ".out")):
                    shutil.copy(os.path.join(self._folder, name), os.path.join(self._log_dir, f"ceph-{name}"))
        # What was never made can't be taken down, which is no news.
        with contextlib.suppress(BenchError):
            self._call([SCRIPT, "down", self._folder])

    def _call(self, command):
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  env=self._environment, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{' '.join(command)}: no end after {SECONDS} s; logs are in {self._folder}") from None
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr.strip()[-600:]}")
        return done.stdout

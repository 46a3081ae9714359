# SPDX-License-Identifier: Apache-2.0
"""Cleat on the drive that is tried."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from nvme_trial.common import WAIT_SECONDS, Failed, Refused, read_text
from nvme_trial.users import free_user

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the first one is Python's own to handle


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

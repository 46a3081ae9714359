# SPDX-License-Identifier: Apache-2.0
"""cleatd, cleat-engine and cleatctl as a test drives them."""

import json
import os
import subprocess
import time

from cleat_guest.ceph import USER
from cleat_guest.process import BenchError, Process

# For what can only hang.
READY_SECONDS = 120
CTL_SECONDS = 180
# Of cleatctl's own, which has to end before.
WAIT = "--wait=120"
_POLL_SECONDS = 0.02


class CtlError(BenchError):
    """cleatctl refused: `status` is its exit status, `message` what it said."""

    def __init__(self, arguments, status, message):
        super().__init__(f"cleatctl {' '.join(arguments)} ended with status {status}: {message.strip()}")
        self.status = status
        self.message = message


class Cleat:
    """cleatd with an engine, in a state folder of its own. Made by Bench.cleat. With `user_id` both run as that user,
    who then owns the bench's folder; only root can ask for that. `cleatd_options` and `engine_options` are added to their
    command lines; `engine_bin_dir` has another engine than `bin_dir`, to compare the two."""

    def __init__(self, bin_dir, run_dir, log_dir, reactors=1, user_id=None, cleatd_options=(), engine_options=(),
                 engine_bin_dir=None):
        self._bin_dir = bin_dir
        self._dir = run_dir
        self._log_dir = log_dir
        self._reactors = reactors
        self._user_id = user_id
        self._cleatd_options = cleatd_options
        self._engine_options = engine_options
        self._engine_bin_dir = engine_bin_dir or bin_dir
        self.address = f"unix:{run_dir}/api.sock"
        self.cleatd = None
        self.engine = None
        self.more_engines = {}  # by name, beside self.engine

    def start(self):
        os.makedirs(os.path.join(self._dir, "state"), exist_ok=True)
        if self._user_id is not None:
            for path in (self._dir, os.path.join(self._dir, "state")):
                os.chown(path, self._user_id, self._user_id)
        self.start_cleatd()
        self.start_engine()
        self.wait_engine()

    def start_cleatd(self):
        self.cleatd = self._spawn("cleatd", "--state-dir", f"{self._dir}/state", "--listen", self.address,
                                  "--engine-socket", f"{self._dir}/engine.sock",
                                  *self._path_options(os.path.join(self._bin_dir, "cleatd")), *self._cleatd_options)

    def _path_options(self, program):
        """Tests may name what they like; programs of before have no lists."""
        if "--paths" not in subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout:
            return []
        lists = f"{self._dir}/paths.conf"
        if not os.path.exists(lists):
            with open(lists, "w", encoding="utf-8") as file:
                file.write("files /\ndevices /\nsockets /\nkeys /\n")
        return ["--paths", lists]

    def start_engine(self):
        self.engine = self._spawn_engine("engine-0")

    def add_engine(self, name, *options):
        """Another one beside engine-0, connected to cleatd."""
        self.more_engines[name] = self._spawn_engine(name, *options)
        self.wait_status(name, "connected", lambda status: status["connected"])

    def upgrade(self, source, target):
        """Moves all controllers of the engine `source` to `target`; the longest of their pauses in milliseconds."""
        self.ctl_text("engine", "upgrade", source, "--to", target)
        return float(self.engine_status(source)["upgrade"]["longest_pause"].rstrip("s")) * 1000

    def engine_status(self, name):
        return self.ctl("engine", "get", name)["status"]

    def wait_status(self, name, what, there):
        """Until `there` holds of the engine's status."""
        deadline = time.monotonic() + READY_SECONDS
        last = None
        while time.monotonic() < deadline:
            try:
                last = self.engine_status(name)
                if there(last):
                    return
            except CtlError as error:
                last = error
            time.sleep(_POLL_SECONDS)
        raise BenchError(f"{name} is not {what} within {READY_SECONDS} s; last: {last}; logs are in {self._log_dir}")

    def restart_cleatd(self):
        """kill -9, a new cleatd, and the engine connected to it again."""
        self.cleatd.kill()
        self.start_cleatd()
        self.wait_engine()

    def restart_engine(self):
        """kill -9, and a new engine that is connected to cleatd."""
        self.engine.kill()
        self.start_engine()
        self.wait_engine()

    def wait_engine(self):
        """Until cleatd answers and says that the engine is connected."""
        deadline = time.monotonic() + READY_SECONDS
        last = None
        while time.monotonic() < deadline:
            self.cleatd.check_running()
            self.engine.check_running()
            try:
                last = self.list("engine")
                if any(engine["status"]["connected"] for engine in last):
                    return
            except CtlError as error:  # cleatd is not listening yet
                last = error
            time.sleep(_POLL_SECONDS)
        raise BenchError(f"no engine was connected to cleatd within {READY_SECONDS} s; last answer: {last}; "
                         f"logs are in {self._log_dir}")

    def kill(self):
        for process in (self.engine, *self.more_engines.values(), self.cleatd):
            if process is not None:
                process.kill()

    def stop(self):
        """All asked to end, the engines first; anything but exit status 0 is an error."""
        for process in (self.engine, *self.more_engines.values(), self.cleatd):
            status = process.stop()
            if status != 0:
                raise BenchError(f"{process.name} ended with status {status}; its log is {process.log_path}")

    # cleatctl

    def ctl_text(self, *arguments):
        """What cleatctl prints for people."""
        try:
            done = subprocess.run(
                [os.path.join(self._bin_dir, "cleatctl"), "--address", self.address, *arguments],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CTL_SECONDS, check=False,
            )
        except FileNotFoundError as error:
            raise BenchError(f"{error.filename} is missing: run 'make build'") from None
        except subprocess.TimeoutExpired:
            raise BenchError(f"cleatctl {' '.join(arguments)}: no answer in {CTL_SECONDS} s; logs are in "
                             f"{self._log_dir}") from None
        if done.returncode != 0:
            raise CtlError(arguments, done.returncode, done.stderr + done.stdout)
        return done.stdout

    def ctl(self, *arguments):
        """cleatctl's answer as Python values."""
        text = self.ctl_text("--output", "json", *arguments)
        return json.loads(text) if text.strip() else None

    def list(self, kind):
        return self.ctl(kind, "list")[f"{kind}s"]

    def create_memory_disk(self, disk, size, *more):
        return self.ctl("disk", "create", disk, "--size", size, "--memory", *more)

    def create_file_disk(self, disk, size, path, *more):
        return self.ctl("disk", "create", disk, "--size", size, "--file", path, "--create", *more)

    def create_cluster(self, cluster, ceph):
        """A MiniCeph, known by that id, with its user's key."""
        return self.ctl("cluster", "create", cluster, "--monitors", ceph.monitors, "--user", USER, "--key-file", ceph.keyring)

    def create_rbd_disk(self, disk, size, image, *more):
        """`image`: CLUSTER/POOL/IMAGE, which is there already."""
        return self.ctl("disk", "create", disk, "--size", size, "--rbd", image, *more)

    def resize_disk(self, disk, size):
        """Makes the disk larger; done when its guests were told."""
        self.ctl("disk", "resize", disk, size, WAIT)

    def create_controller(self, controller, socket_path, queues=1, kind="blk"):
        return self.ctl("controller", "create", controller, "--type", kind, "--socket", socket_path,
                        "--queues", str(queues))

    def delete_controller(self, controller):
        self.ctl("controller", "delete", controller, WAIT)

    def attach(self, disk, socket_path, queues=1):
        """A blk controller of the disk's own on that socket, and the disk attached to it."""
        self.create_controller(f"{disk}-blk", socket_path, queues)
        return self.ctl("attach", disk, f"{disk}-blk", WAIT)

    def detach(self, disk):
        self.ctl("detach", f"{disk}-blk", WAIT)
        self.delete_controller(f"{disk}-blk")

    def attach_scsi(self, disk, controller, *more):
        """Behind a controller that is there already, at the lowest free target unless `more` says which; the target."""
        return self.ctl("attach", disk, controller, WAIT, *more)["spec"].get("target", 0)

    def detach_scsi(self, disk, controller):
        self.ctl("detach", controller, disk, WAIT)

    def delete_disk(self, disk):
        self.ctl("disk", "delete", disk, WAIT)

    def _spawn_engine(self, name, *options):
        paths = self._path_options(os.path.join(self._engine_bin_dir, "cleat-engine"))
        if paths:
            paths += ["--state-dir", f"{self._dir}/state"]
        # The first one's log has the program's name.
        return self._spawn("cleat-engine", "--name", name, "--control", f"{self._dir}/engine.sock", "--runtime-dir",
                           f"{self._dir}/run", "--reactors", str(self._reactors), *paths, *self._engine_options, *options,
                           bin_dir=self._engine_bin_dir, log="" if name == "engine-0" else name)

    def _spawn(self, program, *arguments, bin_dir=None, log=""):
        path = os.path.join(bin_dir or self._bin_dir, program)
        if not os.path.exists(path):
            raise BenchError(f"{path} is missing: run 'make build'")
        return Process(log or program, [path, *arguments], os.path.join(self._log_dir, f"{log or program}.log"),
                       user_id=self._user_id)

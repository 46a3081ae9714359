# SPDX-License-Identifier: Apache-2.0
"""The peer: qemu-storage-daemon, QEMU's block layer and vhost-user-blk export without a VM. On the same core as our engine's
reactor, in whichever of its configurations does best at the load in question."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cleat_guest import BenchError
from cleat_guest.process import Process

from cleat_bench.engines import DISK_BYTES
from cleat_bench.lab import Lab

PROGRAM = "qemu-storage-daemon"
READY_S = 20
TRIAL_ROUNDS = 2
# Nanoseconds that an iothread polls before it sleeps: never, its default, and as long as nothing comes for a millisecond.
POLLS_NS = (0, 32768, 1_000_000)


@dataclass(frozen=True)
class Configuration:
    """`poll_ns` None: without an iothread, everything on the main loop."""

    blockdev: str
    poll_ns: int | None

    @property
    def name(self) -> str:
        loop = "main loop" if self.poll_ns is None else f"iothread poll-max-ns={self.poll_ns}"
        return f"{self.blockdev}, {loop}"

    def options(self, socket_path: str) -> list[str]:
        export = f"vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={socket_path},writable=on,num-queues=1"
        options = ["--blockdev", f"{self.blockdev},node-name=n"]
        if self.poll_ns is not None:
            options += ["--object", f"iothread,id=t,poll-max-ns={self.poll_ns}"]
            export += ",iothread=t"
        return [*options, "--export", export]


def null_configurations() -> list[Configuration]:
    """Reads that leave the guest's memory alone: the least that its null disk can do."""
    blockdev = f"null-co,size={DISK_BYTES},read-zeroes=off"
    return [Configuration(blockdev, poll_ns) for poll_ns in (None, *POLLS_NS)]


def file_configurations(path: str, direct: bool) -> list[Configuration]:
    """All ways it has to read a file, with O_DIRECT or through the page cache; native I/O exists with the former only. Our
    engine holds a lock on the file, so the peer goes without one: nobody writes."""
    ways = ("threads", "io_uring", "native") if direct else ("threads", "io_uring")
    cache = "on" if direct else "off"
    return [Configuration(f"file,filename={path},locking=off,aio={aio},cache.direct={cache}", poll_ns)
            for aio in ways for poll_ns in (None, *POLLS_NS)]


class StorageDaemon:
    """Ended by leaving the `with`. Idle, it sleeps."""

    def __init__(self, lab: Lab, configuration: Configuration, name: str = "qsd") -> None:
        self._lab = lab
        self.configuration = configuration
        self._socket = lab.path(f"{name}.sock")
        self._log = os.path.join(lab.log_dir, f"{name}.log")

    def __enter__(self) -> StorageDaemon:
        program = shutil.which(PROGRAM)
        if program is None:
            raise BenchError(f"{PROGRAM} is missing: 'make setup' installs it")
        if os.path.exists(self._socket):
            os.unlink(self._socket)
        self._process = Process(PROGRAM, ["taskset", "-c", str(self._lab.engine_core), program,
                                          *self.configuration.options(self._socket)], self._log)
        try:
            self._wait_socket()
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()

    def _wait_socket(self) -> None:
        deadline = time.monotonic() + READY_S
        while not os.path.exists(self._socket):
            self._process.check_running()
            if time.monotonic() > deadline:
                raise BenchError(f"{PROGRAM} does not listen after {READY_S} s; its log is {self._log}")
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self, *options: str, **more: Any) -> dict[str, Any]:
        return self._lab.load(f"{PROGRAM}: {self.configuration.name}", "--connect", self._socket, *options, **more)


def best(lab: Lab, configurations: list[Configuration], cost: Callable[[StorageDaemon], float]) -> Configuration:
    """The one with the least cost, of two short runs each, in rounds. One that can't be used (an aio that this kernel or file
    system lacks) is out, but not all may be."""
    costs: dict[Configuration, list[float]] = {}
    refusals = []
    for _ in range(TRIAL_ROUNDS):
        for configuration in configurations:
            try:
                with StorageDaemon(lab, configuration, "qsd-trial") as daemon:
                    found = cost(daemon)
                costs.setdefault(configuration, []).append(found)
            except BenchError as error:
                refusals.append(f"{configuration.name}: {error}")
    if not costs:
        raise BenchError(f"no configuration of {PROGRAM} works: {'; '.join(refusals)}")
    lab.record("trials", [PROGRAM], {"costs": {one.name: values for one, values in costs.items()}, "refused": refusals})
    return min(costs, key=lambda configuration: min(costs[configuration]))

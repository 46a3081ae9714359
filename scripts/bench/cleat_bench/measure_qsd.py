# SPDX-License-Identifier: Apache-2.0
"""Against qemu-storage-daemon: requests a second of a null disk, and CPU a request on a file.

The file is one for both, of 512 MiB, all of it written before, next to the results. Both have one core. The load is a closed
loop of 4 KiB random reads with 32 in flight, so that neither waits for work: what a request costs is the process's CPU time
(user and system, all its threads and the kernel's workers for them) over the run, divided by its requests. Polling counts in
full, ours too.

Our engine reads files with O_DIRECT: what a guest caches, a host does not cache again. Its bar is against the peer's best with
O_DIRECT, which is the same I/O. The peer's best through the page cache is measured beside it (qsd_file_cached_*): with the
whole file in memory that is a copy, and no I/O at all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cleat_bench.engines import DISK_BYTES, NULL, Engine, file_backend
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure, figure, interleave, ratio
from cleat_bench.storage_daemon import TRIAL_ROUNDS, StorageDaemon, best, file_configurations, null_configurations

DEPTHS = (32, 1)
FILE_DEPTH = "32"
TRIAL_PART = 0.5  # of a run's length
PEERS = {"qsd_file": True, "qsd_file_cached": False}  # name of its figures -> O_DIRECT


def null_runs(pace: Pace) -> float:
    trials = TRIAL_ROUNDS * len(DEPTHS) * len(null_configurations())
    return trials * (1 + TRIAL_PART) / 2 + 2 * len(DEPTHS) * pace.rounds


def measure_null(lab: Lab) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    with Engine(lab, "null-engine") as engine:
        engine.add(["null"], "blk", NULL)
        for depth in DEPTHS:
            options = ("--depth", str(depth))
            chosen = best(lab, null_configurations(),
                          lambda daemon: -daemon.load(*options, run_s=TRIAL_PART * lab.pace.run_s)["iops"])
            with StorageDaemon(lab, chosen) as daemon:
                iops = interleave({"ours": lambda: engine.load("null", "null", "blk", *options)["iops"],
                                   "theirs": lambda: daemon.load(*options)["iops"]}, lab.pace.rounds)
            figures[f"qsd_null_qd{depth}_ratio"] = ratio(iops["ours"], iops["theirs"])
            figures[f"qsd_null_qd{depth}_ns"] = figure([1e9 / one for one in iops["theirs"]], "ns")
            lab.note(f"qsd_null_qd{depth}: qemu-storage-daemon's configuration", chosen.name)
    return figures


def file_runs(pace: Pace) -> float:
    trials = sum(len(file_configurations("", direct)) for direct in PEERS.values())
    return TRIAL_ROUNDS * trials * (1 + TRIAL_PART) / 2 + 3 * pace.rounds


def measure_file(lab: Lab) -> dict[str, Figure]:
    options = ("--depth", FILE_DEPTH)
    with written_file(lab) as path, ExitStack() as stack:
        engine = stack.enter_context(Engine(lab, "file-engine"))
        engine.add(["file"], "blk", file_backend(path))

        def theirs(daemon: StorageDaemon, part: float = 1) -> dict[str, float]:
            return cost_of(daemon.pid, lambda **more: daemon.load(*options, **more), part * lab.pace.run_s)

        def ours() -> dict[str, float]:
            return cost_of(engine.pid, lambda **more: engine.load("file", "file", "blk", *options, **more), lab.pace.run_s)

        subjects = {"ours": ours}
        for name, direct in PEERS.items():
            chosen = best(lab, file_configurations(path, direct), lambda daemon: theirs(daemon, TRIAL_PART)["cpu_ns"])
            daemon = stack.enter_context(StorageDaemon(lab, chosen, name))
            subjects[name] = lambda daemon=daemon: theirs(daemon)
            lab.note(f"{name}: qemu-storage-daemon's configuration", chosen.name.replace(path, "FILE"))
        return file_figures(interleave(subjects, lab.pace.rounds))


def file_figures(runs: dict[str, list[dict[str, float]]]) -> dict[str, Figure]:
    cpu = {who: [run["cpu_ns"] for run in runs[who]] for who in runs}
    figures = {f"{peer}_cpu_ratio": ratio(cpu[peer], cpu["ours"]) for peer in PEERS}
    for who, prefix in (("ours", "file"), *((peer, peer) for peer in PEERS)):
        figures[f"{prefix}_cpu_ns"] = figure(cpu[who], "ns")
        figures[f"{prefix}_iops"] = figure([run["iops"] for run in runs[who]], "1/s")
    return figures


def cost_of(pid: int, load: Callable[..., dict[str, Any]], run_s: float) -> dict[str, float]:
    """CPU time a request. Without a warm-up: all requests of the process in that time are counted ones; what the handshake
    costs is in it for both, some milliseconds."""
    before = cpu_ns(pid)
    result = load(run_s=run_s, warm_up_s=0)
    return {"cpu_ns": (cpu_ns(pid) - before) / result["requests"], "iops": result["iops"]}


def cpu_ns(pid: int) -> int:
    """User and system time of all threads that the process has or had. The number of the clock is clock_getcpuclockid(3)'s,
    which Python lacks; /proc/PID/stat counts in ticks of 10 ms."""
    return time.clock_gettime_ns((~pid << 3) | 2)


@contextmanager
def written_file(lab: Lab) -> Iterator[str]:
    """Beside the results, on whatever file system that is; random bytes, so that nothing is a hole or compressed."""
    path = lab.file_dir / f"bench-{os.getpid()}.img"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(path, "wb") as file:
            for _ in range(DISK_BYTES >> 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        yield str(path.resolve())
    finally:
        path.unlink(missing_ok=True)

# SPDX-License-Identifier: Apache-2.0
"""Against qemu-storage-daemon: requests a second of a null disk, and CPU a request on a file.

The file is one for both, of 512 MiB, all of it written before, next to the results. Ours opens it with O_DIRECT; the peer is
free to choose. Both have one core. The load is a closed loop of 4 KiB random reads with 32 in flight, so that neither waits
for work: what a request costs is the process's CPU time (user and system, all its threads and the kernel's workers for them)
over the run, divided by its requests. Polling counts in full, ours too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cleat_bench.engines import DISK_BYTES, NULL, Engine, file_backend
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure, figure, interleave, ratio
from cleat_bench.storage_daemon import Configuration, StorageDaemon, best, file_configurations, null_configurations

DEPTHS = (32, 1)
FILE_DEPTH = "32"
TRIAL_PART = 0.5  # of a run's length
FILE_RUN_PART = 2  # CPU time is counted in ticks of 10 ms


def null_runs(pace: Pace) -> float:
    trials = len(DEPTHS) * len(null_configurations())
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
            lab.note(f"qemu-storage-daemon at depth {depth}", chosen.name)
    return figures


def file_runs(pace: Pace) -> float:
    return len(file_configurations("")) * (1 + TRIAL_PART) / 2 + 2 * FILE_RUN_PART * pace.rounds


def measure_file(lab: Lab) -> dict[str, Figure]:
    options = ("--depth", FILE_DEPTH)
    with written_file(lab) as path, Engine(lab, "file-engine") as engine:
        engine.add(["file"], "blk", file_backend(path))

        def ours() -> dict[str, float]:
            return cost_of(engine.pid, lambda **more: engine.load("file", "file", "blk", *options, **more),
                           FILE_RUN_PART * lab.pace.run_s)

        def theirs(daemon: StorageDaemon, run_s: float) -> dict[str, float]:
            return cost_of(daemon.pid, lambda **more: daemon.load(*options, **more), run_s)

        chosen = best(lab, file_configurations(path),
                      lambda daemon: theirs(daemon, TRIAL_PART * lab.pace.run_s)["cpu_ns"])
        with StorageDaemon(lab, chosen) as daemon:
            runs = interleave({"ours": ours, "theirs": lambda: theirs(daemon, FILE_RUN_PART * lab.pace.run_s)},
                              lab.pace.rounds)
    lab.note("qemu-storage-daemon on a file", chosen.name.replace(path, "FILE"))
    return file_figures(runs)


def file_figures(runs: dict[str, list[dict[str, float]]]) -> dict[str, Figure]:
    cpu = {who: [run["cpu_ns"] for run in runs[who]] for who in runs}
    return {"qsd_file_cpu_ratio": ratio(cpu["theirs"], cpu["ours"]),
            "qsd_file_cpu_ns": figure(cpu["theirs"], "ns"),
            "file_cpu_ns": figure(cpu["ours"], "ns"),
            "qsd_file_iops": figure([run["iops"] for run in runs["theirs"]], "1/s"),
            "file_iops": figure([run["iops"] for run in runs["ours"]], "1/s")}


def cost_of(pid: int, load: Callable[..., dict[str, Any]], run_s: float) -> dict[str, float]:
    """CPU time a request. Without a warm-up: all requests of the process in that time are counted ones; what the handshake
    costs is in it for both, some milliseconds."""
    before = cpu_ns(pid)
    result = load(run_s=run_s, warm_up_s=0)
    return {"cpu_ns": (cpu_ns(pid) - before) / result["requests"], "iops": result["iops"]}


def cpu_ns(pid: int) -> int:
    """User and system time of all threads that the process has or had."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


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

# SPDX-License-Identifier: Apache-2.0
"""Disks in Ceph against fio's rbd engine, in images of the same cluster - one monitor and one OSD on this machine, in memory -,
in turns: half random reads, half random writes of 4 KiB.

- pipeline: the pipeline driven inside one process (cleat-rbd-load), in fio's image.
- vhost: cleatd and cleat-engine, the load generator for a guest; in an equal image, since the engine owns its own.

All wait for most of the time and share the machine with the cluster, so nothing is pinned, and the generator sleeps on its
call eventfds as a guest does; the cache is off for all. CPU is that of the whole process, with librbd's threads, which are
most of it, but without its start and its connecting; the generator's is not in it, as a guest's would not be."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cleat_guest import BenchError
from cleat_guest.ceph import POOL, USER, MiniCeph

from cleat_bench.engines import Engine
from cleat_bench.lab import Lab, Pace
from cleat_bench.measure_qsd import cost_of
from cleat_bench.stats import Figure, figure, interleave, ratio

BARS = ("rbd_pipeline_vs_fio_qd16_ratio", "rbd_vhost_vs_fio_qd1_ratio", "rbd_vhost_vs_fio_qd16_ratio")
SUBJECTS = {1: ("vhost", "fio"), 16: ("vhost", "pipeline", "fio")}  # requests in flight -> who is measured
CPU_DEPTH = 16
READ_PERCENT = 50
IMAGES, IMAGE_MIB = {"fio": "bench", "vhost": "vhost"}, 64
CLUSTER_S = 12
RUN_FACTOR = 2  # runs are longer than others': a cluster is noisy
START_S = 0.3  # of a process that connects, about
FIO_STARTS = 3  # that are timed
TIMEOUT_S = 120

Run = dict[str, float]  # "iops" and "cpu_us"


def seconds(pace: Pace) -> float:
    runs = sum(len(subjects) for subjects in SUBJECTS.values()) * _rounds(pace)
    return CLUSTER_S + runs * (RUN_FACTOR * pace.run_s + START_S)


def _rounds(pace: Pace) -> int:
    """Fewer than others have: the runs are longer."""
    return max(1, pace.rounds * 4 // 7)


def measure(lab: Lab) -> dict[str, Figure]:
    if not shutil.which("fio"):
        raise BenchError("fio is missing: 'make setup' installs it")
    figures: dict[str, Figure] = {}
    with MiniCeph(lab.path("ceph"), lab.log_dir) as ceph:
        conf = _client_conf(lab, ceph)
        for image in IMAGES.values():
            _fill(ceph, image)
        start_cpu_s = statistics.median(_run_fio(lab, conf, 1, "--number_ios=1")[1] for _ in range(FIO_STARTS))
        with _engine(lab, conf) as engine:
            for depth, names in SUBJECTS.items():
                run = {"vhost": lambda depth=depth: _vhost(lab, engine, depth),
                       "pipeline": lambda depth=depth: _pipeline(lab, conf, depth),
                       "fio": lambda depth=depth: _fio(lab, conf, depth, start_cpu_s)}
                runs = interleave({name: run[name] for name in names}, _rounds(lab.pace))
                figures |= figures_of(depth, runs)
    return figures


def figures_of(depth: int, runs: dict[str, list[Run]]) -> dict[str, Figure]:
    """Ratios are of our IOPS over fio's, and of our CPU a request over fio's."""
    figures = {}
    for name, found in runs.items():
        figures[f"rbd_{name}_qd{depth}_iops"] = figure([run["iops"] for run in found], "1/s")
        figures[f"rbd_{name}_qd{depth}_cpu_us"] = figure([run["cpu_us"] for run in found], "us")
        if name == "fio":
            continue
        figures[f"rbd_{name}_vs_fio_qd{depth}_ratio"] = _over_fio(runs, name, "iops")
        if depth == CPU_DEPTH:
            part = "" if name == "pipeline" else f"{name}_"
            figures[f"rbd_{part}cpu_per_io_ratio"] = _over_fio(runs, name, "cpu_us")
    return figures


def _over_fio(runs: dict[str, list[Run]], name: str, what: str) -> Figure:
    return ratio([run[what] for run in runs[name]], [run[what] for run in runs["fio"]])


def _client_conf(lab: Lab, ceph: MiniCeph) -> str:
    """The cluster's, for clients without a cache."""
    path = lab.path("client.conf")
    with open(ceph.conf, encoding="utf-8") as original, open(path, "w", encoding="utf-8") as changed:
        changed.write(original.read().replace("[client]\n", "[client]\nrbd cache = false\n"))
    return path


def _fill(ceph: MiniCeph, image: str) -> None:
    """Written through, so that reads find data."""
    ceph.create_image(image, f"{IMAGE_MIB}M")
    ceph.rbd("bench", "--io-type", "write", "--io-size", "1M", "--io-pattern", "seq", "--io-total", f"{IMAGE_MIB}M",
             f"{POOL}/{image}")


@contextmanager
def _engine(lab: Lab, conf: str) -> Iterator[Engine]:
    with Engine(lab, "rbd-engine", pinned=False) as engine:
        engine.ctl("cluster", "create", "ceph", "--conf-file", conf, "--user", USER)
        rbd = {"cluster": "clusters/ceph", "pool": POOL, "image": IMAGES["vhost"]}
        engine.add(["rbd"], "blk", {"rbd": rbd}, IMAGE_MIB << 20)
        yield engine


def _vhost(lab: Lab, engine: Engine, depth: int) -> Run:
    options = ("--depth", str(depth), "--read-percent", str(READ_PERCENT), "--wait", "call")

    def load(**more: float) -> dict[str, Any]:
        return engine.load(f"rbd vhost qd{depth}", "rbd", "blk", *options, pinned=False, **more)

    cost = cost_of(engine.pid, load, RUN_FACTOR * lab.pace.run_s)
    return {"iops": cost["iops"], "cpu_us": cost["cpu_ns"] / 1e3}


def _pipeline(lab: Lab, conf: str, depth: int) -> Run:
    command = [os.path.join(lab.bin_dir, "cleat-rbd-load"), "--conf", conf, "--image", IMAGES["fio"], "--size",
               str(IMAGE_MIB << 20), "--read-percent", str(READ_PERCENT), "--depth", str(depth), "--seconds",
               f"{RUN_FACTOR * lab.pace.run_s:g}"]
    result = json.loads(_call(command))
    lab.record(f"rbd pipeline qd{depth}", command, result)
    if result["failed"]:
        raise BenchError(f"cleat-rbd-load: {result['failed']} requests failed")
    return {"iops": result["iops"], "cpu_us": result["cpu_us_per_io"]}


def _fio(lab: Lab, conf: str, depth: int, start_cpu_s: float) -> Run:
    """fio gives CPU time of its own threads alone, so it is the process's; `start_cpu_s`: of one that does next to nothing."""
    job, cpu_s = _run_fio(lab, conf, depth, "--time_based", f"--runtime={RUN_FACTOR * lab.pace.run_s:g}")
    parts = (job["read"], job["write"])
    return {"iops": sum(part["iops"] for part in parts),
            "cpu_us": (cpu_s - start_cpu_s) / max(sum(part["total_ios"] for part in parts), 1) * 1e6}


def _run_fio(lab: Lab, conf: str, depth: int, *until: str) -> tuple[dict[str, Any], float]:
    """Its report, and the CPU seconds that it took."""
    command = ["fio", "--name=r", "--ioengine=rbd", f"--clientname={USER}", f"--pool={POOL}", f"--rbdname={IMAGES['fio']}",
               "--bs=4k", "--rw=randrw", f"--rwmixread={READ_PERCENT}", f"--iodepth={depth}", *until, "--norandommap",
               "--thread", "--output-format=json"]
    output, cpu_s = _timed(command, dict(os.environ, CEPH_CONF=conf))
    job = json.loads(output[output.index("{"):])["jobs"][0]
    lab.record(f"rbd fio qd{depth}", command, {"cpu_s": cpu_s, "job": job})
    if job["error"]:
        raise BenchError(f"fio's rbd engine: error {job['error']}")
    return job, cpu_s


def _timed(command: list[str], environment: dict[str, str] | None = None) -> tuple[str, float]:
    """What it said, and the CPU seconds that it took with all its threads."""
    before = os.times()
    output = _call(command, environment)
    after = os.times()
    return output, (after.children_user + after.children_system - before.children_user - before.children_system)


def _call(command: list[str], environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment,
                              timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise BenchError(f"{command[0]} is missing: run 'make setup' and 'make build'") from None
    except subprocess.TimeoutExpired:
        raise BenchError(f"{' '.join(command)}: no end after {TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout

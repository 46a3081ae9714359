# SPDX-License-Identifier: Apache-2.0
"""What open images of a Ceph cluster take, and what it costs them to share a client.

- 500 images that are open, owned and were written to, in one process: a run of rbd_scale_test.cc, on a cluster of its own. Memory
  in use is what the C library's heap has handed out beyond what it has again when all are closed; one run, since it hardly varies.
- 128 images with 1, 4, 16, 32 and 64 of them a client: cleat-rbd-load opens them all at once, and owns them. In turns.
- a few images under load, each with a client of its own or sharing them: the same program, 50 % random reads and 50 % random
  writes of 4 KiB. In turns."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

from cleat_guest import BenchError
from cleat_guest.ceph import POOL, MiniCeph

from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure, figure, interleave, ratio

IMAGES = 500
TIMEOUT_S = 180
SHARED_IMAGES, PER_CLIENT = 128, (1, 4, 16, 32, 64)
LOADED = {4: (1, 4), 16: (1, 4, 16)}  # images under load -> images a client; the first of these is what others are compared with
IMAGE_MIB, DEPTH, READ_PERCENT = 8, 8, 50
RUN_FACTOR = 2  # runs are longer than others': a cluster is noisy
CLUSTER_S, OPEN_S, START_S = 30, 2.5, 0.5  # about: the cluster with its images; opening and closing 128; a load's start and end

Run = dict[str, Any]  # what cleat-rbd-load says
SAID = re.compile(r"^round 0: (?P<images>\d+) images on \d+ clients, (?P<ms>\d+) ms, (?P<threads>\d+) threads, "
                  r"(?P<descriptors>\d+) descriptors, (?P<resident>\d+) MiB \((?P<resident_before>\d+) before\), "
                  r"heap (?P<heap>\d+) KiB \((?P<heap_after>\d+) after\)$", re.MULTILINE)


def seconds(pace: Pace) -> float:
    del pace  # it takes what it takes
    return 15


def measure(lab: Lab) -> dict[str, Figure]:
    program = os.path.join(lab.bin_dir, "..", "tests", "rbd_test")
    output = _run([program, "--of", "rbd_scale_test.cc"], dict(os.environ, CLEAT_CEPH_IMAGES=str(IMAGES), CLEAT_CEPH_ROUNDS="1"))
    lab.record(f"{IMAGES} images", [program], output.splitlines())
    return figures_of(output)


def seconds_sharing(pace: Pace) -> float:
    loads = sum(len(counts) for counts in LOADED.values())
    return CLUSTER_S + pace.rounds * (len(PER_CLIENT) * OPEN_S + loads * (RUN_FACTOR * pace.run_s + START_S))


def measure_sharing(lab: Lab) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    with MiniCeph(lab.path("ceph"), lab.log_dir) as ceph:
        for number in range(SHARED_IMAGES):
            ceph.create_image(f"n{number}", f"{IMAGE_MIB}M")
        for number in range(max(LOADED)):  # written through, so that reads find data
            ceph.rbd("bench", "--io-type", "write", "--io-size", "1M", "--io-pattern", "seq", "--io-total", f"{IMAGE_MIB}M",
                     f"{POOL}/n{number}")
        opened = interleave({str(count): lambda count=count: _call(lab, ceph, SHARED_IMAGES, count, 0, 0)
                             for count in PER_CLIENT}, lab.pace.rounds)
        figures |= open_figures(opened)
        for loaded, counts in LOADED.items():
            runs = interleave({str(count): lambda count=count, loaded=loaded: _call(lab, ceph, loaded, count, loaded,
                                                                                   RUN_FACTOR * lab.pace.run_s)
                               for count in counts}, lab.pace.rounds)
            figures |= load_figures(loaded, runs)
    return figures


def _call(lab: Lab, ceph: MiniCeph, images: int, per_client: int, loaded: int, run_s: float) -> Run:
    command = [os.path.join(lab.bin_dir, "cleat-rbd-load"), "--conf", ceph.conf, "--image", "n", "--images", str(images),
               "--images-per-client", str(per_client), "--loaded", str(loaded), "--depth", str(DEPTH), "--read-percent",
               str(READ_PERCENT), "--size", str(IMAGE_MIB << 20), "--seconds", f"{run_s:g}"]
    result: Run = json.loads(_run(command, dict(os.environ)))
    lab.record(f"{images} images, {per_client} a client, {loaded} loaded", command, result)
    if result["failed"]:
        raise BenchError(f"cleat-rbd-load: {result['failed']} requests failed")
    return result


def open_figures(runs: dict[str, list[Run]]) -> dict[str, Figure]:
    """By images a client."""
    figures = {}
    for count, found in runs.items():
        name = f"rbd_{SHARED_IMAGES}_images_{count}_a_client"
        for what, key, unit, scale in (("open_s", "open_s", "s", 1.0), ("close_s", "close_s", "s", 1.0),
                                       ("threads", "threads", "", 1.0), ("descriptors", "descriptors", "", 1.0),
                                       ("heap_mib", "heap_kib", "MiB", 1024.0), ("resident_mib", "resident_kib", "MiB", 1024.0)):
            figures[f"{name}_{what}"] = figure([run[key] / scale for run in found], unit)
    return figures


def load_figures(loaded: int, runs: dict[str, list[Run]]) -> dict[str, Figure]:
    """Likewise; ratios are over those of the first, in each of whose rounds every image has a client of its own."""
    figures = {}
    own = next(iter(runs.values()))
    for count, found in runs.items():
        name = f"rbd_{loaded}_loaded_{count}_a_client"
        for what, key, unit in (("iops", "iops", "1/s"), ("cpu_us", "cpu_us_per_io", "us")):
            figures[f"{name}_{what}"] = figure([run[key] for run in found], unit)
            if found is not own:
                figures[f"{name}_{what}_ratio"] = ratio([run[key] for run in found], [run[key] for run in own])
    return figures


def _run(command: list[str], environment: dict[str, str]) -> str:
    program = command[0]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment,
                              timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise BenchError(f"{program} is missing: run 'make bench'") from None
    except subprocess.TimeoutExpired:
        raise BenchError(f"{program}: no end after {TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise BenchError(f"{program} ended with status {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


def figures_of(text: str) -> dict[str, Figure]:
    """From what the program says of its first round."""
    found = SAID.search(text)
    if found is None or int(found["images"]) != IMAGES:
        raise BenchError(f"rbd_scale_test said nothing of {IMAGES} images: {text.strip()[-400:]}")
    said = {name: int(value) for name, value in found.groupdict().items()}
    one = {"mib": ((said["heap"] - said["heap_after"]) / 1024, "MiB"),
           "resident_mib": (said["resident"] - said["resident_before"], "MiB"), "threads": (said["threads"], ""),
           "descriptors": (said["descriptors"], ""), "s": (said["ms"] / 1000, "s")}
    return {f"rbd_{IMAGES}_images_{name}": figure([value], unit) for name, (value, unit) in one.items()}

# SPDX-License-Identifier: Apache-2.0
"""What 500 images of a Ceph cluster take that are open, owned and were written to, in one process: a run of rbd_scale_test, on
a cluster of its own. Memory in use is what the C library's heap has handed out beyond what it has again when all are
closed; one run, since it hardly varies."""

from __future__ import annotations

import os
import re
import subprocess

from cleat_guest import BenchError

from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure, figure

IMAGES = 500
TIMEOUT_S = 180
SAID = re.compile(r"^round 0: (?P<images>\d+) images on \d+ clients, (?P<ms>\d+) ms, (?P<threads>\d+) threads, "
                  r"(?P<descriptors>\d+) descriptors, (?P<resident>\d+) MiB \((?P<resident_before>\d+) before\), "
                  r"heap (?P<heap>\d+) KiB \((?P<heap_after>\d+) after\)$", re.MULTILINE)


def seconds(pace: Pace) -> float:
    del pace  # it takes what it takes
    return 15


def measure(lab: Lab) -> dict[str, Figure]:
    program = os.path.join(lab.bin_dir, "..", "tests", "rbd_scale_test")
    environment = dict(os.environ, CLEAT_CEPH_IMAGES=str(IMAGES), CLEAT_CEPH_ROUNDS="1")
    try:
        done = subprocess.run([program], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment,
                              timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise BenchError(f"{program} is missing: run 'make build'") from None
    except subprocess.TimeoutExpired:
        raise BenchError(f"{program}: no end after {TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise BenchError(f"{program} ended with status {done.returncode}: {done.stdout.strip()[-400:]}")
    lab.record(f"{IMAGES} images", [program], done.stdout.splitlines())
    return figures_of(done.stdout)


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

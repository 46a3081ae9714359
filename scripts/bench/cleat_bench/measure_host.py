# SPDX-License-Identifier: Apache-2.0
"""A host with 3,072 disks: attaching them, idling, waking up, 64 of them active. The program cleat-host-bench does it all
and writes figures in the shape of results.json; they are taken over as they are."""

from __future__ import annotations

import os
import subprocess

from cleat_guest import BenchError

from cleat_bench.lab import Lab, Pace
from cleat_bench.results import read_figures
from cleat_bench.stats import Figure

BARS = ("active_64_of_3072_ratio", "idle_3072_cpu_percent", "idle_disk_kib", "idle_wake_us_p50", "attach_3072_serial_s",
        "attach_3072_parallel_s")
PROGRAM = "cleat-host-bench"
SECONDS, QUICK_SECONDS = 90.0, 8.0  # about
TIMEOUT_S = 600


def seconds(pace: Pace) -> float:
    return SECONDS if pace.run_s >= 1 else QUICK_SECONDS


def measure(lab: Lab) -> dict[str, Figure]:
    program = os.path.join(lab.bin_dir, PROGRAM)
    if not os.path.exists(program):
        raise BenchError(f"{program} is missing, and with it {', '.join(BARS)}: run 'make build'")
    out, log = lab.path("host.json"), os.path.join(lab.log_dir, "host.log")
    command = [program, "--bin-dir", lab.bin_dir, "--json", out, "--engine-core", str(lab.engine_core), "--generator-core",
               str(lab.generator_core), *(["--quick"] if lab.quick else [])]
    with open(log, "wb") as output:
        status = _run(command, output)
    if status != 0:
        raise BenchError(f"{PROGRAM} ended with status {status}; what it said is in {log}")
    with open(out, encoding="utf-8") as file:
        figures = read_figures(file.read())
    lab.record("host", command, {name: figure.as_json() for name, figure in figures.items()})
    return figures


def _run(command: list[str], output: object) -> int:
    """Asked to end, not killed, when this is interrupted or it takes too long: it has processes of its own to end."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{PROGRAM}: no end after {TIMEOUT_S} s") from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()

# SPDX-License-Identifier: Apache-2.0
"""A host with 3,072 disks: attaching them, idling, waking up, 64 of them active; and with as many disks of a pool. The program
cleat-host-bench does it all."""

from __future__ import annotations

from cleat_bench import figure_program
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure

BARS = ("active_64_of_3072_ratio", "idle_3072_cpu_percent", "idle_disk_kib", "idle_wake_us_p50", "attach_3072_serial_s",
        "attach_3072_parallel_s", "get_p99_ms_while_creating")
POOL_BARS = ("pool_create_ms_p50", "pool_3072_attach_s")
SECONDS, QUICK_SECONDS = 90.0, 8.0  # about
POOL_SECONDS, POOL_QUICK_SECONDS = 30.0, 3.0
TIMEOUT_S = 600


def seconds(pace: Pace) -> float:
    return SECONDS if pace.run_s >= 1 else QUICK_SECONDS


def measure(lab: Lab) -> dict[str, Figure]:
    return run(lab, "host", "serial,parallel", BARS)


def pool_seconds(pace: Pace) -> float:
    return POOL_SECONDS if pace.run_s >= 1 else POOL_QUICK_SECONDS


def measure_pool(lab: Lab) -> dict[str, Figure]:
    return run(lab, "pool", "pool", POOL_BARS)


def run(lab: Lab, name: str, parts: str, bars: tuple[str, ...]) -> dict[str, Figure]:
    arguments = ("--generator-core", str(lab.generator_core), "--only", parts)
    return figure_program.run(lab, "cleat-host-bench", arguments, bars, TIMEOUT_S, name)

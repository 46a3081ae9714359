# SPDX-License-Identifier: Apache-2.0
"""A host with 3,072 disks: attaching them, idling, waking up, 64 of them active. The program cleat-host-bench does it all."""

from __future__ import annotations

from cleat_bench import figure_program
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure

BARS = ("active_64_of_3072_ratio", "idle_3072_cpu_percent", "idle_disk_kib", "idle_wake_us_p50", "attach_3072_serial_s",
        "attach_3072_parallel_s", "get_p99_ms_while_creating")
SECONDS, QUICK_SECONDS = 90.0, 8.0  # about
TIMEOUT_S = 600


def seconds(pace: Pace) -> float:
    return SECONDS if pace.run_s >= 1 else QUICK_SECONDS


def measure(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, "cleat-host-bench", ("--generator-core", str(lab.generator_core)), BARS, TIMEOUT_S)

# SPDX-License-Identifier: Apache-2.0
"""The engine killed and started again: until 100 disks are served again, and the longest silence that guests under load
see. The program cleat-crash-bench does it all; a guest that finds its disk wrong makes it fail."""

from __future__ import annotations

from cleat_bench import figure_program
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure

BARS = ("restart_100_disks_ms",)
SECONDS, QUICK_SECONDS = 35.0, 5.0  # about
TIMEOUT_S = 300


def seconds(pace: Pace) -> float:
    return SECONDS if pace.run_s >= 1 else QUICK_SECONDS


def measure(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, "cleat-crash-bench", (), BARS, TIMEOUT_S)

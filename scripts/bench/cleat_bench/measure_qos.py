# SPDX-License-Identifier: Apache-2.0
"""What limits cost that do not bind, and how well those are kept that do, on one reactor without virtqueues. The program
cleat-qos-bench does it all."""

from __future__ import annotations

from cleat_bench import figure_program
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure

BARS = ("qos_cost_ns_active_10_of_3072", "qos_cost_ns_active_all_of_3072", "qos_error_percent_max", "qos_jain_min",
        "qos_3072_delivered_percent")
SECONDS, QUICK_SECONDS = 25.0, 3.0  # about
TIMEOUT_S = 180


def seconds(pace: Pace) -> float:
    return SECONDS if pace.run_s >= 1 else QUICK_SECONDS


def measure(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, "cleat-qos-bench", (), BARS, TIMEOUT_S)

# SPDX-License-Identifier: Apache-2.0
"""What the order of RDMA READs is worth, in a model of an adapter and in virtual time. The program cleat-rdma-bench does it all."""

from __future__ import annotations

from cleat_bench import figure_program
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure

BARS = ("rdma_credit_use_percent", "rdma_read_throughput_vs_spdk_policy", "rdma_write_p99_vs_spdk_policy")
SECONDS, QUICK_SECONDS = 20.0, 3.0  # about
TIMEOUT_S = 300


def seconds(pace: Pace) -> float:
    return SECONDS if pace.run_s >= 1 else QUICK_SECONDS


def measure(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, "cleat-rdma-bench", (), BARS, TIMEOUT_S)

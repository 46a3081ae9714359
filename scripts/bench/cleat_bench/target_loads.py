# SPDX-License-Identifier: Apache-2.0
"""The loads of tests/bench/target_cost whose instructions are counted, and what the bar says of them."""

from __future__ import annotations

from collections.abc import Mapping

DEPTHS = (1, 8, 32)  # reads a turn
LOADS: dict[str, list[str]] = {
    f"{transport}_target_qd{depth}": ["--transport", transport, "--depth", str(depth), "--no-flow-control"]
    for depth in DEPTHS for transport in ("rdma", "tcp")
}


def rdma_over_tcp(counts: Mapping[str, float]) -> float:
    """The worst of the depths, of instructions a read by load."""
    return max(counts[f"rdma_target_qd{depth}"] / counts[f"tcp_target_qd{depth}"] for depth in DEPTHS)

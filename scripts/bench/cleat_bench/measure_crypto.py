# SPDX-License-Identifier: Apache-2.0
"""What encryption costs above the cipher.

tests/bench/crypto_loop sends requests of 4 KiB through a null disk's pipeline with and without the filter, and does the
same OpenSSL calls on the same memory in a bare loop, in turns of half a millisecond on one core. The excess of each round:

    (encrypted - plain) / bare

1 would be a filter that costs nothing but what the cipher costs.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from cleat_guest import BenchError

from cleat_bench.lab import RUN_TIMEOUT_S, Lab, Pace
from cleat_bench.stats import Figure, figure, interleave, ratio

# Name of the figures -> direction and bytes of a data unit.
SUBJECTS = {"crypto_write_4k": ("write", 4096), "crypto_read_4k": ("read", 4096), "crypto_write_512": ("write", 512),
            "crypto_read_512": ("read", 512)}
BARS = ("crypto_write_4k_excess", "crypto_read_4k_excess", "crypto_write_512_excess")


def runs(pace: Pace) -> float:
    return pace.rounds * len(SUBJECTS)


def measure(lab: Lab) -> dict[str, Figure]:
    found = interleave({name: lambda name=name: one_round(lab, name) for name in SUBJECTS}, lab.pace.rounds)
    figures: dict[str, Figure] = {}
    for name, rounds in found.items():
        figures |= excess(name, rounds)
    return figures


def one_round(lab: Lab, name: str) -> dict[str, Any]:
    op, unit = SUBJECTS[name]
    program = Path(lab.bin_dir).parent / "tests" / "crypto_loop"
    command = [str(program), "--op", op, "--unit", str(unit), "--rounds", "1", "--round-ms",
               str(max(1, round(lab.pace.run_s * 1e3)))]
    if not program.exists():
        raise BenchError(f"{program} is missing: run 'make bench'")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_TIMEOUT_S,
                          check=False, preexec_fn=lambda: os.sched_setaffinity(0, {lab.engine_core}))
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr.strip()}")
    result = json.loads(done.stdout)["rounds"][0]
    lab.record(name, command, result)
    return result


def excess(name: str, rounds: list[dict[str, float]]) -> dict[str, Figure]:
    """`rounds`: what crypto_loop says of each."""
    return {f"{name}_excess": ratio([one["encrypted_ns"] - one["plain_ns"] for one in rounds],
                                    [one["bare_ns"] for one in rounds]),
            f"{name}_ns": figure([one["encrypted_ns"] for one in rounds], "ns"),
            f"{name}_bare_ns": figure([one["bare_ns"] for one in rounds], "ns")}

# SPDX-License-Identifier: Apache-2.0
"""What many active controllers cost one reactor: null disks, one queue and 32 requests in flight on each, all of 64 or
256 controllers active against one alone.

Depth 32 on every controller, the one alone too: nobody waits for requests to come, so the ratio is of what a request
costs. All 256 are attached and connected in the runs with 64 and 256. The one alone is on an engine of its own: idle
neighbours may cost nothing either."""

from __future__ import annotations

from typing import Any

from cleat_bench.engines import NULL, Engine
from cleat_bench.lab import Lab, Pace, generator_idle_percent
from cleat_bench.stats import Figure, figure, interleave, ratio

Result = dict[str, Any]

BARS = (64, 256)
OTHERS = (1, 2, 4, 8, 16, 32, 128)
OTHER_ROUNDS = 1
DEPTH = "32"
DISK_BYTES = 64 << 20


def runs(pace: Pace) -> float:
    # Connecting 256 controllers takes about as long as a run.
    return 2 * (pace.rounds * (1 + len(BARS)) + min(OTHER_ROUNDS, pace.rounds) * (1 + len(OTHERS)))


def measure(lab: Lab) -> dict[str, Figure]:
    most = max(BARS)
    names = [f"c{number}" for number in range(most)]
    with Engine(lab, "alone") as alone, Engine(lab, "crowd") as crowd:
        alone.add(names[:1], "blk", NULL, DISK_BYTES)
        crowd.add(names, "blk", NULL, DISK_BYTES)

        def active(count: int) -> Result:
            return lab.load(f"{count} of {most} active", "--listen", crowd.socket("c{}"), "--devices", f"0-{most - 1}",
                            "--active", str(count), "--depth", DEPTH)

        def one() -> Result:
            return alone.load("1 alone", names[0], "blk", "--depth", DEPTH)

        def compare(counts: tuple[int, ...], rounds: int) -> dict[str, Figure]:
            subjects = {"alone": one} | {str(count): lambda count=count: active(count) for count in counts}
            return active_figures(interleave(subjects, rounds))

        return compare(OTHERS, min(OTHER_ROUNDS, lab.pace.rounds)) | compare(BARS, lab.pace.rounds)


def active_figures(runs: dict[str, list[Result]]) -> dict[str, Figure]:
    iops = {name: [result["iops"] for result in results] for name, results in runs.items()}
    figures = {"active_alone_iops": figure(iops["alone"], "1/s")}
    for count, results in runs.items():
        if count == "alone":
            continue
        figures[f"active_{count}_ratio"] = ratio(iops[count], iops["alone"])
        figures[f"active_{count}_generator_idle_percent"] = figure([generator_idle_percent(one) for one in results], "%")
    return figures

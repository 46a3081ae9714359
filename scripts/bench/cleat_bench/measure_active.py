# SPDX-License-Identifier: Apache-2.0
"""What many active controllers cost one reactor: null disks, one queue and 32 requests in flight on each, all of 64 or
256 controllers active against one alone.

Depth 32 on every controller, the one alone too: nobody waits for requests to come, so the ratio is of what a request
costs. All 256 are attached and connected in the runs with 64 and 256. The one alone is on an engine of its own: idle
neighbours may cost nothing either."""

from __future__ import annotations

from cleat_bench.engines import NULL, Engine
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure, figure, interleave, ratio

BARS = (64, 256)
OTHERS = (1, 2, 4, 8, 16, 32, 128)
OTHER_ROUNDS = 2
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

        def active(count: int) -> float:
            return lab.load(f"{count} of {most} active", "--listen", crowd.socket("c{}"), "--devices", f"0-{most - 1}",
                            "--active", str(count), "--depth", DEPTH)["iops"]

        def one() -> float:
            return alone.load("1 alone", names[0], "blk", "--depth", DEPTH)["iops"]

        def compare(counts: tuple[int, ...], rounds: int) -> dict[str, Figure]:
            iops = interleave({"alone": one} | {str(count): lambda count=count: active(count) for count in counts}, rounds)
            found = {f"active_{count}_ratio": ratio(iops[str(count)], iops["alone"]) for count in counts}
            found["active_alone_iops"] = figure(iops["alone"], "1/s")
            return found

        return compare(OTHERS, min(OTHER_ROUNDS, lab.pace.rounds)) | compare(BARS, lab.pace.rounds)

# SPDX-License-Identifier: Apache-2.0
"""What counting and timing every request costs: the engine as it is, against one that has counters and stage stamps
compiled out (CMake's CLEAT_COUNTERS=OFF), on the same null disk, the engine being the bottleneck."""

from __future__ import annotations

import os
from contextlib import ExitStack

from cleat_guest import BenchError

from cleat_bench.engines import NULL, Engine
from cleat_bench.lab import Lab, Pace, ns_per_request
from cleat_bench.stats import Figure, figure, interleave

DEPTHS = (32, 1)
# The difference of two nearly equal times: it takes more rounds to see it.
ROUNDS_FACTOR = 2


def runs(pace: Pace) -> float:
    return 2 * len(DEPTHS) * ROUNDS_FACTOR * pace.rounds


def measure(lab: Lab) -> dict[str, Figure]:
    if not os.path.exists(os.path.join(lab.uncounted_bin_dir, "cleat-engine")):
        raise BenchError(f"{lab.uncounted_bin_dir}/cleat-engine is missing: 'make bench' builds it")
    with ExitStack() as stack:
        engines = {"on": stack.enter_context(Engine(lab, "sight-on")),
                   "off": stack.enter_context(Engine(lab, "sight-off", engine_bin_dir=lab.uncounted_bin_dir))}
        for engine in engines.values():
            engine.add(["d"], "blk", NULL)

        def load(which: str, depth: int) -> float:
            return ns_per_request(engines[which].load(f"sight {which}", "d", "blk", "--depth", str(depth)))

        figures: dict[str, Figure] = {}
        for depth in DEPTHS:
            ns = interleave({which: lambda which=which: load(which, depth) for which in engines},
                            ROUNDS_FACTOR * lab.pace.rounds)
            name = "sight_cost_percent" if depth == 32 else f"sight_cost_qd{depth}_percent"
            figures[name] = figure([100 * (on / off - 1) for on, off in zip(ns["on"], ns["off"])], "%")
            figures[f"blk_null_nosight_qd{depth}_ns"] = figure(ns["off"], "ns")
        return figures

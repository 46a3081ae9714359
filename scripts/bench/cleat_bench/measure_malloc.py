# SPDX-License-Identifier: Apache-2.0
"""What a memory disk costs above its copies.

A request on a memory disk is a request on a null disk plus a copy. The same copies are done in a bare loop (cleat-perf
copy-loop) over equal memory: a memfd as large as the disk, mapped shared, all pages present, blocks drawn at random, as
many buffers as requests are in flight. That loop has nothing else to do, so it is the strictest comparison: the ring's
work of an engine could not be hidden behind a slower generator there, as it could in the ring loop. The excess of each
round:

    (malloc - null) - 1.05 x bare copy
"""

from __future__ import annotations

from typing import Any

from cleat_bench.engines import DISK_BYTES, MEMORY, NULL, Engine
from cleat_bench.lab import Lab, Pace, ns_per_request
from cleat_bench.stats import Figure, figure, interleave

ALLOWED = 1.05
BAR_DEPTH = 32
OTHER_DEPTHS = (1, 128)
OTHER_ROUNDS = 2
FILL_S = 20.0  # at most; the filling ends by its number of requests


def runs(pace: Pace) -> float:
    return 4 * pace.rounds + min(OTHER_ROUNDS, pace.rounds) * (len(OTHER_DEPTHS) + 1) + 2


def measure(lab: Lab) -> dict[str, Figure]:
    with Engine(lab, "malloc-engine") as engine:
        for controller, kind, backend in (("null", "blk", NULL), ("malloc", "blk", MEMORY), ("scsi", "scsi", MEMORY)):
            engine.add([controller], kind, backend)
        for controller, kind in (("malloc", "blk"), ("scsi", "scsi")):
            fill(engine, controller, kind)

        def load(controller: str, depth: int, kind: str = "blk") -> float:
            return ns_per_request(engine.load(f"{controller} qd{depth}", controller, kind, "--depth", str(depth)))

        def bare() -> dict[str, Any]:
            return lab.tool("bare copies", "copy-loop", "--core", str(lab.engine_core), "--disk", str(DISK_BYTES),
                            "--depth", str(BAR_DEPTH), "--time", f"{lab.pace.run_s:g}")

        found = interleave({"null": lambda: load("null", BAR_DEPTH), "malloc": lambda: load("malloc", BAR_DEPTH),
                            "bare": bare}, lab.pace.rounds)
        figures = excess(found["null"], found["malloc"], found["bare"])
        others = interleave({f"blk_malloc_qd{depth}": lambda depth=depth: load("malloc", depth) for depth in OTHER_DEPTHS}
                            | {"scsi_malloc_qd32": lambda: load("scsi", BAR_DEPTH, "scsi")},
                            min(OTHER_ROUNDS, lab.pace.rounds))
    return figures | {f"{name}_ns": figure(ns, "ns") for name, ns in others.items()}


def fill(engine: Engine, controller: str, kind: str) -> None:
    """So that every page is there: the first use of one is the kernel's work, not the engine's."""
    block = 64 << 10
    engine.load(f"fill {controller}", controller, kind, "--pattern", "sequential", "--block-size", str(block), "--mix",
                "write=100", "--depth", "4", "--requests", str(DISK_BYTES // block), run_s=FILL_S, warm_up_s=0)


def excess(null: list[float], malloc: list[float], bare: list[dict[str, Any]]) -> dict[str, Figure]:
    copies = [run["ns_per_copy"] for run in bare]
    extra = [with_copy - without - ALLOWED * copy for with_copy, without, copy in zip(malloc, null, copies)]
    return {"malloc_extra_ns": figure(extra, "ns"), "blk_malloc_qd32_ns": figure(malloc, "ns"),
            "bare_copy_ns": figure(copies, "ns")}

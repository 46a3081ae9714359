# SPDX-License-Identifier: Apache-2.0
"""What the whole pipeline costs without storage behind it: null disks behind blk and scsi, and the bare ring loop beside
them, which says what of it is the machine's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cleat_bench.engines import NULL, Engine
from cleat_bench.lab import Lab, Pace, generator_idle_percent, ns_per_request
from cleat_bench.stats import Figure, figure, interleave, ratio

KINDS = ("blk", "scsi")
BAR_DEPTHS = (1, 32, 128)
OTHER_DEPTHS = (2, 4, 8, 16, 64)
OTHER_ROUNDS = 2
PACKED_DEPTHS = (1, 32)
RING_DEPTHS = "1,32,128"
PERCENTILES = ("p50", "p90", "p99", "p99.9", "p99.99")

Result = dict[str, Any]


def bar_runs(pace: Pace) -> float:
    return pace.rounds * (len(KINDS) * len(BAR_DEPTHS) + 2 * len(BAR_DEPTHS))


def other_runs(pace: Pace) -> float:
    return min(OTHER_ROUNDS, pace.rounds) * len(KINDS) * (len(OTHER_DEPTHS) + len(PACKED_DEPTHS))


def null_name(kind: str, depth: int) -> str:
    """At depth 1 it is a latency, which people know in microseconds; with more in flight the engine's time a request."""
    return f"{kind}_null_qd1_us" if depth == 1 else f"{kind}_null_qd{depth}_ns"


def measure_bars(lab: Lab) -> dict[str, Figure]:
    with null_engine(lab) as engine:
        subjects: dict[str, Callable[[], Result]] = {
            null_name(kind, depth): loader(engine, kind, depth) for kind in KINDS for depth in BAR_DEPTHS}
        subjects["ring"] = lambda: lab.tool("ring", "ring-loop", "--depths", RING_DEPTHS, "--time",
                                            f"{lab.pace.run_s:g}", "--cores", cores_of_ring(lab))
        runs = interleave(subjects, lab.pace.rounds)
    figures = {}
    for kind in KINDS:
        for depth in BAR_DEPTHS:
            figures |= load_figures(null_name(kind, depth), runs[null_name(kind, depth)])
            figures[f"{kind}_null_qd{depth}_generator_idle_percent"] = figure(
                [generator_idle_percent(result) for result in runs[null_name(kind, depth)]], "%")
        figures |= percentile_figures(f"{kind}_null_qd1", runs[null_name(kind, 1)])
    return figures | ring_figures(runs["ring"]) | over_ring(runs)


def measure_others(lab: Lab) -> dict[str, Figure]:
    """The rest of the curves, and packed rings: nothing hangs on them, so fewer rounds do."""
    with null_engine(lab) as engine:
        subjects = {null_name(kind, depth): loader(engine, kind, depth) for kind in KINDS for depth in OTHER_DEPTHS}
        for kind in KINDS:
            for depth in PACKED_DEPTHS:
                subjects[null_name(f"{kind}_packed", depth)] = loader(engine, kind, depth, "--packed")
        runs = interleave(subjects, min(OTHER_ROUNDS, lab.pace.rounds))
    figures = {}
    for name, results in runs.items():
        figures |= load_figures(name, results)
    return figures


@contextmanager
def null_engine(lab: Lab) -> Iterator[Engine]:
    """With a null disk behind a controller of each kind, which has the kind's name."""
    with Engine(lab, f"{lab.measurement}-engine") as engine:
        for kind in KINDS:
            engine.add([kind], kind, NULL)
        yield engine


def loader(engine: Engine, kind: str, depth: int, *options: str) -> Callable[[], Result]:
    return lambda: engine.load(f"{kind} null", kind, kind, "--depth", str(depth), *options)


def cores_of_ring(lab: Lab) -> str:
    """The generator's first, as ring-loop has it; the bare device takes the engine's place."""
    return f"{lab.generator_core},{lab.engine_core}"


def load_figures(name: str, results: list[Result]) -> dict[str, Figure]:
    scale, unit = (1e-3, "us") if name.endswith("_us") else (1, "ns")
    return {name: figure([ns_per_request(result) * scale for result in results], unit)}


def percentile_figures(prefix: str, results: list[Result]) -> dict[str, Figure]:
    return {f"{prefix}_{percentile}_us": figure([result["latency_ns"][percentile] / 1e3 for result in results], "us")
            for percentile in PERCENTILES}


def over_ring(runs: dict[str, list[Result]]) -> dict[str, Figure]:
    """Times the bare ring loop of the same round: what is left when machines - or one virtual machine's moments, whose cores are
    now nearer to each other and now farther - are to be compared."""
    return {f"{kind}_null_qd{depth}_over_ring": ratio([ns_per_request(one) for one in runs[null_name(kind, depth)]],
                                                     [one[f"split_qd{depth}"]["ns_per_request"] for one in runs["ring"]])
            for kind in KINDS for depth in BAR_DEPTHS}


def ring_figures(results: list[Result]) -> dict[str, Figure]:
    """ring_split_qd32_ns and so on."""
    return {f"ring_{name}_ns": figure([result[name]["ns_per_request"] for result in results], "ns")
            for name in results[0]}

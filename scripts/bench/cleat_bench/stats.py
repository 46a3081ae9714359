# SPDX-License-Identifier: Apache-2.0
"""Runs become figures. Every figure is a median with its spread, never a best or a mean: one disturbed run out of five
does not move it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """What one name in results.json holds."""

    value: float
    unit: str
    spread: float
    runs: tuple[float, ...]

    def as_json(self) -> dict[str, object]:
        return {"value": significant(self.value), "unit": self.unit, "spread": significant(self.spread),
                "runs": [significant(run) for run in self.runs]}


def significant(number: float) -> float:
    """Five digits: what follows is noise, and makes files longer and differences between them harder to read."""
    return float(f"{number:.5g}")


def spread(runs: Sequence[float]) -> float:
    """Half the distance between the quartiles, in the runs' unit: half of all runs are about this near to the median.
    Of fewer than four runs, where quartiles mean nothing, half their range."""
    if len(runs) < 4:
        return (max(runs) - min(runs)) / 2
    low, _, high = statistics.quantiles(runs, n=4, method="inclusive")
    return (high - low) / 2


def figure(runs: Sequence[float], unit: str) -> Figure:
    if not runs:
        raise ValueError("a figure of no runs")
    return Figure(statistics.median(runs), unit, spread(runs), tuple(runs))


def interleave(subjects: dict[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Runs A B, B A, A B, ...: what changes slowly about the machine (its clock, its neighbours) meets all subjects
    alike, and run i of each was next to run i of the others."""
    runs: dict[str, list[T]] = {name: [] for name in subjects}
    for number in range(rounds):
        order = list(subjects) if number % 2 == 0 else list(reversed(subjects))
        for name in order:
            runs[name].append(subjects[name]())
    return runs


def ratio(over: Sequence[float], under: Sequence[float]) -> Figure:
    """Of each round by itself, so that a slow moment of the machine cancels out."""
    if len(over) != len(under):
        raise ValueError(f"{len(over)} runs against {len(under)}: rounds are not complete")
    return figure([a / b for a, b in zip(over, under)], "ratio")

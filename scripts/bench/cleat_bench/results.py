# SPDX-License-Identifier: Apache-2.0
"""The files for programs: results.json, an object name -> {value, unit, spread, runs}, and raw.json with everything that
was run, the machine and the bars."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cleat_bench.bars import BARS
from cleat_bench.stats import Figure


def results_json(figures: dict[str, Figure]) -> str:
    return json.dumps({name: figures[name].as_json() for name in sorted(figures)}, indent=1) + "\n"


def raw_json(machine: dict[str, Any], notes: dict[str, str], runs: list[dict[str, Any]]) -> str:
    bars = {name: {"limit": bar.limit, "at_most": bar.at_most, "meaning": bar.meaning} for name, bar in BARS.items()}
    return json.dumps({"machine": machine, "notes": notes, "bars": bars, "runs": runs}) + "\n"


def read_figures(text: str) -> dict[str, Figure]:
    """Of a file in the shape of results.json; ValueError for any other."""
    figures = {}
    for name, entry in json.loads(text).items():
        try:
            figures[name] = Figure(float(entry["value"]), str(entry["unit"]), float(entry["spread"]),
                                   tuple(float(run) for run in entry["runs"]))
        except (TypeError, KeyError) as error:
            raise ValueError(f"{name} is not {{value, unit, spread, runs}}: {error!r}") from None
    return figures


def write_whole(path: Path, text: str) -> None:
    """Readers see the old file or the new one, also when this is interrupted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)

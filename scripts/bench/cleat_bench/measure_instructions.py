# SPDX-License-Identifier: Apache-2.0
"""Instructions a request, counted by valgrind: the same on every run, where nanoseconds are not."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from cleat_guest import BenchError

from cleat_bench.lab import Lab
from cleat_bench.stats import Figure, figure

GATE = Path(__file__).resolve().parent.parent.parent / "instruction_gate.py"
SECONDS = 20.0  # about, for both builds
TIMEOUT_S = 600


def measure(lab: Lab) -> dict[str, Figure]:
    """Also what hardening costs: the product's build against one that has none (CMake's CLEAT_HARDENING=OFF)."""
    counts = _count(lab, Path(lab.bin_dir).parent)
    unhardened = _count(lab, Path(lab.unhardened_build))
    costs = {name: 100 * (count / unhardened[name] - 1) for name, count in counts.items()}
    return ({f"instructions_{name}": figure([count], "instructions") for name, count in counts.items()}
            | {f"hardening_{name}_percent": figure([cost], "%") for name, cost in costs.items()}
            | {"hardening_cost_percent": figure([max(costs.values())], "%")})


def _count(lab: Lab, build: Path) -> dict[str, float]:
    """Load -> instructions a request."""
    if not (build / "tests" / "device_loop").exists():
        raise BenchError(f"{build}/tests/device_loop is missing: run 'make bench'")
    with tempfile.NamedTemporaryFile(dir=lab.dir) as out:
        done = subprocess.run([sys.executable, str(GATE), str(build), "--json", out.name], capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False)
        counts = Path(out.name).read_text(encoding="utf-8")
    if not counts:
        raise BenchError(f"counting instructions failed: {done.stderr.strip()}")
    return json.loads(counts)

# SPDX-License-Identifier: Apache-2.0
"""Instructions a request, counted by valgrind: the same on every run, where nanoseconds are not."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from cleat_guest import BenchError

from cleat_bench import target_loads
from cleat_bench.lab import Lab
from cleat_bench.stats import Figure, figure

GATE = Path(__file__).resolve().parent.parent.parent / "instruction_gate.py"
DEVICE, TARGET = "device_loop", "target_cost"
SECONDS = 20.0  # about, for both builds
TIMEOUT_S = 600


def measure(lab: Lab) -> dict[str, Figure]:
    """Also what hardening costs a device: the product's build against one that has none (CMake's CLEAT_HARDENING=OFF)."""
    counts = _count(lab, Path(lab.bin_dir).parent, DEVICE, TARGET)
    unhardened = _count(lab, Path(lab.unhardened_build), DEVICE)
    costs = {name: 100 * (counts[name] / count - 1) for name, count in unhardened.items()}
    return ({f"instructions_{name}": figure([count], "instructions") for name, count in counts.items()}
            | {f"hardening_{name}_percent": figure([cost], "%") for name, cost in costs.items()}
            | {"hardening_cost_percent": figure([max(costs.values())], "%"),
               "rdma_target_instructions": figure([target_loads.rdma_over_tcp(counts)], "ratio")})


def _count(lab: Lab, build: Path, *programs: str) -> dict[str, float]:
    """Load -> instructions a request."""
    for program in programs:
        if not (build / "tests" / program).exists():
            raise BenchError(f"{build}/tests/{program} is missing: run 'make bench'")
    with tempfile.NamedTemporaryFile(dir=lab.dir) as out:
        command = [sys.executable, str(GATE), str(build), *(f"--program={program}" for program in programs), "--json", out.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        counts = Path(out.name).read_text(encoding="utf-8")
    if not counts:
        raise BenchError(f"counting instructions failed: {done.stderr.strip()}")
    return json.loads(counts)

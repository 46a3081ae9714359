# SPDX-License-Identifier: Apache-2.0
"""Programs that measure a whole host by themselves, and write figures in the shape of results.json; those are taken over
as they are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from cleat_guest import BenchError

from cleat_bench.lab import Lab
from cleat_bench.results import read_figures
from cleat_bench.stats import Figure


def run(lab: Lab, program: str, options: Sequence[str], bars: Sequence[str], timeout_s: float, name: str = "",
        environment: dict[str, str] | None = None) -> dict[str, Figure]:
    """`bars` would be missing without it. `name`: of the run, unless it is the program's only one. `environment`: besides ours;
    what is not to be seen in its command."""
    name = name or program.removeprefix("cleat-").removesuffix("-bench")
    path = os.path.join(lab.bin_dir, program)
    if not os.path.exists(path):
        raise BenchError(f"{path} is missing, and with it {', '.join(bars)}: run 'make bench'")
    out, log = lab.path(f"{name}.json"), os.path.join(lab.log_dir, f"{name}.log")
    command = [path, "--bin-dir", lab.bin_dir, "--json", out, "--engine-core", str(lab.engine_core), *options,
               *(["--quick"] if lab.quick else [])]
    with open(log, "wb") as output:
        status = _run(command, output, timeout_s, environment or {})
    if status != 0:
        raise BenchError(f"{program} ended with status {status}; what it said is in {log}")
    with open(out, encoding="utf-8") as file:
        figures = read_figures(file.read())
    lab.record(name, command, {figure: figures[figure].as_json() for figure in figures})
    return figures


def _run(command: list[str], output: object, timeout_s: float, environment: dict[str, str]) -> int:
    """Asked to end, not killed, when this is interrupted or it takes too long: it has processes of its own to end."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                               env={**os.environ, **environment})
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{os.path.basename(command[0])}: no end after {timeout_s:.0f} s") from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()

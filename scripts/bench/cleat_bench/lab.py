# SPDX-License-Identifier: Apache-2.0
"""What the measurements share: programs, cores, how long and how often a run is, the load generator, the record of all
that was run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleat_guest import BenchError

SET_UP_S = 0.25  # a run's sockets, memory and handshake, about
STARVED_RUNS_MAX = 2
RUN_TIMEOUT_S = 120  # beyond what a run is to take


@dataclass(frozen=True)
class Pace:
    """How long a run is, and how many rounds of runs make a figure."""

    run_s: float
    warm_up_s: float
    rounds: int

    def seconds(self, runs: float) -> float:
        return runs * (self.run_s + self.warm_up_s + SET_UP_S)


FULL = Pace(run_s=1.0, warm_up_s=0.2, rounds=7)
QUICK = Pace(run_s=0.2, warm_up_s=0.05, rounds=2)


@dataclass
class Lab:
    """Lives as long as the suite runs; removes its folder at the end. One thread."""

    bin_dir: str
    uncounted_bin_dir: str
    unhardened_build: str
    log_dir: str
    engine_core: int
    generator_core: int
    file_dir: Path  # for files that are disks, on a real file system
    pace: Pace
    quick: bool = False
    raw: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)  # for the page: what was chosen
    measurement: str = ""  # whose runs these are, for the record

    def __enter__(self) -> Lab:
        self._stack = ExitStack()
        self.dir = tempfile.mkdtemp(prefix="cleat-")
        self._stack.callback(shutil.rmtree, self.dir, ignore_errors=True)
        os.makedirs(self.log_dir, exist_ok=True)
        return self

    def __exit__(self, *unused: object) -> None:
        self._stack.close()

    def path(self, name: str) -> str:
        return os.path.join(self.dir, name)

    def load(self, subject: str, *options: str, run_s: float | None = None,
             warm_up_s: float | None = None, pinned: bool = True) -> dict[str, Any]:
        """One run of the load generator, on its core if `pinned`; the "result" of what it reports. `options` say which sockets and
        which load. A request that failed makes the figure worthless, and is an error; so is a run in which nothing was answered
        at all, but only when it is the same again: on a shared machine somebody else may have had the core for a second."""
        run_s = self.pace.run_s if run_s is None else run_s
        warm_up_s = self.pace.warm_up_s if warm_up_s is None else warm_up_s
        cores = ("--cores", str(self.generator_core)) if pinned else ()
        for _ in range(STARVED_RUNS_MAX + 1):
            result = self._one_load(subject, (*options, *cores), run_s, warm_up_s)
            if result["requests"] > 0:
                return result
        raise BenchError(f"{subject}: no request was answered, in {STARVED_RUNS_MAX + 1} runs of {run_s:g} s")

    def _one_load(self, subject: str, options: tuple[str, ...], run_s: float, warm_up_s: float) -> dict[str, Any]:
        report = self._perf("run", *options, "--time", f"{run_s:g}", "--warmup", f"{warm_up_s:g}", "--no-progress",
                            "--json", "-", timeout_s=run_s + warm_up_s + RUN_TIMEOUT_S)
        result = report["result"]
        self.record(subject, report["command"], result)
        if result["errors"] > 0:
            raise BenchError(f"{subject}: {result['errors']} of {result['requests']} requests failed; the first: "
                             f"{result['first_error']}")
        return result

    def tool(self, subject: str, command: str, *options: str) -> dict[str, Any]:
        """Another command of the generator that reports JSON."""
        report = self._perf(command, *options, "--json", "-", timeout_s=RUN_TIMEOUT_S)
        self.record(subject, report["command"], report["result"])
        return report["result"]

    def note(self, what: str, text: str) -> None:
        self.notes[what] = text

    def record(self, subject: str, command: list[str], result: Any) -> None:
        self.raw.append({"measurement": self.measurement, "subject": subject, "command": command, "result": result})

    def _perf(self, *arguments: str, timeout_s: float) -> dict[str, Any]:
        program = os.path.join(self.bin_dir, "cleat-perf")
        try:
            done = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=timeout_s, check=False)
        except FileNotFoundError:
            raise BenchError(f"{program} is missing: run 'make bench'") from None
        except subprocess.TimeoutExpired:
            raise BenchError(f"cleat-perf {' '.join(arguments)}: no end after {timeout_s:.0f} s") from None
        if done.returncode != 0:
            raise BenchError(f"cleat-perf {' '.join(arguments)} ended with status {done.returncode}: "
                             f"{done.stderr.strip() or done.stdout.strip()}")
        return json.loads(done.stdout)


def generator_idle_percent(result: dict[str, Any]) -> float:
    """Of the generator's looks at its rings, those that found nothing. Near 0 the generator is what limits the load, and the
    figure is its own, not the engine's."""
    return 100 * result["idle_polls"] / result["polls"]


def ns_per_request(result: dict[str, Any]) -> float:
    """From the generator's report; of the engine when it is the slower of the two."""
    return result["elapsed_ns"] / result["requests"]

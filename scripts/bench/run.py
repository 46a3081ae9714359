#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench`: measures Cleat against its bars, against a bare ring loop and against qemu-storage-daemon.

The engine's reactor has one core, the load generator another; both poll. Figures are medians of short runs, ratios those of
runs that alternated. Writes results.json (name -> {value, unit, spread, runs}) and raw.json to --out and, unless it is
--quick or only a part, the page docs/benchmarks.md. Exit status: 0 when everything was measured, whether or not a bar was
missed (1 then with --strict); 2 when something could not be measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "scripts" / "bench"), str(ROOT / "scripts" / "guest")]

from cleat_bench import bars, machine, page, plan, plots, results  # noqa: E402: needs the paths above
from cleat_bench.lab import FULL, QUICK, Lab, Pace  # noqa: E402
from cleat_bench.stats import Figure  # noqa: E402
from cleat_guest import BenchError  # noqa: E402
from cleat_guest.bench import exit_on_sigterm  # noqa: E402

WORST_SHOWN = 3


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="of the release preset")
    parser.add_argument("--uncounted-build", type=Path, default=ROOT / "build-uncounted",
                        help="whose engine has counters and stamps compiled out")
    parser.add_argument("--unhardened-build", type=Path, default=ROOT / "build-unhardened",
                        help="whose programs are compiled without hardening")
    parser.add_argument("--out", type=Path, help="folder for the results (default: bench in the build directory)")
    parser.add_argument("--only", metavar="NAMES", help="measurements, or parts of their or their bars' names: null,qsd")
    parser.add_argument("--quick", action="store_true", help="shorter and fewer runs: to see that it works, not to quote")
    parser.add_argument("--rounds", type=int, help="of runs that make a figure (default: 7; 2 with --quick)")
    parser.add_argument("--run-s", type=float, help="seconds a run (default: 1; 0.2 with --quick)")
    parser.add_argument("--cores", metavar="E,G", help="the engine's core and the generator's (default: the first two)")
    parser.add_argument("--strict", action="store_true", help="exit status 1 when a bar is missed or was not measured")
    parser.add_argument("--redraw", action="store_true", help="measure nothing; write the page from the results in --out")
    parser.add_argument("--page-dir", type=Path, default=ROOT / "docs", help="where the page goes (default: docs)")
    parser.add_argument("--list", action="store_true", help="name the measurements and end")
    return parser.parse_args(arguments)


def pace_of(arguments: argparse.Namespace) -> Pace:
    pace = QUICK if arguments.quick else FULL
    if arguments.rounds is not None:
        pace = replace(pace, rounds=arguments.rounds)
    if arguments.run_s is not None:
        pace = replace(pace, run_s=arguments.run_s)
    if pace.rounds < 1 or pace.run_s <= 0:
        raise ValueError("--rounds and --run-s must be above 0")
    return pace


class Clock:
    """Progress: how long it has taken, and how long it will still take."""

    def __init__(self, total_s: float) -> None:
        self._start = time.monotonic()
        self._left_s = total_s

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:5.0f} s, about {max(0.0, self._left_s):3.0f} s left] {text}", flush=True)

    def done(self, seconds: float) -> None:
        self._left_s -= seconds


def measure(lab: Lab, chosen: list[plan.Measurement]) -> tuple[dict[str, Figure], list[str], dict[str, float]]:
    """The figures, and what failed: that does not keep the rest from being measured; and how much of the cores' time the
    machine's host gave to others during each, in percent."""
    clock = Clock(sum(measurement.seconds(lab.pace) for measurement in chosen))
    figures: dict[str, Figure] = {}
    failures = []
    stolen = {}
    _, ticks = machine.stolen_percent()
    for measurement in chosen:
        clock.say(f"{measurement.name}: {measurement.title}")
        lab.measurement = measurement.name
        try:
            found = measurement.run(lab)
            missing = [bar for bar in measurement.bars if bar not in found]
            if missing:
                raise BenchError(f"no figure for {', '.join(missing)}")
            figures |= found
        except BenchError as error:
            failures.append(f"{measurement.name}: {error}")
            print(f"bench: {failures[-1]}", file=sys.stderr, flush=True)
        stolen[measurement.name], ticks = machine.stolen_percent(ticks)
        clock.done(measurement.seconds(lab.pace))
    clock.say("measured")
    return figures, failures, stolen


def stolen_text(stolen: dict[str, float]) -> str:
    """The median, and which measurements had it worst."""
    worst = sorted(stolen, key=lambda name: -stolen[name])[:WORST_SHOWN]
    return (f"{median(stolen.values()):.0f} % of the cores' time; most: "
            + ", ".join(f"{name} {stolen[name]:.0f} %" for name in worst))


def write_page(out: Path, page_dir: Path) -> None:
    """From the files, so that a page can be made anew without measuring anything."""
    figures = results.read_figures((out / "results.json").read_text(encoding="utf-8"))
    raw = json.loads((out / "raw.json").read_text(encoding="utf-8"))
    drawn = plots.draw(figures)
    for name, svg in drawn.items():
        results.write_whole(page_dir / page.PLOT_DIR / name, svg)
    results.write_whole(page_dir / "benchmarks.md", page.write(figures, raw["machine"], raw["notes"], set(drawn)))
    print(f"bench: wrote {page_dir}/benchmarks.md and its plots")


def run(arguments: argparse.Namespace) -> int:
    chosen = plan.choose(arguments.only)
    out = arguments.out or arguments.build / "bench"
    if arguments.redraw:
        write_page(out, arguments.page_dir)
        return 0
    if arguments.list:
        for measurement in chosen if arguments.only else plan.MEASUREMENTS:
            print(f"{measurement.name:14} {measurement.seconds(FULL):4.0f} s  {measurement.title}")
        return 0
    engine_core, generator_core = machine.choose_cores(arguments.cores)
    bin_dir = str(arguments.build / "bin")
    described = machine.describe(bin_dir)
    described["cores used"] = f"{engine_core} for the engine, {generator_core} for the load"
    for name, value in described.items():
        print(f"  {name:26}{value}")
    busy = machine.busy_percent()
    described["in use by others at the start"] = f"{busy:.0f} % of all cores"
    if busy > machine.BUSY_PERCENT_MAX:
        print(f"bench: warning: others use {busy:.0f} % of the cores: figures will be too high and spread", file=sys.stderr)
    lab = Lab(bin_dir=bin_dir, uncounted_bin_dir=str(arguments.uncounted_build / "bin"),
              unhardened_build=str(arguments.unhardened_build),
              log_dir=str(arguments.build / "logs" / "bench"), engine_core=engine_core, generator_core=generator_core,
              file_dir=out, pace=pace_of(arguments), quick=arguments.quick)
    with lab:
        figures, failures, stolen = measure(lab, chosen)
    described["taken by its host meanwhile"] = stolen_text(stolen)
    print(f"  taken by this machine's host meanwhile: {stolen_text(stolen)}")
    results.write_whole(out / "results.json", results.results_json(figures))
    results.write_whole(out / "raw.json", results.raw_json(described, lab.notes, lab.raw))
    if not arguments.quick and not arguments.only:
        write_page(out, arguments.page_dir)
    wanted = {bar for measurement in chosen for bar in measurement.bars}
    verdicts = [verdict for verdict in bars.judge(figures) if verdict.name in wanted]
    if arguments.quick:
        print("bench: --quick: this shows that it works; its figures mean nothing")
    print(f"{bars.table(verdicts)}\nbench: wrote {out}/results.json and raw.json")
    for failure in failures:
        print(f"bench: not measured: {failure}", file=sys.stderr)
    if failures:
        return 2
    return 1 if arguments.strict and any(verdict.word != "held" for verdict in verdicts) else 0


def main() -> int:
    exit_on_sigterm()
    try:
        return run(parse())
    except (BenchError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

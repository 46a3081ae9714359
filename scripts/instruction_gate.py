#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many instructions a request costs the engine, against the committed figures: unlike times, they repeat.

    scripts/instruction_gate.py BUILD_DIR             compares with docs/instructions.json; exit status 1 when one is worse
    scripts/instruction_gate.py BUILD_DIR --update    writes them there, to be committed with the change that explains them
    scripts/instruction_gate.py BUILD_DIR --json FILE writes them to that file as well, before it compares
    scripts/instruction_gate.py BUILD_DIR --program device_loop --json FILE   those of that program alone

Counted by valgrind's callgrind in one turn after the other of the reactor, 4 KiB reads of a null device, with counters and
stage stamps on. The difference of two runs of different length, so that the start does not count. Compilers differ by a
few of a hundred, so each has figures of its own; of a program that one has none of yet, its loads are NOT COMPARED.

    blk, scsi     BUILD_DIR/tests/device_loop: the device side of a virtqueue, with the in-flight log
    rdma_target, tcp_target
                  BUILD_DIR/tests/target_cost: the target of hosts over RDMA and over TCP, without flow control. Adapter, system
                  calls, the host and the clock are functions of that program, which are not counted

What a read costs over RDMA has a limit by what it costs over TCP: the bar rdma_target_instructions of `make bench`, the worst
of the depths.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))

from cleat_bench import target_loads  # noqa: E402  (its folder is none of Python's own)
from cleat_bench.bars import BARS  # noqa: E402

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "instructions.json"
TOLERATED = 0.02  # another patch release of the compiler or the C library is allowed so much
SHORT, LONG = 3200, 35200
# Counting begins and ends with each call of the first, and is interrupted by calls of the others from within.
COUNTED = {
    "device_loop": ["cleat::Reactor::RunOnce()"],
    "target_cost": ["cleat::bench::BenchTarget::CountedTurn()", "*FakePair::Post*", "*FakeReceiveQueue::Post*",
                    "*FakeCompletionQueue::Poll*", "__wrap_recv", "__wrap_sendmsg", "*BenchClock::NowNs*"],
}
CASES = {
    "blk_split_qd32": ["device_loop", "--device", "blk", "--ring", "split"],
    "blk_packed_qd32": ["device_loop", "--device", "blk", "--ring", "packed"],
    "scsi_split_qd32": ["device_loop", "--device", "scsi", "--ring", "split"],
    "scsi_packed_qd32": ["device_loop", "--device", "scsi", "--ring", "packed"],
    "blk_split_qd1": ["device_loop", "--device", "blk", "--ring", "split", "--depth", "1"],
} | {name: ["target_cost", *options] for name, options in target_loads.LOADS.items()}


def instructions(build, case, requests):
    program, *options = case
    with tempfile.NamedTemporaryFile() as out:
        command = ["valgrind", "--tool=callgrind", *(f"--toggle-collect={function}" for function in COUNTED[program]),
                   f"--callgrind-out-file={out.name}", str(build / "tests" / program), *options, "--requests", str(requests)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit status {result.returncode}\n{result.stderr}")
        found = re.search(r"^(?:summary|totals): (\d+)", Path(out.name).read_text(encoding="utf-8"), re.MULTILINE)
        if not found:
            sys.exit(f"{' '.join(command)}: callgrind counted nothing")
        return int(found[1])


def measure(build, programs):
    return {name: round((instructions(build, case, LONG) - instructions(build, case, SHORT)) / (LONG - SHORT), 1)
            for name, case in CASES.items() if case[0] in programs}


def compiler_of(build):
    """Its name and major version."""
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    program = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)[1]
    names, version = (subprocess.run([program, option], capture_output=True, text=True, check=True).stdout
                      for option in ("--version", "-dumpversion"))
    return f"{'clang' if 'clang' in names else 'GCC'} {version.strip().split('.')[0]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="build directory of the release preset")
    parser.add_argument("--update", action="store_true", help="write the figures instead of comparing them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--program", choices=COUNTED, action="append", help="count only what this one has")
    arguments = parser.parse_args()
    measured = measure(arguments.build, arguments.program or COUNTED)
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    compiler = compiler_of(arguments.build)
    if arguments.update:
        figures[compiler] = figures.get(compiler, {}) | measured
        FIGURES.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if compiler not in figures:
        sys.exit(f"{FIGURES.name} has figures of {', '.join(figures)}, and none of {compiler}: run with --update")
    committed = figures[compiler]
    worse = False
    for name, now in measured.items():
        before = committed.get(name)
        if before is None and any(CASES.get(other, [None])[0] == CASES[name][0] for other in committed):
            sys.exit(f"{FIGURES.name} has no figure for {name}: run with --update")
        if before is None:
            print(f"{name:20} {now:8.1f} instructions a request, NOT COMPARED: {compiler} has no figures of {CASES[name][0]} yet; run with --update")
            continue
        change = now / before - 1
        worse |= change > TOLERATED
        note = "  WORSE" if change > TOLERATED else "  better: commit it with --update" if change < -TOLERATED else ""
        print(f"{name:20} {now:8.1f} instructions a request, committed for {compiler} {before:8.1f}  {change:+7.2%}{note}")
    if target_loads.LOADS.keys() <= measured.keys():
        bar, ratio = BARS["rdma_target_instructions"], target_loads.rdma_over_tcp(measured)
        print(f"a read over RDMA, by one over TCP: {ratio:.3f}, {bar} wanted")
        if not bar.held_by(ratio):
            sys.exit("instruction gate: a read over RDMA has become too dear beside one over TCP")
    if worse:
        sys.exit("instruction gate: a request has become dearer. If that is meant, run with --update and say why in the commit.")


main()

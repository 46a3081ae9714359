# SPDX-License-Identifier: Apache-2.0
"""How long requests wait when one of a disk's two paths breaks: its connections are closed, or it swallows what is sent.

`PEER_SPDK` names the folder that SPDK was built in, and it takes root: the target, SPDK's, is in a network of its own, at the end of two links.
The load is tests/bench/nvmf_loop, a disk's pipeline, with writes to one place after the other: none overlaps what a broken path has left in
doubt, and so none waits for a word.

Of each cut counts, for each of the load's places in the queue, the longest request from before the cut until after it, from its submission to
its completion; those that the other path had are among them. A path that swallows is given up when a keep alive timeout has passed without an
answer: that is the limit with which its times are compared. Whoever closes says so at once.
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cleat_guest import BenchError
from cleat_guest import spdk_target
from cleat_guest.nvmf_events import wait_for
from cleat_guest.spdk_target import SpdkNamespace

from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure, spread

BARS = ("tcp_failover_ms_p99", "tcp_failover_silent_vs_limit_p99")
CUTS, QUICK_CUTS = 20, 4  # of each kind
DEPTH = 32
KEEP_ALIVE_MS = 2000
SILENCE_S = 1.5 * KEEP_ALIVE_MS / 1000  # until each request has gone on by the other path, if any ever does
CLOSED_S = 0.2  # likewise
CLOSED_BACK_S, SILENT_BACK_S = 1.0, 10.0  # until a path is connected again, and SPDK's target has given up what was there before, about
ANSWER_S = 30  # for what can only hang
QUEUES = 2  # of each path: the admin queue and the load's
NQN = "nqn.2016-06.io.cleat:failover"
UUID = "7a1f5a0e-6f0d-4d0c-8a39-2f5f6b1f9d20"
DEVICE_BYTES = 1 << 40  # so that no place comes a second time
BLOCK_BYTES = 512
TARGET_MEMORY_MB = 512


def cuts(lab_is_quick: bool) -> int:
    return QUICK_CUTS if lab_is_quick else CUTS


def seconds(pace: Pace) -> float:
    return cuts(pace.run_s < 1) * (SILENCE_S + SILENT_BACK_S + CLOSED_S + CLOSED_BACK_S + KEEP_ALIVE_MS / 4000)


def measure(lab: Lab) -> dict[str, Figure]:
    if spdk_target.built_in() is None:
        raise BenchError("PEER_SPDK is not set: it names the folder that SPDK was built in")
    target = NullNamespace(lab)
    try:
        target.wait_ready()
        load = Load(lab, target.addresses)
        try:
            return measure_against(lab, target, load)
        finally:
            load.end()
    finally:
        target.kill()


def measure_against(lab: Lab, target: NullNamespace, load: Load) -> dict[str, Figure]:
    count = cuts(lab.quick)
    closed = [cut(target, load, number, lambda path: close(target, path), target.mend) for number in range(count)]
    silent = []
    for number in range(count):
        time.sleep(number / count * KEEP_ALIVE_MS / 2000)  # between two keep alives the cuts are spread
        silent.append(cut(target, load, number, lambda path: swallow(target, path), lambda path: target.swallow(path, False)))
    for longest in silent:
        if max(longest) < KEEP_ALIVE_MS / 2:
            raise BenchError(f"a path was silent, and no request waited longer than {max(longest):.1f} ms: none was on that path")
    lab.record("paths that were closed, ms", load.command, closed)
    lab.record("paths that were silent, ms", load.command, silent)
    limits = [[ms / KEEP_ALIVE_MS for ms in longest] for longest in silent]
    return {"tcp_failover_ms_p99": p99(closed, "ms"), "tcp_failover_silent_vs_limit_p99": p99(limits, "ratio")}


def p99(all_cuts: Sequence[Sequence[float]], unit: str) -> Figure:
    """Of all cuts' times; its runs are each cut's longest."""
    ordered = sorted(one for times in all_cuts for one in times)
    longest = [max(times) for times in all_cuts]
    return Figure(ordered[math.ceil(0.99 * len(ordered)) - 1], unit, spread(longest), tuple(longest))


def cut(target: NullNamespace, load: Load, number: int, end: Callable[[int], None], mend: Callable[[int], None]) -> list[float]:
    """Milliseconds, of each place in the queue. The paths take turns."""
    path = number % len(target.addresses)
    before = target.lives()
    load.longest_ms()
    end(path)
    times = load.longest_ms()
    mend(path)
    wait_for("the path to come back", lambda: target.is_settled(before, [path]) and target.queues() >= QUEUES * len(target.addresses), bool)
    return times


def close(target: NullNamespace, path: int) -> None:
    before = target.lives()
    target.cut(path)
    wait_for("the target to close the path", lambda: target.has_lost(before, [path]), bool)
    time.sleep(CLOSED_S)


def swallow(target: NullNamespace, path: int) -> None:
    target.swallow(path, True)
    time.sleep(SILENCE_S)


class NullNamespace(SpdkNamespace):
    """A namespace that keeps nothing, and so costs nothing."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab, None, NQN, UUID, memory_mb=TARGET_MEMORY_MB, polls_on=lab.generator_core)

    def add_device(self) -> None:
        self._target.add_null("Disk", DEVICE_BYTES // BLOCK_BYTES, UUID, BLOCK_BYTES)


class Load:
    """nvmf_loop, which says for each line that it is given how long its requests have waited since the line before."""

    def __init__(self, lab: Lab, addresses: Sequence[str]) -> None:
        program = Path(lab.bin_dir).parent / "tests" / "nvmf_loop"
        if not program.exists():
            raise BenchError(f"{program} is missing: run 'make bench'")
        self.command = [str(program), *(word for address in addresses for word in ("--address", address)), "--nqn", NQN, "--namespace", UUID,
                        "--depth", str(DEPTH), "--write", "--bytes", str(DEVICE_BYTES), "--core", str(lab.engine_core),
                        "--keep-alive-ms", str(KEEP_ALIVE_MS), "--longest"]
        self._log = os.path.join(lab.log_dir, "nvmf_loop.log")
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def longest_ms(self) -> list[float]:
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise BenchError(f"nvmf_loop says nothing any more; its log is {self._log}")
        return [us / 1e3 for us in json.loads(line)]

    def end(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

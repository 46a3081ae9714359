# SPDX-License-Identifier: Apache-2.0
"""What Cleat exports over NVMe/TCP beside SPDK's target: 4 KiB random requests over loopback by one and the same host, spdk_nvme_perf, each side
with a core of its own.

`PEER_SPDK` names the folder that SPDK was built in, and it takes root: SPDK wants huge pages. Ours is tests/bench/target_loop: a disk's pipeline
behind the engine's target, on one reactor that polls. Both targets have a disk in memory, in huge pages, and one that does nothing, and only the one that is
measured runs: the others stand still meanwhile. Each disk in memory is written once before anything is measured.

Requests a second are those of the slower half, so the bar is the median of reads and writes of both disks; the worst of these is named. What a
request costs the target's core is compared beside it, as each target counts the polls that found something to do: where the host's core is what is
full, the requests say nothing. What ours can do without is turned off in rounds of its own.

The floor is tests/bench/target_floor: a bare loop that answers the same requests with the same PDUs, in plain TCP and over the same TLS.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import statistics
import subprocess
from contextlib import ExitStack, contextmanager
from collections.abc import Iterator
from pathlib import Path

from cleat_guest import BenchError
from cleat_guest import spdk_target
from cleat_guest.nvmf_secrets import tls_psk
from cleat_guest.spdk_target import SpdkTarget, nguid

from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure, figure, interleave, ratio

BARS = ("tcp_target_vs_spdk_qd32", "tcp_target_vs_spdk_qd128", "tcp_qd1_p50_vs_spdk", "tcp_target_floor_percent", "tcp_digest_cost_percent",
        "tcp_tls_floor_percent")
DEPTHS = (32, 128)
DISKS = ("memory", "null")
PATTERNS = ("randread", "randwrite")
DIGESTS = ("--enable-tcp-hdgst", "--enable-tcp-ddgst")
# What target_loop can do without -> the figure of it, and where it is measured: disk, pattern, requests in flight, options of the host's.
SWITCHES = {
    "--one-pdu-a-send": ("tcp_batching", "null", "randread", 32, ()),
    "--read-on-events": ("tcp_target_eager_reads", "null", "randread", 32, ()),
    "--copy-data": ("tcp_target_kept_data", "null", "randwrite", 32, ()),
    "--no-look-ahead": ("tcp_target_look_ahead", "memory", "randread", 32, ()),
    "--stay-in-epoll": ("tcp_target_left_epoll", "memory", "randread", 1, ()),
    "--digests-by-instruction": ("tcp_target_folded_digests", "memory", "randwrite", 32, DIGESTS),
}
RUN_SECONDS = 3.0  # spdk_nvme_perf counts in whole ones
START_SECONDS = 2.0  # of a run, about
LATENCY_ROUNDS = 3  # for each round of the others: what is compared there is a few per cent
TIMEOUT_S = 60
NQN = "nqn.2016-06.io.cleat:bench-"
HOST_NQN = "nqn.2016-06.io.cleat:bench-host"
ADDRESS = "127.0.0.1"
SPDK_PORT, FIRST_PORT, SWITCH_PORT = 4432, 4433, 4435
FLOOR_PORTS, BEHIND_PORTS, TLS_PORT, TLS_FLOOR_PORT, TLS_BEHIND_PORT = 4443, 4453, 4463, 4464, 4465
UUIDS = {"memory": "3f0d7c52-9d0e-4a35-8f6b-6f1f0f9a7d11", "null": "3f0d7c52-9d0e-4a35-8f6b-6f1f0f9a7d12"}
DISK_MB = {"memory": 64, "null": 4096}
BLOCK_BYTES = 512
TARGET_MEMORY_MB = 768
PERF_MEMORY_MB = 256
DISKS_IN_MEMORY = 6  # of ours, at a time: a target's, the floor's and that of the target behind it, in plain TCP and over TLS


def run_seconds(pace: Pace) -> int:
    """A run of the suite's length would be over before it is steady."""
    return max(1, math.ceil(RUN_SECONDS * min(1.0, pace.run_s)))


def seconds(pace: Pace) -> float:
    runs = 3 * len(DISKS) * len(PATTERNS) * len(DEPTHS) + 3 * LATENCY_ROUNDS + 4 * len(PATTERNS) + 2 * len(SWITCHES)
    return pace.rounds * runs * (run_seconds(pace) + START_SECONDS) + 4 * RUN_SECONDS


def measure(lab: Lab) -> dict[str, Figure]:
    if spdk_target.built_in() is None:
        raise BenchError("PEER_SPDK is not set: it names the folder that SPDK was built in")
    spdk_target.reserve_pages(TARGET_MEMORY_MB + PERF_MEMORY_MB + DISKS_IN_MEMORY * DISK_MB["memory"])
    with ExitStack() as made:
        spdk = made.enter_context(Spdk(lab))
        ours = {disk: made.enter_context(Loop(lab, FIRST_PORT + number, disk)) for number, disk in enumerate(DISKS)}
        floor = {disk: made.enter_context(Floor(lab, FLOOR_PORTS + number, BEHIND_PORTS + number, disk)) for number, disk in enumerate(DISKS)}
        for target in (spdk, ours["memory"], floor["memory"]):
            perf(lab, target, "memory", "randwrite", max(DEPTHS))
        figures = measure_rates(lab, spdk, ours, floor) | measure_latency(lab, spdk, ours, floor) | measure_digests(lab, ours["memory"])
        figures |= measure_tls(lab)
        for switch, (_, disk, *_) in SWITCHES.items():
            with Loop(lab, SWITCH_PORT, disk, switch) as without:
                figures |= measure_switch(lab, switch, ours[disk], without)
        return figures


# ---- Targets, which stand still but for a run of theirs

class Spdk:
    """SPDK's, with both disks. Its memory disk is in huge pages."""

    def __init__(self, lab: Lab) -> None:
        self._target = SpdkTarget(lab, memory_mb=TARGET_MEMORY_MB, polls_on=lab.engine_core)
        self.name = "spdk"
        self.port = SPDK_PORT

    def __enter__(self) -> Spdk:
        try:
            self._target.start()
            self._target.add_memory("memory", blocks("memory"), UUIDS["memory"], BLOCK_BYTES)
            self._target.add_null("null", blocks("null"), UUIDS["null"], BLOCK_BYTES)
            for disk in DISKS:
                self._target.add_subsystem(NQN + disk, disk, UUIDS[disk], nguid(UUIDS[disk]))
                self._target.listen(NQN + disk, f"{ADDRESS}:{self.port}")
            self._target.stop_still()
        except BenchError:
            self._target.kill()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self._target.kill()

    @contextmanager
    def runs(self) -> Iterator[None]:
        self._target.go_on()
        try:
            yield
        finally:
            self._target.stop_still()

    def busy_ns(self) -> int:
        """So far, as its framework counts it: polls that found something to do."""
        said = self._target.rpc("framework_get_reactors")
        return sum(reactor["busy"] for reactor in said["reactors"]) * 10**9 // said["tick_rate"]


class Loop:
    """Ours, with one disk."""

    def __init__(self, lab: Lab, port: int, disk: str, *options: str, program: str = "target_loop") -> None:
        self.name = " ".join((program, *options))
        self.port = port
        self._command = [str(Path(lab.bin_dir).parent / "tests" / program), "--listen", f"{ADDRESS}:{port}", "--nqn", NQN + disk, "--host", HOST_NQN,
                         "--mib", str(DISK_MB[disk]), "--core", str(lab.engine_core), "--null" if disk == "null" else "--huge-pages", *options]
        self._log = os.path.join(lab.log_dir, f"{program}-{port}.log")

    def __enter__(self) -> Loop:
        with open(self._log, "wb") as log:
            try:
                self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
            except FileNotFoundError:
                raise BenchError(f"{self._command[0]} is missing: run 'make bench'") from None
        if self._process.stdout.readline().strip() != "ready":
            self._process.kill()
            self._process.wait()
            raise BenchError(f"{self.name} does not begin; its log is {self._log}")
        self._process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.wait()

    @contextmanager
    def runs(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def busy_ns(self) -> int:
        """So far, while it runs."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        if not said:
            raise BenchError(f"{self.name} has ended; its log is {self._log}")
        return json.loads(said)["busy_ns"]


class Floor:
    """The bare loop, with one disk, and a target of ours behind it for the admin queues."""

    def __init__(self, lab: Lab, port: int, behind_port: int, disk: str, *options: str) -> None:
        self.name = "floor"
        self.port = port
        self._behind = Loop(lab, behind_port, disk, "--sleeps")
        self._floor = Loop(lab, port, disk, "--admin", f"{ADDRESS}:{behind_port}", *options, program="target_floor")
        self._made = ExitStack()

    def __enter__(self) -> Floor:
        with ExitStack() as made:
            made.enter_context(self._behind)
            made.enter_context(self._floor)
            self._made = made.pop_all()
        return self

    def __exit__(self, *unused: object) -> None:
        self._made.close()

    @contextmanager
    def runs(self) -> Iterator[None]:
        with self._behind.runs(), self._floor.runs():
            yield

    def busy_ns(self) -> int:
        """It polls all the time."""
        return 0


def blocks(disk: str) -> int:
    return DISK_MB[disk] * (1 << 20) // BLOCK_BYTES


# ---- What is measured

def measure_rates(lab: Lab, spdk: Spdk, ours: dict[str, Loop], floor: dict[str, Floor]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    of_floor: list[Figure] = []
    for depth in DEPTHS:
        ratios: dict[str, Figure] = {}
        floors: list[Figure] = []
        costs: list[Figure] = []
        for disk in DISKS:
            for pattern in PATTERNS:
                runs = rounds(lab, {"ours": ours[disk], "spdk": spdk, "floor": floor[disk]}, disk, pattern, depth)
                mine, theirs, bare = (column(runs[name], "kiops") for name in ("ours", "spdk", "floor"))
                name = f"tcp_target_{disk}_{pattern}_qd{depth}"
                ratios[f"{disk} {pattern}"] = ratio(mine, theirs)
                floors.append(ratio(bare, theirs))
                costs.append(ratio(column(runs["ours"], "busy_ns"), column(runs["spdk"], "busy_ns")))
                of_floor.append(percent_of(mine, bare))
                figures |= {f"{name}_vs_spdk": ratios[f"{disk} {pattern}"], f"{name}_floor_percent": of_floor[-1],
                            f"{name}_kiops": figure(mine, "thousand/s"), f"{name}_spdk_kiops": figure(theirs, "thousand/s"),
                            f"{name}_floor_kiops": figure(bare, "thousand/s"), f"{name}_cpu_ns": figure(column(runs["ours"], "busy_ns"), "ns"),
                            f"{name}_cpu_vs_spdk": costs[-1]}
        figures[f"tcp_target_vs_spdk_qd{depth}"] = of_each_round(list(ratios.values()), statistics.median)
        figures[f"tcp_target_floor_vs_spdk_qd{depth}"] = of_each_round(floors, statistics.median)
        figures[f"tcp_target_cpu_vs_spdk_qd{depth}"] = of_each_round(costs, statistics.median)
        worst = min(ratios, key=lambda name, of=ratios: of[name].value)
        lab.note(f"tcp-target: the worst over SPDK's, {depth} in flight", f"{worst}: {ratios[worst].value:.2f}")
    figures["tcp_target_floor_percent"] = of_each_round(of_floor, statistics.median)
    return figures


def measure_tls(lab: Lab) -> dict[str, Figure]:
    """Over what the same bytes cost through the same TLS alone: a memory disk, 32 in flight."""
    key = os.path.join(lab.log_dir, "tcp-target.psk")
    with open(key, "w", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(tls_psk("bench", 1))
    host = ("-S", "ssl", "--psk-path", key)
    figures: dict[str, Figure] = {}
    with Loop(lab, TLS_PORT, "memory", "--psk", key) as ours, Floor(lab, TLS_FLOOR_PORT, TLS_BEHIND_PORT, "memory", "--psk", key) as floor:
        for target in (ours, floor):
            perf(lab, target, "memory", "randwrite", max(DEPTHS), *host)
        for pattern in PATTERNS:
            runs = interleave({target.name: lambda target=target, pattern=pattern: perf(lab, target, "memory", pattern, 32, *host)
                               for target in (ours, floor)}, lab.pace.rounds)
            mine, bare = (column(runs[target.name], "kiops") for target in (ours, floor))
            figures |= {f"tcp_tls_{pattern}_floor_percent": percent_of(mine, bare), f"tcp_tls_{pattern}_kiops": figure(mine, "thousand/s"),
                        f"tcp_tls_{pattern}_floor_kiops": figure(bare, "thousand/s")}
    figures["tcp_tls_floor_percent"] = of_each_round([figures[f"tcp_tls_{pattern}_floor_percent"] for pattern in PATTERNS], min)
    return figures


def measure_latency(lab: Lab, spdk: Spdk, ours: dict[str, Loop], floor: dict[str, Floor]) -> dict[str, Figure]:
    runs = interleave({name: lambda target=target: perf(lab, target, "memory", "randread", 1)
                       for name, target in {"ours": ours["memory"], "spdk": spdk, "floor": floor["memory"]}.items()},
                      LATENCY_ROUNDS * lab.pace.rounds)
    mine, theirs, bare = (column(runs[name], "p50_us") for name in ("ours", "spdk", "floor"))
    return {"tcp_target_qd1_p50_us": figure(mine, "us"), "tcp_target_spdk_qd1_p50_us": figure(theirs, "us"), "tcp_target_floor_qd1_p50_us": figure(bare, "us"),
            "tcp_qd1_p50_vs_spdk": ratio(mine, theirs), "tcp_target_floor_qd1_p50_vs_spdk": ratio(bare, theirs)}


def measure_digests(lab: Lab, ours: Loop) -> dict[str, Figure]:
    """Of the target's core: the host makes digests too, and is what limits the rate."""
    costs = []
    rates = []
    for pattern in PATTERNS:
        runs = interleave({"with": lambda pattern=pattern: perf(lab, ours, "memory", pattern, 32, *DIGESTS),
                           "without": lambda pattern=pattern: perf(lab, ours, "memory", pattern, 32)}, lab.pace.rounds)
        costs.append(percent_more(column(runs["with"], "busy_ns"), column(runs["without"], "busy_ns")))
        rates.append(ratio(column(runs["with"], "kiops"), column(runs["without"], "kiops")))
    return {"tcp_digest_cost_percent": of_each_round(costs, max), "tcp_target_digests_rate_ratio": of_each_round(rates, min)}


def measure_switch(lab: Lab, switch: str, on: Loop, off: Loop) -> dict[str, Figure]:
    """How much more it does with than without."""
    name, disk, pattern, depth, options = SWITCHES[switch]
    runs = interleave({way: lambda target=target: perf(lab, target, disk, pattern, depth, *options) for way, target in (("on", on), ("off", off))},
                      lab.pace.rounds)
    return {f"{name}_gain_percent": percent_more(column(runs["on"], "kiops"), column(runs["off"], "kiops")),
            f"{name}_off_cpu_ratio": ratio(column(runs["off"], "busy_ns"), column(runs["on"], "busy_ns"))}


def rounds(lab: Lab, targets: dict[str, Spdk | Loop | Floor], disk: str, pattern: str, depth: int) -> dict[str, list[dict[str, float]]]:
    return interleave({name: lambda target=target: perf(lab, target, disk, pattern, depth) for name, target in targets.items()}, lab.pace.rounds)


def of_each_round(figures: list[Figure], chosen) -> Figure:
    """What `chosen` makes of the figures' runs of one round, as a figure of all rounds."""
    return figure([chosen(runs) for runs in zip(*(one.runs for one in figures))], figures[0].unit)


def percent_of(those: list[float], of: list[float]) -> Figure:
    return figure([100 * a / b for a, b in zip(those, of)], "%")


def percent_more(those: list[float], than: list[float]) -> Figure:
    return figure([100 * (a / b - 1) for a, b in zip(those, than)], "%")


def column(runs: list[dict[str, float]], name: str) -> list[float]:
    return [run[name] for run in runs]


# ---- The host

def perf(lab: Lab, target: Spdk | Loop | Floor, disk: str, pattern: str, depth: int, *options: str) -> dict[str, float]:
    run_s = run_seconds(lab.pace)
    where = f"trtype:TCP adrfam:IPv4 traddr:{ADDRESS} trsvcid:{target.port} subnqn:{NQN}{disk} hostnqn:{HOST_NQN}"
    command = [f"{spdk_target.built_in()}/build/bin/spdk_nvme_perf", "-r", where, "-s", str(PERF_MEMORY_MB), "-q", str(depth), "-o", "4096",
               "-w", pattern, "-t", str(run_s), "-c", hex(1 << lab.generator_core), "-L", *options]
    with target.runs():
        before = target.busy_ns()
        result = read_perf(run(command))
        busy_ns = target.busy_ns() - before
    result["busy_ns"] = busy_ns / (result["kiops"] * 1e3 * run_s)
    lab.record(f"{target.name}, {disk}, {pattern}, qd{depth} {' '.join(options)}".strip(), command, result)
    return result


def read_perf(text: str) -> dict[str, float]:
    """What spdk_nvme_perf has printed."""
    total = re.search(r"^Total\s*:\s*([\d.]+)", text, re.MULTILINE)
    median = re.search(r"^\s*50\.0+% :\s*([\d.]+)us", text, re.MULTILINE)
    if not (total and median and float(total[1]) > 0):
        raise BenchError(f"spdk_nvme_perf said nothing of its load: {text.strip()[-400:]}")
    return {"kiops": float(total[1]) / 1e3, "p50_us": float(median[1])}


def run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise BenchError(f"{command[0]} is missing: build SPDK") from None
    except subprocess.TimeoutExpired:
        raise BenchError(f"{command[0]}: no end after {TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise BenchError(f"{command[0]} ended with status {done.returncode}: {done.stdout.strip()[-400:]}")
    return done.stdout

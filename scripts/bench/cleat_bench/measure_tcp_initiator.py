# SPDX-License-Identifier: Apache-2.0
"""The NVMe/TCP initiator beside SPDK's: 4 KiB random reads over loopback from one and the same SPDK target, each side with a core of its own.

`PEER_SPDK` names the folder that SPDK was built in, and it takes root: the target wants huge pages. The namespace is a null device, so that
the target, which is half of each pair, costs as little as it can. Ours is tests/bench/nvmf_loop: a disk's pipeline on one reactor that polls.
SPDK's is spdk_nvme_perf.

Requests a second are those of the slower half. So beside them stands what a request costs the initiator's core: of ours it is measured by the
loop. SPDK's polls all the time and says how often in vain; what one of these costs follows from two runs with one request in flight, in
one of which the target stands still for a while. The switches of ours are turned off one by one in rounds of their own.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from pathlib import Path

from cleat_guest import BenchError
from cleat_guest import spdk_target
from cleat_guest.spdk_target import SpdkTarget, nguid

from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure, figure, interleave, ratio

BARS = ("tcp_initiator_vs_spdk_qd32", "tcp_initiator_vs_spdk_qd128", "tcp_initiator_qd1_p50_vs_spdk")
DEPTHS = (1, 32, 128)
# Of nvmf_loop -> how many requests are in flight, and its options, for all runs of that comparison. A switch that spares the initiator's CPU
# is judged by that; the window, which is the target's reason to wait, by what comes through.
SWITCHES = {
    "--one-piece-a-send": (32, ()),
    "--read-on-events": (32, ()),
    "--receive-buffer-kib=1": (32, ()),  # no two PDUs in one system call
    "--digests-by-table": (32, ("--header-digest", "--data-digest")),
    "--digests-by-instruction": (32, ("--header-digest", "--data-digest")),
    "--window-by-kernel": (128, ()),
}
RUN_SECONDS = 3.0  # spdk_nvme_perf counts in whole ones
START_SECONDS = 2.0  # of a run, about
TIMEOUT_S = 60
STILL_SECONDS = 1.0
NQN = "nqn.2016-06.io.cleat:bench"
ADDRESS = "127.0.0.1"
PORT = "4431"
UUID = "3f0d7c52-9d0e-4a35-8f6b-6f1f0f9a7d10"
DEVICE_MB = 4096
BLOCK_BYTES = 512
TARGET_MEMORY_MB = 512
PERF_MEMORY_MB = 256


def run_seconds(pace: Pace) -> int:
    """A run of the suite's length would be over before it is steady."""
    return max(1, math.ceil(RUN_SECONDS * min(1.0, pace.run_s)))


def seconds(pace: Pace) -> float:
    runs = 2 * len(DEPTHS) + 2 * len(SWITCHES)
    return pace.rounds * runs * (run_seconds(pace) + START_SECONDS) + 4 * RUN_SECONDS


def measure(lab: Lab) -> dict[str, Figure]:
    if spdk_target.built_in() is None:
        raise BenchError("PEER_SPDK is not set: it names the folder that SPDK was built in")
    spdk_target.reserve_pages(TARGET_MEMORY_MB + PERF_MEMORY_MB)
    target = SpdkTarget(lab, memory_mb=TARGET_MEMORY_MB, polls_on=lab.generator_core)
    try:
        target.start()
        target.add_null("Null", DEVICE_MB * (1 << 20) // BLOCK_BYTES, UUID, BLOCK_BYTES)
        target.add_subsystem(NQN, "Null", UUID, nguid(UUID))
        target.listen(NQN, f"{ADDRESS}:{PORT}")
        return measure_against(lab, target)
    finally:
        target.kill()


def measure_against(lab: Lab, target: SpdkTarget) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    try:
        idle_ns = idle_poll_ns(lab, target)
    except BenchError as error:
        idle_ns = None
        lab.note("tcp-initiator: CPU a request of SPDK's", f"not measured: {error}")
    for depth in DEPTHS:
        runs = interleave({"ours": lambda depth=depth: ours(lab, depth), "spdk": lambda depth=depth: theirs(lab, depth)}, lab.pace.rounds)
        figures |= compare(depth, runs["ours"], runs["spdk"], idle_ns)
    for switch in SWITCHES:
        figures |= switched(lab, switch)
    return figures


def switched(lab: Lab, switch: str) -> dict[str, Figure]:
    depth, options = SWITCHES[switch]
    runs = interleave({"on": lambda: ours(lab, depth, *options), "off": lambda: ours(lab, depth, switch, *options)}, lab.pace.rounds)
    name = "tcp_initiator_" + switch.strip("-").replace("-", "_").replace("=", "_")
    return {f"{name}_cost_ratio": ratio(column(runs["off"], "turn_ns"), column(runs["on"], "turn_ns")),
            f"{name}_rate_ratio": ratio(column(runs["off"], "kiops"), column(runs["on"], "kiops"))}


def compare(depth: int, mine: list[dict[str, float]], spdk: list[dict[str, float]], idle_ns: float | None) -> dict[str, Figure]:
    """`idle_ns` None: what SPDK's costs is not known. Nor is it where other programs have had so much of its core that nothing would be left."""
    figures = {f"tcp_initiator_qd{depth}_kiops": figure(column(mine, "kiops"), "thousand/s"),
               f"tcp_initiator_spdk_qd{depth}_kiops": figure(column(spdk, "kiops"), "thousand/s"),
               f"tcp_initiator_qd{depth}_cpu_ns": figure(column(mine, "busy_ns"), "ns")}
    costs = [spdk_busy_ns(run, idle_ns) for run in spdk] if idle_ns is not None else [0.0]
    if min(costs) > 0:
        figures |= {f"tcp_initiator_spdk_qd{depth}_cpu_ns": figure(costs, "ns"),
                    f"tcp_initiator_qd{depth}_cpu_vs_spdk": ratio(column(mine, "busy_ns"), costs)}
    if depth == 1:
        return figures | {"tcp_initiator_qd1_p50_vs_spdk": ratio(column(mine, "p50_us"), column(spdk, "p50_us"))}
    return figures | {f"tcp_initiator_vs_spdk_qd{depth}": ratio(column(mine, "kiops"), column(spdk, "kiops"))}


def column(runs: list[dict[str, float]], name: str) -> list[float]:
    return [run[name] for run in runs]


# ---- Ours

def ours(lab: Lab, depth: int, *options: str) -> dict[str, float]:
    program = Path(lab.bin_dir).parent / "tests" / "nvmf_loop"
    command = [str(program), "--address", f"{ADDRESS}:{PORT}", "--nqn", NQN, "--namespace", UUID, "--depth", str(depth),
               "--seconds", str(run_seconds(lab.pace)), "--core", str(lab.engine_core), "--json", *options]
    result = json.loads(run(command).splitlines()[-1])  # behind the engine's log
    lab.record(f"nvmf_loop {' '.join(options)}".strip(), command, result)
    return result


# ---- SPDK's

def perf_command(lab: Lab, depth: int, run_s: int) -> list[str]:
    where = f"trtype:TCP adrfam:IPv4 traddr:{ADDRESS} trsvcid:{PORT} subnqn:{NQN}"
    return [f"{spdk_target.built_in()}/build/bin/spdk_nvme_perf", "-r", where, "-s", str(PERF_MEMORY_MB), "-q", str(depth), "-o", "4096",
            "-w", "randread", "-t", str(run_s), "-c", hex(1 << lab.engine_core), "-L", "--transport-stats"]


def theirs(lab: Lab, depth: int) -> dict[str, float]:
    command = perf_command(lab, depth, run_seconds(lab.pace))
    result = read_perf(run(command), run_seconds(lab.pace))
    lab.record(f"spdk_nvme_perf qd{depth}", command, result)
    return result


def read_perf(text: str, run_s: int) -> dict[str, float]:
    """What spdk_nvme_perf has printed."""
    total = re.search(r"^Total\s*:\s*([\d.]+)", text, re.MULTILINE)
    median = re.search(r"^\s*50\.0+% :\s*([\d.]+)us", text, re.MULTILINE)
    in_vain = re.search(r"^\s*idle_polls:\s*(\d+)", text, re.MULTILINE)
    if not (total and median and in_vain):
        raise BenchError(f"spdk_nvme_perf said nothing of its load: {text.strip()[-400:]}")
    return {"kiops": float(total[1]) / 1e3, "p50_us": float(median[1]), "idle_polls": float(in_vain[1]), "seconds": float(run_s)}


def spdk_busy_ns(result: dict[str, float], idle_ns: float) -> float:
    """Of a request: all of the run but the polls in vain."""
    spent_ns = result["seconds"] * 1e9
    return (spent_ns - result["idle_polls"] * idle_ns) / (result["kiops"] * 1e3 * result["seconds"])


def idle_poll_ns(lab: Lab, target: SpdkTarget) -> float:
    """Of a run with one request in flight the time is requests times what one costs and polls in vain times what one of these costs. Two
    runs, one of which has few requests as the target stood still, give both."""
    run_s = math.ceil(2 * STILL_SECONDS) + 1
    command = perf_command(lab, 1, run_s)
    busy = read_perf(run(command), run_s)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        time.sleep(START_SECONDS)
        target.stop_still()
        time.sleep(STILL_SECONDS)
        target.go_on()
        still = read_perf(process.communicate(timeout=TIMEOUT_S)[0], run_s)
    idle_ns = solve_idle_ns(busy, still)
    lab.record("spdk_nvme_perf, of polls in vain", command, {"busy": busy, "still": still, "idle_ns": idle_ns})
    return idle_ns


def solve_idle_ns(busy: dict[str, float], still: dict[str, float]) -> float:
    requests = [run["kiops"] * 1e3 * run["seconds"] for run in (busy, still)]
    determinant = requests[0] * still["idle_polls"] - requests[1] * busy["idle_polls"]
    if determinant <= 0:
        raise BenchError("spdk_nvme_perf polled in vain no more often while its target stood still: is the machine busy?")
    return 1e9 * (requests[0] * still["seconds"] - requests[1] * busy["seconds"]) / determinant


def run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise BenchError(f"{command[0]} is missing: run 'make bench', or build SPDK") from None
    except subprocess.TimeoutExpired:
        raise BenchError(f"{command[0]}: no end after {TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise BenchError(f"{command[0]} ended with status {done.returncode}: {done.stdout.strip()[-400:]}")
    return done.stdout

# SPDX-License-Identifier: Apache-2.0
"""Engines exchanged under guests: one VM, 384 controllers, peers that flood, an engine that dies beside its standby, a disk in Ceph, a host over
NVMe/TCP. The program cleat-upgrade-bench does each; a guest that finds its disk wrong makes it fail."""

from __future__ import annotations

from collections.abc import Callable

from cleat_guest import BenchError
from cleat_guest.ceph import USER, MiniCeph

from cleat_bench import figure_program
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure

PROGRAM = "cleat-upgrade-bench"
ONE_BARS = ("upgrade_gap_ms_p99", "upgrade_gap_ms_max")
CROWD_BARS = ("upgrade_384_gap_ms_p99", "upgrade_384_total_s")
FLOODED_BARS = ("flooded_upgrade_ratio",)
STANDBY_BARS = ("standby_gap_ms_p99",)
STOPPED_BARS = ("stopped_engine_seen_ms", "stopped_engine_standby_gap_ms_p99")
RBD_BARS = ("rbd_upgrade_gap_ms_p99",)
EXPORT_BARS = ("tcp_upgrade_gap_ms_p99",)
QUICK_SECONDS = 3.0  # about, each
TIMEOUT_S = 900
IMAGE, IMAGE_MIB = "upgrade", 64


def lasts(seconds: float) -> Callable[[Pace], float]:
    return lambda pace: seconds if pace.run_s >= 1 else QUICK_SECONDS


def measure_one(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, PROGRAM, ("--only", "one"), ONE_BARS, TIMEOUT_S, name="upgrade")


def measure_crowd(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, PROGRAM, ("--only", "crowd"), CROWD_BARS, TIMEOUT_S, name="upgrade-384")


def measure_flooded(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, PROGRAM, ("--only", "flooded"), FLOODED_BARS, TIMEOUT_S, name="upgrade-flooded")


def measure_standby(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, PROGRAM, ("--only", "standby"), STANDBY_BARS, TIMEOUT_S, name="standby")


def measure_stopped(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, PROGRAM, ("--only", "stopped"), STOPPED_BARS, TIMEOUT_S, name="stopped")


def measure_export(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, PROGRAM, ("--only", "export"), EXPORT_BARS, TIMEOUT_S, name="export-upgrade")


def measure_rbd(lab: Lab) -> dict[str, Figure]:
    with MiniCeph(lab.path("ceph"), lab.log_dir) as ceph:
        ceph.create_image(IMAGE, f"{IMAGE_MIB}M")
        options = ("--only", "rbd", "--monitors", ceph.monitors, "--user", USER, "--image", IMAGE)
        return figure_program.run(lab, PROGRAM, options, RBD_BARS, TIMEOUT_S, name="rbd-upgrade",
                                  environment={"CLEAT_BENCH_CEPH_KEY": _key_of(ceph)})


def _key_of(ceph: MiniCeph) -> str:
    with open(ceph.keyring, encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition("=")
            if name.strip() == "key":
                return value.strip()
    raise BenchError(f"{ceph.keyring} has no key")

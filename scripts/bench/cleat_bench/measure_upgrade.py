# SPDX-License-Identifier: Apache-2.0
"""Engines exchanged under guests: one VM, 384 controllers, an engine that dies beside its standby, a disk in Ceph. The
program cleat-upgrade-bench does it all; a guest that finds its disk wrong makes it fail."""

from __future__ import annotations

from cleat_guest import BenchError
from cleat_guest.ceph import USER, MiniCeph

from cleat_bench import figure_program
from cleat_bench.lab import Lab, Pace
from cleat_bench.stats import Figure

PROGRAM = "cleat-upgrade-bench"
BARS = ("upgrade_gap_ms_p99", "upgrade_gap_ms_max", "upgrade_384_gap_ms_p99", "upgrade_384_total_s", "standby_gap_ms_p99")
RBD_BARS = ("rbd_upgrade_gap_ms_p99",)
SECONDS, QUICK_SECONDS = 60.0, 5.0  # about
RBD_SECONDS, RBD_QUICK_SECONDS = 13.0, 5.0
TIMEOUT_S = 900
IMAGE, IMAGE_MIB = "upgrade", 64


def seconds(pace: Pace) -> float:
    return SECONDS if pace.run_s >= 1 else QUICK_SECONDS


def rbd_seconds(pace: Pace) -> float:
    return RBD_SECONDS if pace.run_s >= 1 else RBD_QUICK_SECONDS


def measure(lab: Lab) -> dict[str, Figure]:
    return figure_program.run(lab, PROGRAM, (), BARS, TIMEOUT_S)


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

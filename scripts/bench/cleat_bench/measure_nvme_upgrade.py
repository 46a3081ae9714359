# SPDX-License-Identifier: Apache-2.0
"""How long a guest on an NVMe drive waits when its engine is exchanged, against windows of the same length without an upgrade.

This machine's kernel has no drive, so all of it - cleatd, two engines and cleat-upgrade-bench, which plays the VM - runs in a guest whose
drive QEMU emulates. Only ratios mean anything: emulated processors make everything slow alike. What of the wait is the drive's - opening
it, its label and map, its locks - is seen beside a memory disk's in the same guest (nvme_upgrade_memory_gap_ms_p50), whose upgrade has none
of that.
"""

from __future__ import annotations

from pathlib import Path

from cleat_guest.guest import Guest

from cleat_bench.lab import Lab, Pace
from cleat_bench.nvme_guest import nvme_guest
from cleat_bench.results import read_figures
from cleat_bench.stats import Figure

BARS = ("nvme_upgrade_gap_ratio",)
PROGRAMS = ("cleatd", "cleat-engine", "cleat-upgrade-bench")
DRIVE_BYTES = 128 << 20
UPGRADES = 9  # a round, as many windows without one
SECONDS = 200.0  # about
TIMEOUT_S = 900


def seconds(pace: Pace) -> float:
    return SECONDS if pace.run_s >= 1 else SECONDS / 5


def measure(lab: Lab) -> dict[str, Figure]:
    programs = [Path(lab.bin_dir) / name for name in PROGRAMS]
    image = Path(lab.dir) / "nvme-upgrade.img"
    with open(image, "wb") as file:
        file.truncate(DRIVE_BYTES)
    with nvme_guest(lab, "nvme-upgrade", programs, f"file={image},format=raw", memory_mb=1024) as guest:
        guest.run("mkdir -p /tmp")
        figures = one_run(lab, guest, "nvme", ["--device", "/dev/nvme0n1", "--nvme-upgrades", str(UPGRADES)])
        memory = one_run(lab, guest, "one", ["--upgrades", str(UPGRADES)])
    return figures | {"nvme_upgrade_memory_gap_ms_p50": memory["upgrade_gap_ms_p50"]}


def one_run(lab: Lab, guest: Guest, phase: str, options: list[str]) -> dict[str, Figure]:
    command = ["cleat-upgrade-bench", "--only", phase, *options, "--bin-dir", "/bin", "--dir", "/tmp", "--json", "/run/figures.json",
               *(["--quick"] if lab.quick else [])]
    guest.run(" ".join(command), TIMEOUT_S)
    figures = read_figures(guest.run("cat /run/figures.json"))
    lab.record(f"nvme upgrade {phase}", command, {name: figure.as_json() for name, figure in figures.items()})
    return figures

# SPDX-License-Identifier: Apache-2.0
"""Instructions a read of 4 KiB from an NVMe drive, engine's code and kernel together: by the drive's own commands, and through its
block device.

This machine's kernel has no drive, and an emulated one has no speed of its own. So tests/bench/namespace_loop runs in a guest with Linux
6.12 whose only processor's clock goes by instructions (QEMU's -icount), and what counts is the time that the processor was busy. The drive
has no file behind it and answers at once: one with a file answers when this machine's other threads let it, and with that it changes how many
completions are found at a time.

By commands also from registered memory (memory_pinned). Beside these a loop without the engine, with memory that the kernel looks up for
each command and with memory that it was told of before: what registering spares at best (docs/local-nvme.md).
"""

from __future__ import annotations

from pathlib import Path

from cleat_guest.guest import Guest

from cleat_bench.lab import Lab, Pace
from cleat_bench.nvme_guest import nvme_guest
from cleat_bench.stats import Figure, figure, ratio

BARS = ("nvme_passthrough_vs_uring_instructions",)
WAYS = ("commands", "pinned", "block", "bare", "registered")
DRIVE_BYTES = 64 << 20
DEPTH = 32
REQUESTS = 20_000
SECONDS_A_ROUND = 30.0  # about
TIMEOUT_S = 600


def seconds(pace: Pace) -> float:
    return pace.rounds * SECONDS_A_ROUND


def measure(lab: Lab) -> dict[str, Figure]:
    program = Path(lab.bin_dir).parent / "tests" / "namespace_loop"
    drive = f"driver=null-co,size={DRIVE_BYTES},read-zeroes=on"
    with nvme_guest(lab, "nvme", [program], drive, memory_mb=512, counted=True) as guest:
        rounds = {way: [] for way in WAYS}
        for _ in range(lab.pace.rounds):
            for way in WAYS:
                rounds[way].append(one_round(lab, guest, way))
    return ({f"nvme_{way}_instructions": figure(counts, "instructions") for way, counts in rounds.items()}
            | {BARS[0]: ratio(rounds["commands"], rounds["block"]),
               "nvme_pinned_spares_percent": figure(
                   [100 * (commands - pinned) / commands for commands, pinned in zip(rounds["commands"], rounds["pinned"])], "%"),
               "nvme_registered_spares_percent": figure(
                   [100 * (bare - registered) / commands for bare, registered, commands in
                    zip(rounds["bare"], rounds["registered"], rounds["commands"])], "%")})


def one_round(lab: Lab, guest: Guest, way: str) -> float:
    """Instructions a request: the guest's nanoseconds."""
    command = ["namespace_loop", "--device", "/dev/nvme0n1", "--by", way, "--depth", str(DEPTH), "--requests", str(REQUESTS)]
    count = float(guest.run(" ".join(command), TIMEOUT_S).split()[-1])  # behind the engine's log
    lab.record(f"nvme {way}", command, {"instructions": count})
    return count

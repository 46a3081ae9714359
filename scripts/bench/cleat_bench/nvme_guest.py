# SPDX-License-Identifier: Apache-2.0
"""A guest to measure in that has an NVMe drive, which QEMU emulates: this machine's kernel has none."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cleat_guest import BenchError
from cleat_guest.guest import Guest
from cleat_guest.programs import pack

from cleat_bench.lab import Lab

MAKE_IMAGE = Path(__file__).resolve().parent.parent.parent / "guest" / "make_image.sh"
TIMEOUT_S = 600


@contextlib.contextmanager
def nvme_guest(lab: Lab, name: str, programs: list[Path], drive: str, **options) -> Iterator[Guest]:
    """A guest with these programs of the build in /bin, and with a drive, /dev/nvme0n1, that takes commands at /dev/ng0n1. `drive`: its
    back end in QEMU's words (-drive). `options`: as Guest's."""
    for program in programs:
        if not program.exists():
            raise BenchError(f"{program} is missing: run 'make bench'")
    guest_dir = str(Path(lab.bin_dir).parent / "guest")
    made = subprocess.run([MAKE_IMAGE, "nvme"], env=os.environ | {"CLEAT_GUEST_DIR": guest_dir}, capture_output=True, text=True,
                          timeout=TIMEOUT_S, check=False)
    if made.returncode != 0:
        raise BenchError(f"no guest to measure in: {made.stdout.strip()}")
    archive = pack(str(Path(lab.dir) / f"{name}-programs.tar"), [str(program) for program in programs])
    guest = Guest(name, guest_dir, lab.log_dir, tools="nvme", files={"programs": archive}, nvme={"drive": {"drive": drive}}, **options)
    with guest:
        guest.wait_ready()
        guest.run("tar x -f /dev/vda -C / && until [ -b /dev/nvme0n1 ] && [ -c /dev/ng0n1 ]; do sleep 0.05; done")
        yield guest

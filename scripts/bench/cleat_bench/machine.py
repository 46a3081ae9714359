# SPDX-License-Identifier: Apache-2.0
"""What the figures were measured on, and whether somebody else was using it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

from cleat_guest import BenchError

CORES_NEEDED = 2
BUSY_PERCENT_MAX = 5.0  # of all cores together, by others: above that a warning


def _first_value(path: str, key: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"


def _os_name() -> str:
    for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return "unknown"


def describe(bin_dir: str) -> dict[str, str]:
    """For the page and the raw record; nothing that names this machine, only what it is like."""
    memory_kib = int(_first_value("/proc/meminfo", "MemTotal").split()[0])
    virtual = " (virtual machine)" if "hypervisor" in _first_value("/proc/cpuinfo", "flags").split() else ""
    return {
        "processor": _first_value("/proc/cpuinfo", "model name") + virtual,
        "cores": str(len(os.sched_getaffinity(0))),
        "L3 cache": _text("/sys/devices/system/cpu/cpu0/cache/index3/size"),
        "memory": f"{memory_kib / (1 << 20):.0f} GiB",
        "shared memory huge pages": _text("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "kernel": platform.release(),
        "system": _os_name(),
        "cleat": _output(os.path.join(bin_dir, "cleat-engine"), "--version"),
        "commit": _output("git", "-C", os.path.dirname(__file__), "describe", "--always", "--dirty"),
        "compiler": _output("c++", "--version"),
        "qemu-storage-daemon": _output("qemu-storage-daemon", "--version"),
    }


def choose_cores(wanted: str | None) -> tuple[int, int]:
    """The engine's and the generator's. They may not share one: each polls, and would wait for the other's time slice."""
    usable = sorted(os.sched_getaffinity(0))
    if wanted is None:
        if len(usable) < CORES_NEEDED:
            raise BenchError(f"this process may use {len(usable)} core(s), and the benchmarks need {CORES_NEEDED}: one "
                             "for the engine, one for the load generator")
        return usable[0], usable[1]
    try:
        engine, generator = (int(core) for core in wanted.split(","))
    except ValueError:
        raise BenchError(f"--cores {wanted}: two numbers are wanted, the engine's core and the generator's: 0,1") from None
    missing = {engine, generator} - set(usable)
    if engine == generator or missing:
        raise BenchError(f"--cores {wanted}: two different ones of {usable} are wanted")
    return engine, generator


def _cpu_ticks() -> tuple[int, int]:
    """(busy, all) of all cores since the start of the machine."""
    numbers = [int(word) for word in _text("/proc/stat").splitlines()[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, sum(numbers)


def stolen_percent(since: tuple[int, int] | None = None) -> tuple[float, tuple[int, int]]:
    """How much of all cores' time this machine's host gave to others since an earlier call, and what to give the next one. A
    reactor that polls does not notice, a thread that was woken waits for its core to come back."""
    numbers = [int(word) for word in _text("/proc/stat").splitlines()[0].split()[1:9]]
    now = numbers[7], sum(numbers)
    stolen, total = (now[0] - since[0], now[1] - since[1]) if since else (0, 0)
    return 100.0 * stolen / max(1, total), now


def busy_percent(seconds: float = 1.0) -> float:
    """How much of all cores is in use, by whomever; to be asked while nothing of ours runs."""
    busy, total = _cpu_ticks()
    time.sleep(seconds)
    busy_after, total_after = _cpu_ticks()
    return 100.0 * (busy_after - busy) / max(1, total_after - total)

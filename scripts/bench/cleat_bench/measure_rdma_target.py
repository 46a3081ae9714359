# SPDX-License-Identifier: Apache-2.0
"""Cleat's target over NVMe/RDMA beside Linux' and SPDK's, over soft-RoCE: everything in one guest, as this machine has no adapter. `PEER_SPDK` names the
folder that SPDK was built in.

One host, Linux' with fio, on three targets with a disk in memory: Linux' own (nvmet, a file in tmpfs), Cleat's (tests/bench/target_loop) and SPDK's (a
malloc block device). The last two sleep while there is nothing to do. An emulated guest has no speed of its own, and other programs of this machine change
its figures tenfold. So its only processor's clock goes by instructions, one a nanosecond (QEMU's -icount): what is compared is how many a request takes of
host, soft-RoCE and target together, of which the first two are the same for all. Where the processor is idle its time counts as well. Subjects alternate,
each with all loads.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cleat_guest import BenchError
from cleat_guest import spdk_target
from cleat_guest.guest import Guest
from cleat_guest.nvmf_guest import HOST_ID, HOST_NQN, program_of
from cleat_guest.programs import pack
from cleat_guest.spdk_guest import UNLIMITED, GuestSpdkTarget, prepare, spdk_programs

from cleat_bench.lab import Lab, Pace
from cleat_bench.nvme_guest import MAKE_IMAGE
from cleat_bench.stats import Figure, figure, interleave, ratio

RUN_MS, RAMP_MS = 150, 50  # by the guest's clock, of each load
BOOT_SECONDS = 120.0  # until all targets are connected, about
SECONDS_A_RUN = 15.0  # about
TIMEOUT_S = 600
MEMORY_MB = 3072
PAGES_MB = 512
DISK_MIB = 16
ADDRESS = "192.0.2.1"
KEEP_ALIVE_S = 600  # the most that Cleat takes
NVMET = "/sys/kernel/config/nvmet"
LINUX_PORT, OWN_PORT, SPDK_PORT = 4420, 4430, 4440
NQN = "nqn.2026-11.example:bench-"
UUID, SPDK_UUID = "3f0d7c52-9d0e-4a35-8f6b-6f1f0f9a7d13", "3f0d7c52-9d0e-4a35-8f6b-6f1f0f9a7d14"  # Linux' host takes no two of one


@dataclass(frozen=True)
class Load:
    pattern: str
    kib: int
    depth: int

    @property
    def name(self) -> str:
        return f"{self.pattern}_{self.kib}k_qd{self.depth}"


LOADS = (Load("randread", 4, 1), Load("randwrite", 4, 1), Load("randread", 4, 32), Load("randwrite", 4, 32), Load("randread", 128, 8))
TARGETS = ("linux", "own", "spdk")


def seconds(pace: Pace) -> float:
    return BOOT_SECONDS + pace.rounds * len(TARGETS) * SECONDS_A_RUN


# ---- The guest

@contextlib.contextmanager
def rdma_guest(lab: Lab, name: str) -> Iterator[Guest]:
    if spdk_target.built_in() is None:
        raise BenchError("PEER_SPDK is not set: it names the folder that SPDK was built in")
    guest_dir = str(Path(lab.bin_dir).parent / "guest")
    made = subprocess.run([MAKE_IMAGE, "rdma"], env=os.environ | {"CLEAT_GUEST_DIR": guest_dir}, capture_output=True, text=True, timeout=TIMEOUT_S,
                          check=False)
    if made.returncode != 0:
        raise BenchError(f"no guest to measure in: {made.stdout.strip()}")
    own = [Path(lab.bin_dir).parent / "tests" / program for program in ("target_loop",)]
    for program in own:
        if not program.exists():
            raise BenchError(f"{program} is missing: run 'make bench'")
    archive = pack(lab.path(f"{name}.tar"), [*map(str, own), *spdk_programs(lab, "nvmf_tgt"), program_of("nvme"), program_of("fio")])
    with Guest(name, guest_dir, lab.log_dir, tools="rdma", memory_mb=MEMORY_MB, files={"programs": archive}, kernel_options="nvme_core.multipath=0",
               counted=True) as guest:
        guest.wait_ready()
        guest.run(f"tar x -f /dev/vda -C / && mkdir -p /etc/nvme && ip address replace {ADDRESS}/24 dev dummy0; ip link set dummy0 up && "
                  "rdma link add rxe0 type rxe netdev dummy0 && mount -t configfs none /sys/kernel/config")
        prepare(guest, PAGES_MB)
        yield guest


@dataclass
class Target:
    """Shows a disk as NQN + `name` at `port`, which the host has as `device`."""

    name: str
    port: int
    device: str = ""


def start_linux(guest: Guest) -> Target:
    subsystem, port = f"{NVMET}/subsystems/{NQN}linux", f"{NVMET}/ports/1"
    space = f"{subsystem}/namespaces/1"
    guest.run(f"truncate -s {DISK_MIB}M /run/linux.img && mkdir {subsystem} && echo 1 >{subsystem}/attr_allow_any_host && mkdir {space} && "
              f"echo /run/linux.img >{space}/device_path && echo 1 >{space}/buffered_io && echo {UUID} >{space}/device_uuid && echo 1 >{space}/enable && "
              f"mkdir {port} && echo rdma >{port}/addr_trtype && echo ipv4 >{port}/addr_adrfam && echo {ADDRESS} >{port}/addr_traddr && "
              f"echo {LINUX_PORT} >{port}/addr_trsvcid && ln -s {subsystem} {port}/subsystems/")
    return Target("linux", LINUX_PORT)


def start_own(guest: Guest) -> Target:
    """Its input never ends, as it has both ends of it."""
    guest.run(f"mkfifo /run/own.in; ({UNLIMITED}exec target_loop --listen rdma://{ADDRESS}:{OWN_PORT} --nqn {NQN}own --host {HOST_NQN} "
              f"--mib {DISK_MIB} --sleeps <>/run/own.in >/run/own.out 2>&1) & echo $! >/run/own.pid")
    guest.run("until grep -q ready /run/own.out; do kill -0 $(cat /run/own.pid) && sleep 0.1 || { cat /run/own.out; exit 1; }; done")
    return Target("own", OWN_PORT)


def start_spdk(guest: Guest) -> Target:
    disk = ("bdev_malloc_create", {"name": "Disk", "num_blocks": DISK_MIB << 11, "block_size": 512})
    GuestSpdkTarget(guest, f"{NQN}spdk", SPDK_UUID, disk, [f"{ADDRESS}:{SPDK_PORT}"]).start()
    return Target("spdk", SPDK_PORT)


# ---- The host

def connect(guest: Guest, target: Target) -> None:
    guest.run(f"nvme connect -t rdma -a {ADDRESS} -s {target.port} -n {NQN}{target.name} -q {HOST_NQN} -I {HOST_ID} --nr-io-queues=1 "
              f"--keep-alive-tmo={KEEP_ALIVE_S}")
    target.device = guest.run(
        f"until name=$(grep -lx '{NQN}{target.name}' /sys/class/nvme/nvme*/subsysnqn) && name=$(basename $(dirname $name)) && [ -b /dev/${{name}}n1 ]; "
        "do sleep 0.1; done; echo /dev/${name}n1").strip()
    # Its memory is there before anything is measured.
    guest.run(f"dd if=/dev/zero of={target.device} oflag=direct bs=128k count={DISK_MIB * 8} 2>/dev/null")


# Requests a second of each load, by its name.
Rates = dict[str, float]


def run_fio(lab: Lab, guest: Guest, target: Target) -> Rates:
    """One process for all, as each takes seconds to begin."""
    loads = [f"--name={load.name} --stonewall --rw={load.pattern} --bs={load.kib}k --iodepth={load.depth}" for load in LOADS]
    command = (f"fio --name=global --filename={target.device} --direct=1 --ioengine=libaio --time_based --runtime={RUN_MS}ms "
               f"--ramp_time={RAMP_MS}ms --output-format=json {' '.join(loads)}")
    said = guest.run(command, TIMEOUT_S)
    rates: Rates = {}
    for job, load in zip(json.loads(said[said.index("{"):])["jobs"], LOADS, strict=True):
        if job["error"] or job["jobname"] != load.name:
            raise BenchError(f"{command}: {job['jobname']} in place of {load.name}, error {job['error']}")
        rates[load.name] = job["write" if load.pattern == "randwrite" else "read"]["iops"]
    lab.record(f"fio on {target.name}", command.split(), rates)
    print(f"  {target.name}: " + ", ".join(f"{name} {1e9 / rate:.0f}" for name, rate in rates.items()), flush=True)
    return rates


# ---- What is measured

def figures_of(runs: dict[str, list[Rates]]) -> dict[str, Figure]:
    """What a request takes by the guest's clock, in instructions, and Cleat's over each other's."""
    made: dict[str, Figure] = {}
    for load in LOADS:
        costs = {name: [1e9 / one[load.name] for one in of] for name, of in runs.items()}
        made |= {f"rdma_target_{name}_{load.name}_instructions": figure(of, "instructions") for name, of in costs.items()}
        made |= {f"rdma_target_vs_{name}_{load.name}": ratio(costs["own"], of) for name, of in costs.items() if name != "own"}
    return made


def measure(lab: Lab) -> dict[str, Figure]:
    with rdma_guest(lab, "rdma-target") as guest:
        targets = []
        for start in (start_linux, start_own, start_spdk):
            targets.append(start(guest))
            connect(guest, targets[-1])
            print(f"  {targets[-1].name} is connected", flush=True)
        return figures_of(interleave({target.name: lambda target=target: run_fio(lab, guest, target) for target in targets}, lab.pace.rounds))

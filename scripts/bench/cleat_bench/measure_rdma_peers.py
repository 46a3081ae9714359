# SPDX-License-Identifier: Apache-2.0
"""Cleat over NVMe/RDMA beside Linux and SPDK, over soft-RoCE: everything in one guest, as this machine has no adapter. `PEER_SPDK` names the folder that
SPDK was built in.

    rdma-target     one host, Linux' with fio, on three targets with a disk in memory: Linux' own (nvmet, a file in tmpfs), Cleat's (tests/bench/target_loop)
                    and SPDK's (a malloc block device); in one boot the last two sleep while there is nothing to do, in another one they poll
    rdma-initiator  one target, Linux' own, and three hosts: Linux' with fio, Cleat's (tests/bench/nvmf_loop) and SPDK's (spdk_nvme_perf)

The processors are emulated, and soft-RoCE takes most of their time: a ratio near 1 says that nothing is badly wrong, and no more. All targets have been
connected to from the beginning, and those that poll stand still while another one is measured. Subjects alternate, each with all loads.
"""

from __future__ import annotations

import contextlib
import json
import math
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
from cleat_guest.spdk_guest import UNLIMITED, GuestSpdkHost, GuestSpdkTarget, prepare, spdk_programs

from cleat_bench.lab import Lab, Pace
from cleat_bench.measure_tcp_target import read_perf
from cleat_bench.nvme_guest import MAKE_IMAGE
from cleat_bench.stats import Figure, figure, interleave, ratio

RUN_SECONDS = 2.0
START_SECONDS = 4.0  # of a run, in an emulated guest
BOOT_SECONDS = 60.0  # until all targets are connected, about
TIMEOUT_S = 600
MEMORY_MB = 3072
PAGES_MB = 768
DISK_MIB = 64
ADDRESS = "192.0.2.1"
KEEP_ALIVE_S = 600  # the most that Cleat takes: targets stand still for long
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
SUBJECTS = 3


def run_seconds(pace: Pace) -> int:
    """A run of the suite's length would be over before it is steady."""
    return max(1, math.ceil(RUN_SECONDS * min(1.0, pace.run_s)))


def target_seconds(pace: Pace) -> float:
    return 2 * initiator_seconds(pace)


def initiator_seconds(pace: Pace) -> float:
    return BOOT_SECONDS + pace.rounds * len(LOADS) * SUBJECTS * (run_seconds(pace) + START_SECONDS)


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
    own = [Path(lab.bin_dir).parent / "tests" / program for program in ("target_loop", "nvmf_loop")]
    for program in own:
        if not program.exists():
            raise BenchError(f"{program} is missing: run 'make bench'")
    archive = pack(lab.path(f"{name}.tar"), [*map(str, own), *spdk_programs(lab, "nvmf_tgt", "spdk_nvme_perf"), program_of("nvme"), program_of("fio")])
    with Guest(name, guest_dir, lab.log_dir, tools="rdma", memory_mb=MEMORY_MB, files={"programs": archive}, kernel_options="nvme_core.multipath=0") as guest:
        guest.wait_ready()
        guest.run(f"tar x -f /dev/vda -C / && mkdir -p /etc/nvme && ip address replace {ADDRESS}/24 dev dummy0; ip link set dummy0 up && "
                  "rdma link add rxe0 type rxe netdev dummy0 && mount -t configfs none /sys/kernel/config")
        prepare(guest, PAGES_MB)
        yield guest


class Target:
    """Shows a disk as NQN + `name` at `port`. `process`: the guest's file with its number, of one that stands still but for its runs."""

    def __init__(self, name: str, port: int, process: str | None = None) -> None:
        self.name = name
        self.port = port
        self.process = process
        self.device = ""

    @contextlib.contextmanager
    def runs(self, guest: Guest) -> Iterator[None]:
        if self.process is None:
            yield
            return
        guest.run(f"kill -CONT $(cat {self.process})")
        try:
            yield
        finally:
            guest.run(f"kill -STOP $(cat {self.process})")


def start_linux(guest: Guest, _polls: bool) -> Target:
    subsystem, port = f"{NVMET}/subsystems/{NQN}linux", f"{NVMET}/ports/1"
    space = f"{subsystem}/namespaces/1"
    guest.run(f"truncate -s {DISK_MIB}M /run/linux.img && mkdir {subsystem} && echo 1 >{subsystem}/attr_allow_any_host && mkdir {space} && "
              f"echo /run/linux.img >{space}/device_path && echo 1 >{space}/buffered_io && echo {UUID} >{space}/device_uuid && echo 1 >{space}/enable && "
              f"mkdir {port} && echo rdma >{port}/addr_trtype && echo ipv4 >{port}/addr_adrfam && echo {ADDRESS} >{port}/addr_traddr && "
              f"echo {LINUX_PORT} >{port}/addr_trsvcid && ln -s {subsystem} {port}/subsystems/")
    return Target("linux", LINUX_PORT)


def start_own(guest: Guest, polls: bool) -> Target:
    """Its input never ends, as it has both ends of it."""
    guest.run(f"mkfifo /run/own.in; ({UNLIMITED}exec target_loop --listen rdma://{ADDRESS}:{OWN_PORT} --nqn {NQN}own --host {HOST_NQN} "
              f"--mib {DISK_MIB} --core 0 {'' if polls else '--sleeps'} <>/run/own.in >/run/own.out 2>&1) & echo $! >/run/own.pid")
    guest.run("until grep -q ready /run/own.out; do kill -0 $(cat /run/own.pid) && sleep 0.1 || { cat /run/own.out; exit 1; }; done")
    return Target("own", OWN_PORT, "/run/own.pid" if polls else None)


def start_spdk(guest: Guest, polls: bool) -> Target:
    disk = ("bdev_malloc_create", {"name": "Disk", "num_blocks": DISK_MIB << 11, "block_size": 512})
    target = GuestSpdkTarget(guest, f"{NQN}spdk", SPDK_UUID, disk, [f"{ADDRESS}:{SPDK_PORT}"], polls=polls).start()
    return Target("spdk", SPDK_PORT, target.pid_file if polls else None)


# ---- Hosts

def connect(guest: Guest, target: Target) -> None:
    guest.run(f"nvme connect -t rdma -a {ADDRESS} -s {target.port} -n {NQN}{target.name} -q {HOST_NQN} -I {HOST_ID} --nr-io-queues=1 "
              f"--keep-alive-tmo={KEEP_ALIVE_S}")
    target.device = guest.run(
        f"until name=$(grep -lx '{NQN}{target.name}' /sys/class/nvme/nvme*/subsysnqn) && name=$(basename $(dirname $name)) && [ -b /dev/${{name}}n1 ]; "
        "do sleep 0.1; done; echo /dev/${name}n1").strip()
    # Its memory is there before anything is measured.
    guest.run(f"dd if=/dev/zero of={target.device} oflag=direct bs=128k count={DISK_MIB * 8} 2>/dev/null")
    if target.process is not None:
        guest.run(f"kill -STOP $(cat {target.process})")


# Requests a second of each load, by its name.
Rates = dict[str, float]


def run_fio(lab: Lab, guest: Guest, target: Target) -> Rates:
    """One process for all, as each takes seconds to begin."""
    loads = [f"--name={load.name} --stonewall --rw={load.pattern} --bs={load.kib}k --iodepth={load.depth}" for load in LOADS]
    command = (f"fio --name=global --filename={target.device} --direct=1 --ioengine=libaio --time_based --runtime={run_seconds(lab.pace)} --ramp_time=0.3 "
               f"--cpus_allowed=1 --output-format=json {' '.join(loads)}")
    with target.runs(guest):
        said = guest.run(command)
    rates: Rates = {}
    for job, load in zip(json.loads(said[said.index("{"):])["jobs"], LOADS, strict=True):
        if job["error"] or job["jobname"] != load.name:
            raise BenchError(f"{command}: {job['jobname']} in place of {load.name}, error {job['error']}")
        rates[load.name] = job["write" if load.pattern == "randwrite" else "read"]["iops"]
    lab.record(f"fio on {target.name}", command.split(), rates)
    return rates


def run_own(lab: Lab, guest: Guest, target: Target) -> Rates:
    rates: Rates = {}
    for load in LOADS:
        command = (f"nvmf_loop --address rdma://{ADDRESS}:{target.port} --nqn {NQN}{target.name} --namespace {UUID} --depth {load.depth} "
                   f"--block-bytes {load.kib << 10} {'--write' if load.pattern == 'randwrite' else ''} --seconds {run_seconds(lab.pace)} --core 1 "
                   f"--bytes {DISK_MIB << 20} --json")
        rates[load.name] = json.loads(guest.run(f"{UNLIMITED}{command} 2>/dev/null").strip().splitlines()[-1])["kiops"] * 1e3
        lab.record(f"nvmf_loop on {target.name}", command.split(), {load.name: rates[load.name]})
    return rates


def run_spdk(lab: Lab, host: GuestSpdkHost) -> Rates:
    rates: Rates = {}
    for load in LOADS:
        command = host.perf(f"-q {load.depth} -o {load.kib << 10} -w {load.pattern} -t {run_seconds(lab.pace)} -L")
        status, said = host.run(command)
        if status != 0:
            raise BenchError(f"{command} ended with status {status}: {said[-400:]}")
        rates[load.name] = read_perf(said)["kiops"] * 1e3
        lab.record("spdk_nvme_perf", command.split(), {load.name: rates[load.name]})
    return rates


# ---- What is measured

def figures_of(runs: dict[str, list[Rates]], prefix: str) -> dict[str, Figure]:
    """Each subject's requests a second, and Cleat's over each other's."""
    made: dict[str, Figure] = {}
    for load in LOADS:
        rates = {name: [one[load.name] for one in of] for name, of in runs.items()}
        made |= {f"{prefix}_{name}_{load.name}_iops": figure(of, "1/s") for name, of in rates.items()}
        made |= {f"{prefix}_vs_{name}_{load.name}": ratio(rates["own"], of) for name, of in rates.items() if name != "own"}
    return made


def measure_target(lab: Lab) -> dict[str, Figure]:
    return measure_targets(lab, "asleep", False) | measure_targets(lab, "polling", True)


def measure_targets(lab: Lab, way: str, polls: bool) -> dict[str, Figure]:
    with rdma_guest(lab, f"rdma-target-{way}") as guest:
        targets = []
        for start in (start_linux, start_own, start_spdk):
            targets.append(start(guest, polls))
            connect(guest, targets[-1])
        runs = interleave({target.name: lambda target=target: run_fio(lab, guest, target) for target in targets}, lab.pace.rounds)
        return figures_of(runs, f"rdma_target_{way}")


def measure_initiator(lab: Lab) -> dict[str, Figure]:
    with rdma_guest(lab, "rdma-initiator") as guest:
        target = start_linux(guest, False)
        connect(guest, target)
        spdk = GuestSpdkHost(guest, f"{NQN}{target.name}", HOST_NQN, f"{ADDRESS}:{target.port}")
        runs = interleave({"linux": lambda: run_fio(lab, guest, target), "own": lambda: run_own(lab, guest, target), "spdk": lambda: run_spdk(lab, spdk)},
                          lab.pace.rounds)
        return figures_of(runs, "rdma_initiator")

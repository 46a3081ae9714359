# SPDX-License-Identifier: Apache-2.0
"""SPDK in a guest, which has the adapters of RDMA that this machine lacks: its target, and the programs that are its host. `PEER_SPDK` names the folder
that it was built in. No root is needed on this machine, as the guest has huge pages of its own."""

import json
import os
import re
import shlex
import subprocess

from cleat_guest.guest import COMMAND_SECONDS
from cleat_guest.process import BenchError
from cleat_guest.spdk_target import built_in, nguid

_PROGRAMS = {"nvmf_tgt": "build/bin/nvmf_tgt", "spdk_nvme_perf": "build/bin/spdk_nvme_perf", "spdk_dd": "build/bin/spdk_dd",
             "bdevperf": "build/examples/bdevperf"}
_PAGE_MB = 2
_STRIP_SECONDS = 60  # for what can only hang
_CM_SECONDS = 30
# What SPDK says where the connection manager has told it nothing for a second, which emulated processors of a busy machine make of any step. perf has no
# option for that, and is run again.
_CM_TOO_LATE = "RDMA connect error -99"
_RUNS_MAX = 5
DISCOVERY_NQN = "nqn.2014-08.org.nvmexpress.discovery"
UNLIMITED = "ulimit -l unlimited; "  # memory that adapters reach is pinned


def spdk_programs(bench, *names):
    """Their paths on this machine, without what debuggers read of them, as all of a guest's files are in its memory."""
    found = []
    for name in names:
        path = os.path.join(built_in(), _PROGRAMS[name])
        if not os.path.exists(path):
            raise BenchError(f"{path} is missing: PEER_SPDK names no folder that SPDK was built in")
        found.append(bench.path(name))
        subprocess.run(["strip", "-o", found[-1], path], check=True, timeout=_STRIP_SECONDS)
    return found


def prepare(guest, megabytes):
    """What SPDK wants of a machine: huge pages, folders for its files, and settings for OpenSSL, be there none in them."""
    pages = megabytes // _PAGE_MB
    guest.run("mkdir -p /dev/hugepages /dev/shm /tmp /usr/lib/ssl /var/tmp && touch /usr/lib/ssl/openssl.cnf && ln -sfn /run /var/run && "
              "mount -t hugetlbfs nodev /dev/hugepages && "
              f"echo {pages} >/proc/sys/vm/nr_hugepages && [ $(cat /proc/sys/vm/nr_hugepages) = {pages} ]")


def write_config(guest, path, subsystems):
    """A file for --json. `subsystems`: names -> calls, which are pairs of a method and its parameters."""
    config = {"subsystems": [{"subsystem": name, "config": [{"method": method, "params": params} for method, params in calls]}
                             for name, calls in subsystems.items()]}
    guest.run(f"echo {shlex.quote(json.dumps(config))} >{path}")


def queue_pairs(guest, pid_file):
    """The numbers of those that the process in that file has."""
    return set(re.findall(r"lqpn (\d+)", guest.run(f"rdma resource show qp | grep -w \"pid $(cat {pid_file})\" || true")))


class GuestSpdkTarget:
    """SPDK's target with one namespace, at `addresses` ("192.0.2.1:4420") over RDMA. `device`: the call that makes the block device "Disk", as
    write_config has it. Its discovery service is there as well, and at the port behind the last address's. It sleeps while there is nothing to do, unless
    it `polls`, on the core `core`."""

    def __init__(self, guest, nqn, uuid, device, addresses, memory_mb=384, polls=False, core=0):
        self._guest = guest
        self._options = f"--no-pci --disable-cpumask-locks -m {1 << core:#x} -s {memory_mb} {'' if polls else '--interrupt-mode'}"
        self._life = 0
        self._config = "/run/spdk-target.json"
        self.pid_file = "/run/spdk-target.pid"
        host, port = addresses[-1].rsplit(":", 1)
        # Its log tells of each first listener at an address: of this one when it has read all of its configuration.
        last = f"{host}:{int(port) + 1}"
        self._last = f"Listening on {host} port {int(port) + 1} "
        listeners = [self._listener(name, address) for address in addresses for name in (nqn, DISCOVERY_NQN)] + [self._listener(DISCOVERY_NQN, last)]
        write_config(guest, self._config, {
            "bdev": [device],
            "nvmf": [("nvmf_create_transport", {"trtype": "RDMA", "max_srq_depth": 1024}),
                     ("nvmf_create_subsystem", {"nqn": nqn, "allow_any_host": True, "serial_number": "CLEAT", "ana_reporting": True}),
                     ("nvmf_subsystem_add_ns", {"nqn": nqn, "namespace": {"bdev_name": "Disk", "nsid": 1, "uuid": uuid, "nguid": nguid(uuid)}}),
                     *listeners]})

    @staticmethod
    def _listener(nqn, address):
        host, port = address.rsplit(":", 1)
        return "nvmf_subsystem_add_listener", {"nqn": nqn, "listen_address": {"trtype": "RDMA", "adrfam": "IPv4", "traddr": host, "trsvcid": port}}

    @property
    def log(self):
        """Of its present life, in the guest."""
        return f"/run/spdk-target-{self._life}.log"

    def queue_pairs(self):
        """The numbers of those that its present life has. Each new one has another number."""
        return queue_pairs(self._guest, self.pid_file)

    def start(self):
        self._life += 1
        # A socket of its own, as the one of a life that was killed stays.
        self._guest.run(f"({UNLIMITED}exec nvmf_tgt {self._options} -r /run/spdk-target-{self._life}.sock --json {self._config} >{self.log} 2>&1) & "
                        f"echo $! >{self.pid_file}")
        status, said = self._guest.execute(
            f"until grep -q '{self._last}' {self.log}; do kill -0 $(cat {self.pid_file}) && sleep 0.1 || {{ tail -n 40 {self.log}; exit 1; }}; done")
        if status != 0:
            raise BenchError(f"SPDK's target does not begin:\n{said}")
        return self

    def _signal(self, name):
        self._guest.run(f"kill -{name} $(cat {self.pid_file})")

    def stop_still(self):
        """As a host that swaps, or a suspended machine."""
        self._signal("STOP")

    def go_on(self):
        self._signal("CONT")

    def kill(self):
        """Until it is gone."""
        self._guest.run(f"kill -9 $(cat {self.pid_file}); while kill -0 $(cat {self.pid_file}) 2>/dev/null; do sleep 0.05; done")


class GuestSpdkHost:
    """SPDK's programs on a subsystem's namespace at `address` over RDMA, each a host of its own."""

    def __init__(self, guest, nqn, host_nqn, address, memory_mb=256, core=1):
        self._guest = guest
        self._nqn, self._host_nqn = nqn, host_nqn
        self._where = address.rsplit(":", 1)
        self._memory_mb = memory_mb
        self._core = core
        self._config = "/run/spdk-host.json"
        write_config(guest, self._config, {"bdev": [
            ("bdev_nvme_set_options", {"rdma_cm_event_timeout_ms": _CM_SECONDS * 1000}),
            ("bdev_nvme_attach_controller", {"name": "Nvme0", "trtype": "rdma", "adrfam": "ipv4", "traddr": self._where[0], "trsvcid": self._where[1],
                                             "subnqn": nqn, "hostnqn": host_nqn})]})

    def perf(self, options, host_nqn=None):
        """The command."""
        where = f"trtype:RDMA adrfam:IPv4 traddr:{self._where[0]} trsvcid:{self._where[1]} subnqn:{self._nqn} hostnqn:{host_nqn or self._host_nqn}"
        return f"spdk_nvme_perf -r '{where}' -s {self._memory_mb} -c {1 << self._core:#x} {options}"

    def bdevperf(self, options):
        """The command."""
        return f"bdevperf --json {self._config} -s {self._memory_mb} -m {1 << self._core:#x} -r /run/bdevperf.sock {options}"

    def dd(self, options):
        """The command. The block device is Nvme0n1."""
        return f"spdk_dd --json {self._config} -s {self._memory_mb} -m {1 << self._core:#x} {options}"

    def run(self, command, timeout_s=COMMAND_SECONDS):
        """(status, output)"""
        for _ in range(_RUNS_MAX):
            status, output = self._guest.execute(UNLIMITED + command, timeout_s)
            if _CM_TOO_LATE not in output:
                break
        return status, output

    def background(self, command):
        """A job; the command's process is the one whose number is in `pid_file`."""
        return self._guest.background(f"{UNLIMITED}{command} & echo $! >{self.pid_file}; wait $!")

    @property
    def pid_file(self):
        return "/run/spdk-host.pid"

    def queue_pairs(self):
        """The numbers of those that the command in the background has."""
        return queue_pairs(self._guest, self.pid_file)

# SPDX-License-Identifier: Apache-2.0
"""A guest with Linux' own NVMe/TCP host, and the disks that Cleat exports to it. Two network cards lead to this machine: two paths."""

import base64
import json
import os
import shlex
import shutil
import socket

from cleat_guest.guest import COMMAND_SECONDS, GuestError
from cleat_guest.nvmf_events import wait_for
from cleat_guest.process import BenchError
from cleat_guest.programs import pack

HOST_ID = "8d2f5a3e-4c0b-4a57-9d3e-0b9f6a1c7e31"
HOST_NQN = f"nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}"
OTHER_NQN = "nqn.2026-11.example:nobody"  # of a host that no export lets in
OTHER_ID = "8d2f5a3e-4c0b-4a57-9d3e-0b9f6a1c7e32"
PATHS = 2
# Below what the kernel gives to whoever connects (32768 and more), as such a port might connect to itself while nobody listens there.
_PORTS = range(20000, 32000)
_TOOLS = ("nvme", "fio")
_ENTRY_BYTES, _TREQ, _SUBNQN, _SECTYPE = 1024, 3, slice(256, 512), 768  # of a discovery log, behind a header as large as an entry
_MEMORY_MB = 768
_CONTROLLERS = "for c in /sys/class/nvme/nvme*; do [ -e $c/subsysnqn ] && echo $(basename $c) $(cat $c/subsysnqn $c/state $c/address); done; true"


def free_ports(count=PATHS):
    """Of 127.0.0.1, which is what a guest reaches of this machine. Nobody else takes one who does not look for it at this very moment."""
    found = []
    for port in (_PORTS[(os.getpid() + number) % len(_PORTS)] for number in range(len(_PORTS))):
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise BenchError(f"127.0.0.1 has not {count} free ports")


def program_of(name):
    """Where this machine has it."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise BenchError(f"{name} is missing: run 'make setup'")
    return path


class NvmfGuest:
    """Has namespaces of the subsystem `nqn`, which listens at `ports` of 127.0.0.1 here: each is a path, by a card of its own.
    `programs` and `files`: further ones, as pack (programs.py) has them; `kernel_options`: as Guest has them."""

    def __init__(self, bench, nqn, ports, name="guest", programs=(), files=None, kernel_options=""):
        self._nqn, self._ports = nqn, ports
        identity = dict(files or {})
        for file, text in (("hostnqn", HOST_NQN), ("hostid", HOST_ID)):
            identity[f"/etc/nvme/{file}"] = bench.path(f"{name}.{file}")
            with open(identity[f"/etc/nvme/{file}"], "w", encoding="utf-8") as out:
                out.write(text + "\n")
        archive = pack(bench.path(f"{name}.tar"), [program_of(tool) for tool in (*_TOOLS, *programs)], identity)
        self.guest = bench.guest(name, tools="nvme", memory_mb=_MEMORY_MB, files={"programs": archive}, uplinks=len(ports),
                                 kernel_options=kernel_options)

    def wait_ready(self):
        self.guest.wait_ready()
        self.guest.run("tar x -f /dev/vda -C /")
        self.guest.cards_up()
        return self

    # ---- Commands of nvme-cli's

    def _target(self, path):
        return f"-t tcp -a {self.guest.host_address(path)} -s {self._ports[path]}"

    def discover(self, as_other=False):
        """The ports at which a host is told that the subsystem is; `as_other`: one that is not let in."""
        said = self.json(f"discover {self._discovery(as_other)}")
        return [int(record["trsvcid"]) for record in (said or {}).get("records", []) if record["subnqn"] == self._nqn]

    def secure_channels(self, as_other=False):
        """What each entry of the subsystem says of them: TREQ's two bits, and SECTYPE. Out of the log as it is, as nvme has a name for
        neither where TREQ has its other bit set."""
        log = base64.b64decode(self.guest.run(f"nvme discover {self._discovery(as_other)} --raw=/run/discovery >/dev/null && base64 /run/discovery"))
        entries = [log[begin:begin + _ENTRY_BYTES] for begin in range(_ENTRY_BYTES, len(log), _ENTRY_BYTES)]
        return [(entry[_TREQ] & 3, entry[_SECTYPE]) for entry in entries if entry[_SUBNQN].rstrip(b"\0").decode() == self._nqn]

    def _discovery(self, as_other):
        return f"{self._target(0)} {f'-q {OTHER_NQN} -I {OTHER_ID}' if as_other else ''}"

    def connect(self, path, options=""):
        self.guest.run(f"nvme connect {self._target(path)} -n {self._nqn} {options}")

    def try_connect(self, path, options=""):
        """(status, output)"""
        return self.guest.execute(f"nvme connect {self._target(path)} -n {self._nqn} {options}")

    def connect_by_hand(self, path, options="", host_nqn=HOST_NQN, host_id=HOST_ID):
        """(status, output), by the kernel's own words, of which nvme has not all; and as whatever host. `options` begin with a comma."""
        return self.guest.execute(f"echo nqn={self._nqn},transport=tcp,traddr={self.guest.host_address(path)},trsvcid={self._ports[path]},"
                                  f"hostnqn={host_nqn},hostid={host_id}{options} >/dev/nvme-fabrics")

    def connect_as_other(self, path, options=""):
        """As a host that is not let in. Without nvme, to which a connection of this guest's is there already."""
        return self.connect_by_hand(path, options, OTHER_NQN, OTHER_ID)

    def connect_all(self, options=""):
        """By each path; the device of namespace 1."""
        for path in range(len(self._ports)):
            self.connect(path, options)
        return self.device(1)

    def disconnect(self):
        self.guest.run(f"nvme disconnect -n {self._nqn}")
        self.wait("no controller", self.controllers, lambda found: not found)

    def json(self, command):
        """What nvme says, as Python values."""
        said = self.guest.run(f"nvme {command} -o json 2>/run/nvme.err || {{ cat /run/nvme.err; exit 1; }}")
        return json.loads(said) if said.strip() else None

    # ---- What the kernel has

    def controllers(self):
        """Name -> (state, address), of those of the subsystem."""
        found = {}
        for line in self.guest.run(_CONTROLLERS).splitlines():
            name, nqn, state, address = line.split(maxsplit=3)
            if nqn == self._nqn:
                found[name] = (state, address)
        return found

    def associations(self):
        """The numbers that the target gave the controllers: each connection that begins anew has another one."""
        return sorted(int(self.guest.run(f"cat /sys/class/nvme/{name}/cntlid")) for name in self.controllers())

    def live(self):
        """How many controllers are usable."""
        return sum(state == "live" for state, _ in self.controllers().values())

    def wait_live(self, count):
        self.wait(f"{count} live controllers", self.controllers, lambda found: sum(state == "live" for state, _ in found.values()) == count)

    def heads(self):
        """nsid -> block devices: one each, whatever the number of paths."""
        found = {}
        for line in self.guest.run("cd /sys/block && for b in nvme*n*; do case $b in *c*n*) ;; *) [ -e $b/nsid ] && echo $b $(cat $b/nsid);; esac; "
                                   "done; true").splitlines():
            name, nsid = line.split()
            found.setdefault(int(nsid), []).append(f"/dev/{name}")
        return found

    def device(self, nsid):
        """That of a namespace, once it is there."""
        heads = self.wait(f"namespace {nsid}", self.heads, lambda found: nsid in found)
        if len(heads[nsid]) != 1:
            raise BenchError(f"namespace {nsid} has several devices: {heads[nsid]}; its paths are not taken for one")
        self.guest.run(f"until [ -b {heads[nsid][0]} ]; do sleep 0.05; done")
        return heads[nsid][0]

    def wait_gone(self, nsid):
        self.wait(f"no namespace {nsid}", self.heads, lambda found: nsid not in found)

    def size_bytes(self, device):
        return int(self.guest.run(f"cat /sys/block/{os.path.basename(device)}/size")) * 512

    def ana_states(self, device):
        """Of the paths to that namespace."""
        subsystem, _, head = os.path.basename(device).rpartition("n")
        return self.guest.run(f"cat /sys/block/{subsystem}c*n{head}/ana_state").split()

    @staticmethod
    def wait(what, get, there):
        return wait_for(what, get, there)

    # ---- Load

    def fio(self, device, options, timeout_s=COMMAND_SECONDS):
        """Writes, and reads all back with their checksums; GuestError where anything is wrong."""
        command = (f"fio --name=verify --filename={device} --direct=1 --ioengine=libaio --rw=randwrite --verify=crc32c --verify_fatal=1 "
                   f"--do_verify=1 {options}")
        status, output = self.guest.execute(command, timeout_s)
        if status != 0 or "err= 0" not in output:
            raise GuestError(command, status, output)

    def dump(self, device, offset, length):
        """The sum of what it reads there."""
        return self.guest.run(f"dd if={shlex.quote(device)} iflag=direct,skip_bytes,count_bytes bs=64k skip={offset} count={length} 2>/dev/null | "
                              "sha256sum").split()[0]

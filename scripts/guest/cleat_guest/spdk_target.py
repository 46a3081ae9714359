# SPDX-License-Identifier: Apache-2.0
"""SPDK's NVMe-oF target as a peer: `PEER_SPDK` names the folder that it was built in. As root: it wants huge pages, and a network namespace
of its own where its paths are to be black holes now and then."""

import json
import os
import signal
import socket
import subprocess
import time

from cleat_guest.process import BenchError, Process

_HUGE_PAGES = "/proc/sys/vm/nr_hugepages"
_HUGE_MOUNT = "/dev/hugepages"
_PAGE_MB = 2
_RPC_SECONDS = 60  # for what can only hang
_POLL_SECONDS = 0.05
# The network for benchmarks (RFC 2544), which nobody else has.
_NET_ADDRESSES = ("198.18.0.2", "198.18.1.2")
_PORT = 4420


def built_in():
    """The folder that SPDK was built in, or None."""
    return os.environ.get("PEER_SPDK") or None


def nguid(uuid):
    """A namespace's other name, made of that one."""
    return uuid.replace("-", "").upper()


def reserve_pages(megabytes):
    """Further free huge pages, that many megabytes at least."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        free = next(int(line.split()[1]) for line in file if line.startswith("HugePages_Free"))
    missing = megabytes // _PAGE_MB - free
    if missing > 0:
        with open(_HUGE_PAGES, "r+", encoding="utf-8") as file:
            pages = int(file.read()) + missing
            file.seek(0)
            file.write(str(pages))
    if not os.path.ismount(_HUGE_MOUNT):
        os.makedirs(_HUGE_MOUNT, exist_ok=True)
        subprocess.run(["mount", "-t", "hugetlbfs", "nodev", _HUGE_MOUNT], check=True)


class SpdkTarget:
    """One process, which sleeps while there is nothing to do, or polls on the core `polls_on`. `number` keeps apart what several that run at
    one time have; `net`: the name of the network namespace that it runs in."""

    def __init__(self, bench, number=1, memory_mb=512, net=None, polls_on=None):
        self._spdk = built_in()
        self._number = number
        self._memory_mb = memory_mb
        self._net = net
        self._polls_on = polls_on
        self._log = os.path.join(bench.log_dir, f"spdk-{number}.log")
        self._socket = bench.path(f"spdk-{number}.sock")
        self._process = None

    def start(self):
        reserve_pages(self._memory_mb)
        core = 0 if self._polls_on is None else self._polls_on
        sleeps = ["--interrupt-mode"] if self._polls_on is None else []
        inside = ["ip", "netns", "exec", self._net] if self._net else []
        self._process = Process(f"SPDK's target {self._number}", [
            *inside, os.path.join(self._spdk, "build/bin/nvmf_tgt"), "--disable-cpumask-locks", "-m", hex(1 << core), "-s",
            str(self._memory_mb), "--no-pci", "-r", self._socket, *sleeps], self._log)
        deadline = time.monotonic() + _RPC_SECONDS
        while True:
            self._process.check_running()
            try:
                self.rpc("spdk_get_version")
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise BenchError(f"SPDK's target {self._number} does not answer: {error}; its log is {self._log}") from error
                time.sleep(_POLL_SECONDS)
        self.rpc("nvmf_create_transport", trtype="TCP", in_capsule_data_size=8192)
        return self

    def rpc(self, method, **params):
        """The result; BenchError where SPDK refuses."""
        with socket.socket(socket.AF_UNIX) as call:
            call.settimeout(_RPC_SECONDS)
            call.connect(self._socket)
            request = {"jsonrpc": "2.0", "id": 1, "method": method}
            call.sendall(json.dumps(request | ({"params": params} if params else {})).encode())
            answer = b""
            while data := call.recv(1 << 16):
                answer += data
                try:
                    said = json.loads(answer)
                    break
                except ValueError:
                    continue
            else:
                raise BenchError(f"SPDK's target {self._number} hung up during {method}; its log is {self._log}")
        if "error" in said:
            raise BenchError(f"SPDK's target {self._number}: {method} {params}: {said['error']}")
        return said["result"]

    # ---- What it has

    def add_file(self, name, path, uuid, block_bytes=512):
        """A block device over a file."""
        self.rpc("bdev_aio_create", name=name, filename=path, block_size=block_bytes, uuid=uuid)

    def add_memory(self, name, blocks, uuid, block_bytes=512):
        """A block device in its huge pages."""
        self.rpc("bdev_malloc_create", name=name, num_blocks=blocks, block_size=block_bytes, uuid=uuid)

    def add_null(self, name, blocks, uuid, block_bytes=512):
        """A block device that keeps nothing."""
        self.rpc("bdev_null_create", name=name, num_blocks=blocks, block_size=block_bytes, uuid=uuid)

    def add_subsystem(self, nqn, device, uuid, nguid, any_host=True):
        """With one namespace, which other processes may show as well: hence its names. Controllers' numbers are each process's own."""
        first = self._number * 100
        self.rpc("nvmf_create_subsystem", nqn=nqn, allow_any_host=any_host, serial_number="CLEAT", ana_reporting=True,
                 min_cntlid=first, max_cntlid=first + 99)
        self.rpc("nvmf_subsystem_add_ns", nqn=nqn, namespace={"bdev_name": device, "nsid": 1, "uuid": uuid, "nguid": nguid})

    def add_key(self, name, path):
        """A secret in a file that nobody else may read."""
        self.rpc("keyring_file_add_key", name=name, path=path)

    def allow_host(self, nqn, host_nqn, **keys):
        """`keys`: dhchap_key, dhchap_ctrlr_key, psk, by the names of add_key. What is there has to be proved by, or to, that host."""
        self.rpc("nvmf_subsystem_add_host", nqn=nqn, host=host_nqn, **keys)

    @staticmethod
    def _listener(nqn, address):
        host, port = address.rsplit(":", 1)
        return {"nqn": nqn, "listen_address": {"trtype": "TCP", "adrfam": "IPv4", "traddr": host, "trsvcid": port}}

    def listen(self, nqn, address, tls=False):
        """`tls`: whoever connects to that address begins with a handshake."""
        self.rpc("nvmf_subsystem_add_listener", **self._listener(nqn, address), **({"secure_channel": True} if tls else {}))

    def unlisten(self, nqn, address):
        """Its connections end too."""
        self.rpc("nvmf_subsystem_remove_listener", **self._listener(nqn, address))

    def set_ana(self, nqn, address, state):
        self.rpc("nvmf_subsystem_listener_set_ana_state", ana_state=state, **self._listener(nqn, address))

    def writes(self, device):
        """That the block device has done."""
        return next(one["num_write_ops"] for one in self.rpc("bdev_get_iostat")["bdevs"] if one["name"] == device)

    # ---- What becomes of it

    def stop_still(self):
        """As a host that swaps, or a suspended machine."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process = None


class Net:
    """A network namespace with `addresses`, each at the end of a link of its own, which can be taken down: what is sent then is lost
    without a word. As root."""

    def __init__(self, name, addresses):
        self.name = name
        self._links = {}
        self._run("netns", "add", name)
        try:
            for number, address in enumerate(addresses):
                self._add(number, address)
        except BenchError:
            self.kill()
            raise

    def _add(self, number, address):
        here, there = f"{self.name}-{number}", f"{self.name}-{number}p"
        near = address.rsplit(".", 1)[0] + ".1"
        self._run("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
        self._run("addr", "add", f"{near}/30", "dev", here)
        self._run("link", "set", here, "up")
        self._run("-n", self.name, "addr", "add", f"{address}/30", "dev", there)
        self._run("-n", self.name, "link", "set", there, "up")
        self._links[address] = there

    def swallow(self, address, yes):
        """Whether nothing that is sent there arrives."""
        self._run("-n", self.name, "link", "set", self._links[address], "down" if yes else "up")

    def kill(self):
        self._run("netns", "delete", self.name)

    @staticmethod
    def _run(*arguments):
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class SpdkNamespace:
    """The file `image` as one namespace of a target of its own, at the addresses of a network of its own: two paths. As root. What it can be
    asked and told is what NvmfEvents (nvmf_events.py) says. `options`: of SpdkTarget's."""

    def __init__(self, bench, image, nqn, uuid, **options):
        self._image, self._nqn, self._uuid = image, nqn, uuid
        self._net = Net(f"cleat{os.getpid()}", _NET_ADDRESSES)
        self._target = SpdkTarget(bench, net=self._net.name, **options)
        self.addresses = [f"{address}:{_PORT}" for address in _NET_ADDRESSES]

    def add_device(self):
        """"Disk"."""
        self._target.add_file("Disk", self._image, self._uuid)

    def wait_ready(self):
        self._target.start()
        self.add_device()
        self._target.add_subsystem(self._nqn, "Disk", self._uuid, nguid(self._uuid))
        for address in self.addresses:
            self._target.listen(self._nqn, address)
        return self

    def kill(self):
        self._target.kill()
        self._net.kill()

    # ---- What it has

    def writes(self):
        return self._target.writes("Disk")

    def lives(self):
        """Its controllers, of which each path has one."""
        return {one["cntlid"] for one in self._target.rpc("nvmf_subsystem_get_controllers", nqn=self._nqn)}

    def lives_by(self, path):
        """Those by that path."""
        address = self.addresses[path].rsplit(":", 1)[0]
        return {one["cntlid"] for one in self._target.rpc("nvmf_subsystem_get_qpairs", nqn=self._nqn)
                if one["listen_address"]["traddr"] == address}

    def queues(self):
        """How many connections it has, of which each controller has one for its admin queue."""
        return len(self._target.rpc("nvmf_subsystem_get_qpairs", nqn=self._nqn))

    def has_lost(self, before, paths):
        return len(before - self.lives()) >= len(paths)

    def is_settled(self, before, paths):
        now = self.lives()
        return len(now) == len(self.addresses) and len(now - before) >= len(paths)

    # ---- What becomes of it

    def cut(self, path):
        self._target.unlisten(self._nqn, self.addresses[path])

    def mend(self, path):
        self._target.listen(self._nqn, self.addresses[path])

    def swallow(self, path, yes):
        self._net.swallow(_NET_ADDRESSES[path], yes)

    def set_ana(self, path, state):
        self._target.set_ana(self._nqn, self.addresses[path], state.replace("-", "_"))

    def stop_still(self):
        self._target.stop_still()

    def go_on(self):
        self._target.go_on()

    def restart(self):
        self._target.kill()
        self.wait_ready()

    def resize(self, size_bytes):
        os.truncate(self._image, size_bytes)
        self._target.rpc("bdev_aio_rescan", name="Disk")

    def remove_namespace(self):
        self._target.rpc("nvmf_subsystem_remove_ns", nqn=self._nqn, nsid=1)

    def add_namespace(self):
        self._target.rpc("nvmf_subsystem_add_ns", nqn=self._nqn,
                         namespace={"bdev_name": "Disk", "nsid": 1, "uuid": self._uuid, "nguid": nguid(self._uuid)})

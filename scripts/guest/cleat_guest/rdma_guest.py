# SPDX-License-Identifier: Apache-2.0
"""RDMA within one guest, as this machine's kernel has none: adapters in software (soft-RoCE), each of which leads from the guest to itself, Linux' own
NVMe/RDMA target on them, and Cleat with a disk there. The guest's image is "rdma"."""

from cleat_guest.kernel_target import QUEUES, Nvmet
from cleat_guest.nvme_host import Load
from cleat_guest.nvmf_events import NvmfEvents, RemoteDisk, wait_for

UNLIMITED = "ulimit -l unlimited; "  # memory that adapters reach is locked
ADDRESSES = ("192.0.2.1", "198.51.100.1")
PATHS = range(len(ADDRESSES))
PORT = 4420
_NOBODY = "0.0.0.0:0"  # the peer of an identifier that listens, or keeps an adapter open


class Adapters:
    """One for each of ADDRESSES is made with it. Whoever is in `guest` may use them."""

    def __init__(self, guest):
        self._guest = guest
        self._made = 0
        self._devices = {}  # path -> network device
        guest.run("ifconfig lo 127.0.0.1 up")
        for path in PATHS:
            self.add(path)

    def name(self, path):
        return f"rxe_{self._devices[path]}"

    def add(self, path):
        """As another one is put in place of one that was taken away, and gets its address. Soft-RoCE gives a network device no second adapter before all who
        had the first one open have closed it, which librdmacm does when it finds another one."""
        if path in self._devices:
            self._guest.run(f"ip address flush dev {self._devices[path]}")
        self._devices[path] = device = f"net{self._made}"
        self._made += 1
        self._guest.run(f"ip link add {device} type dummy && ip address add {ADDRESSES[path]}/24 dev {device} && ip link set {device} up && "
                        f"rdma link add {self.name(path)} type rxe netdev {device} && chmod 666 /dev/infiniband/*")

    def take_away(self, path):
        """Whoever has it open is told."""
        self._guest.run(f"rdma link delete {self.name(path)} >/dev/null 2>&1 &")

    def wait_gone(self, path):
        self._guest.run(f"while rdma link | grep -q '^link {self.name(path)}/'; do sleep 0.05; done")

    def connections(self, owner):
        """Connections of `owner`, a program or a module of the kernel's: each by its adapter's number, its peer and its queue pair."""
        found = set()
        for line in self._guest.run("rdma resource show cm_id").splitlines():
            words = line.split()
            said = dict(zip(words[::2], words[1::2]))
            if said["dst-addr"] != _NOBODY and said["comm"].strip("[]") == owner:
                adapter = said["link"].split("/")[0]
                found.update((path, said["dst-addr"], said.get("lqpn")) for path in PATHS if self.name(path) == adapter)
        return found


class RdmaTarget:
    """What is to be known of a target at both adapters, `owner` being its program or module. As NvmfEvents (nvmf_events.py) has targets, as far as it goes."""

    def __init__(self, adapters, owner, port):
        self._adapters, self._owner = adapters, owner
        self.addresses = [f"rdma://{address}:{port}" for address in ADDRESSES]

    def lives(self):
        """A queue of Linux' target ends when the last command that came by it is over, and its connection identifier after that."""
        return self._adapters.connections(self._owner)

    def has_lost(self, before, paths):
        return not any(life[0] in paths for life in before & self.lives())

    def is_settled(self, before, paths):
        now = self.lives()
        return all(sum(life[0] == path for life in now) >= QUEUES for path in PATHS) and not any(life[0] in paths for life in before & now)


class RdmaKernelTarget(RdmaTarget):
    """Linux' own, with one namespace, on `device`."""

    def __init__(self, guest, adapters, device, *, nqn, uuid):
        super().__init__(adapters, "nvmet_rdma", PORT)
        self._guest, self._device = guest, device
        self.nvmet = Nvmet(guest, nqn)
        self.nvmet.add_namespace(1, device, uuid)
        for path, address in enumerate(ADDRESSES):
            self.nvmet.listen(path + 1, address, PORT, transport="rdma")

    def writes(self):
        return int(self._guest.run(f"cat /sys/block/{self._device.removeprefix('/dev/')}/stat").split()[4])

    def cut(self, path):
        self.nvmet.cut(path + 1)

    def mend(self, path):
        self.nvmet.mend(path + 1)

    def listen_again(self, path):
        """At an adapter that was away: the kernel does not do it by itself."""
        self.cut(path)
        self.mend(path)


class RdmaDisk:
    """cleatd and an engine in `host` (NvmeHost), with a disk in `target`'s namespace, and what becomes of it. Each step leaves all paths up and nothing in
    doubt. `options`: of `cleatctl subsystem create`. `tell`: is told, in a line, what has happened."""

    def __init__(self, host, adapters, target, *, nqn, uuid, size_bytes, keep_alive_ms, options=(), tell=lambda text: None):
        self.host, self.adapters, self.target, self._tell = host, adapters, target, tell
        self.engine = 0
        host.start_cleatd()
        host.start_engine(self.engine, limits=UNLIMITED)
        self.disk = RemoteDisk(host, target.addresses, nqn=nqn, uuid=uuid, size_bytes=size_bytes, keep_alive_ms=keep_alive_ms,
                               options=options, controller="remote")
        self.events = NvmfEvents(self.disk, target, keep_alive_ms)
        # So that the adapters reach the virtual machine's memory by themselves.
        host.ctl("controller", "create", "remote", "--socket", "/run/remote.sock", "--memory-pinned")

    def attach(self):
        self.host.ctl("attach", "remote", "remote", "--wait=120")

    def load(self, options):
        """A virtual machine that writes, reads and verifies the disk, which is attached; once it has begun."""
        load = Load(self.host, "remote", options)
        self.goes_on()
        return load

    def end(self):
        """Nothing is left of it but the target."""
        self.host.ctl("detach", "remote", "remote", "--wait=120")
        self.host.clear(engines=self.engine + 1)

    def goes_on(self):
        self.events.goes_on()

    def wait_memory_registered(self):
        """With each adapter, by the engine that serves the disk now."""
        log = f"/run/engine-{self.engine}.log"
        for path in PATHS:
            self.host.guest.run(f"until grep -q 'its memory registered with the RDMA adapter {self.adapters.name(path)}' {log}; do sleep 0.05; done")

    # ---- What happens

    def cut(self, path):
        before = self.target.lives()
        self.target.cut(path)
        self._tell(f"the target has ended what it had by {self.target.addresses[path]}, and takes nothing there")
        self._go_on_without(before, path)
        self.target.mend(path)
        self._settle(before, [path])

    def lose_adapter(self, path):
        before = self.target.lives()
        self.adapters.take_away(path)
        self._wait_told_of_removal(self.adapters.name(path))
        self._tell(f"rdma link delete {self.adapters.name(path)}: neither end can use it any more")
        self._go_on_without(before, path)
        self.adapters.add(path)
        self.target.listen_again(path)
        self._tell(f"rdma link add {self.adapters.name(path)}: another one has its address, and the target listens there again")
        self._settle(before, [path])

    def upgrade(self):
        """Another engine takes the disk over. Its pause in milliseconds, by cleatd's clock."""
        before = self.target.lives()
        old, self.engine = self.engine, self.engine + 1
        self.host.start_engine(self.engine, limits=UNLIMITED)
        self.host.ctl("engine", "upgrade", f"engine-{old}", "--to", f"engine-{self.engine}")
        pause_ms = 1000 * float(self.host.ctl("engine", "get", f"engine-{old}")["status"]["upgrade"]["longest_pause"].rstrip("s"))
        self._tell(f"cleatctl engine upgrade engine-{old} --to engine-{self.engine}: the pause by cleatd's clock: {pause_ms:.0f} ms")
        self._settle(before, PATHS)
        return pause_ms

    def kill_engine(self):
        before = self.target.lives()
        self.host.kill_engine(self.engine)
        self._tell(f"engine-{self.engine} killed with SIGKILL")
        self.host.start_engine(self.engine, limits=UNLIMITED)
        self._tell("another one started: what the dead one had under way is in doubt")
        self._settle(before, PATHS)

    def stop_engine(self):
        """Until the target has missed it; then it goes on."""
        before = self.target.lives()
        self.host.signal_engine("STOP", self.engine)
        wait_for("the target to miss its host", lambda: self.target.has_lost(before, PATHS), bool)
        self.host.signal_engine("CONT", self.engine)
        self._settle(before, PATHS)

    def _wait_told_of_removal(self, adapter):
        """The kernel tells its own modules first, the target among them, and each has ended what it had on the adapter before the next one is told."""
        self.host.guest.run(f"until grep -q 'RDMA adapter {adapter}: .* was removed' /run/engine-{self.engine}.log; do sleep 0.05; done")

    def _go_on_without(self, before, path):
        wait_for("the disk to miss a path", self.disk.usable_paths, lambda usable: usable < len(PATHS))
        self.events.miss(before, path)
        in_doubt = int((self.disk.doubt() or {}).get("bytes", 0)) >> 10
        self.disk.confirm_dead()
        self.goes_on()
        self._tell(f"{in_doubt} KiB were in doubt; the target has nothing left of the connections that ended: cleatctl disk confirm-dead says so, and the "
                   f"disk goes on by {self.disk.usable_paths()} of {len(PATHS)} paths")

    def _settle(self, before, lost):
        self.events.settle(before, lost)
        self.goes_on()
        self._tell(f"{self.disk.usable_paths()} of {len(PATHS)} paths are up, the target has nothing left of older connections, and nothing is in doubt")

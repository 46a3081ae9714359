# SPDX-License-Identifier: Apache-2.0
"""Linux' NVMe-oF target (nvmet) in a guest, whose image has it ("nvme", "rdma"): this machine's kernel may have none."""

import os
import signal

NVMET = "/sys/kernel/config/nvmet"
_FIRST_PORT = 4420
_PATHS = 2
# What the target has of a path that may be used: an admin queue, and one of I/O for each reactor of the engine's, of which benches have one.
QUEUES = 2
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp
_GONE = "0"  # the inode of one that nobody has any more


class Nvmet:
    """One subsystem in `guest`, which anybody may use. Its ports are numbered from 1."""

    def __init__(self, guest, nqn):
        self._guest = guest
        self._nqn = nqn
        self.subsystem = f"{NVMET}/subsystems/{nqn}"
        guest.run("mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config; "
                  f"mkdir {self.subsystem} && echo 1 >{self.subsystem}/attr_allow_any_host")

    def add_namespace(self, nsid, device, uuid):
        space = self._namespace(nsid)
        self._guest.run(f"mkdir {space} && echo {device} >{space}/device_path && echo {uuid} >{space}/device_uuid && echo 1 >{space}/enable")

    def enable_namespace(self, nsid, enabled):
        self._guest.run(f"echo {int(enabled)} >{self._namespace(nsid)}/enable")

    def look_at_size(self, nsid):
        """The device's may have changed."""
        self._guest.run(f"echo 1 >{self._namespace(nsid)}/revalidate_size")

    def allow_host(self, host_nqn, key=None, ctrl_key=None, group="null"):
        """That one and no other, which has to prove that it has `key` and may ask for a proof of `ctrl_key`."""
        host = f"{NVMET}/hosts/{host_nqn}"
        secrets = [f"echo {secret} >{host}/{file}" for secret, file in ((key, "dhchap_key"), (ctrl_key, "dhchap_ctrl_key")) if secret]
        self._guest.run(" && ".join([f"echo 0 >{self.subsystem}/attr_allow_any_host", f"mkdir {host}", *secrets, f"echo {group} >{host}/dhchap_dhgroup",
                                     f"ln -s {host} {self.subsystem}/allowed_hosts/"]))

    def listen(self, number, address, port, tls=False, transport="tcp"):
        """Also at a port that other subsystems have already. `tls`: whoever connects there begins with a handshake. `transport`: "tcp" or "rdma"."""
        folder = self._port(number)
        # What a port says of TLS goes when its transport is written, and is taken without an end of line alone.
        secure = f"printf tls1.3 >{folder}/addr_tsas && printf required >{folder}/addr_treq && " if tls else ""
        self._guest.run(f"if mkdir {folder} 2>/dev/null; then echo {transport} >{folder}/addr_trtype && echo ipv4 >{folder}/addr_adrfam && {secure}"
                        f"echo {address} >{folder}/addr_traddr && echo {port} >{folder}/addr_trsvcid; fi && ln -s {self.subsystem} {self.link(number)}")

    def link(self, number):
        """What makes the subsystem be there at that port."""
        return f"{self._port(number)}/subsystems/{self._nqn}"

    def cut(self, number):
        """The target ends all connections of the port, and takes no new ones."""
        self._guest.run(f"rm {self.link(number)}")

    def mend(self, number):
        self._guest.run(f"ln -s {self.subsystem} {self.link(number)}")

    def set_ana(self, number, state):
        self._guest.run(f"echo {state} >{self._port(number)}/ana_groups/1/ana_state")

    def _namespace(self, nsid):
        return f"{self.subsystem}/namespaces/{nsid}"

    @staticmethod
    def _port(number):
        return f"{NVMET}/ports/{number}"


class KernelTarget:
    """A guest of its own, which shows the file `image` as one namespace. Two network cards lead to it, each from an address here: two paths.
    No root is needed. What it can be asked and told is what NvmfEvents (nvmf_events.py) says."""

    def __init__(self, bench, image, nqn, uuid):
        self._nqn, self._uuid = nqn, uuid
        self._ports = [_FIRST_PORT + path for path in range(_PATHS)]
        self.addresses = [f"{own_loopback()}:{port}" for port in self._ports]
        self._guest = bench.guest("target", tools="nvme", files={"drive": image}, cpus=1, memory_mb=384,
                                  forwards=zip(self.addresses, self._ports))
        self._nvmet = None

    def wait_ready(self):
        self._guest.wait_ready()
        self._guest.cards_up()
        self._nvmet = Nvmet(self._guest, self._nqn)
        self._nvmet.add_namespace(1, "/dev/vda", self._uuid)
        for path, port in enumerate(self._ports):
            self._nvmet.listen(path + 1, self._guest.card_address(path), port)
        return self

    # ---- What it has

    def writes(self):
        return int(self._guest.run("cat /sys/block/vda/stat").split()[4])

    def lives(self):
        """Its connections, each by its port, its peer and its inode, as a peer's port may come back. The target lets go of a socket when the last command that came by it is over; until
        then the socket has an inode, in whatever state it is."""
        found = set()
        for line in self._guest.run("cat /proc/net/tcp").splitlines()[1:]:
            _, own, peer, state, _, _, _, _, _, inode = line.split()[:10]
            if state != _LISTENS and inode != _GONE:
                found.add((int(own.rsplit(":", 1)[1], 16), peer, inode))
        return found

    def has_lost(self, before, paths):
        return not {life for life in before & self.lives() if life[0] in self._ports_of(paths)}

    def is_settled(self, before, paths):
        now = self.lives()
        return all(sum(life[0] == port for life in now) >= QUEUES for port in self._ports) and \
            not any(life[0] in self._ports_of(paths) for life in before & now)

    def _ports_of(self, paths):
        return {self._ports[path] for path in paths}

    # ---- What becomes of it

    def cut(self, path):
        self._nvmet.cut(path + 1)

    def mend(self, path):
        self._nvmet.mend(path + 1)

    def swallow(self, path, yes):
        self._guest.plug_cable(path, not yes)

    def set_ana(self, path, state):
        self._nvmet.set_ana(path + 1, state)

    def stop_still(self):
        os.kill(self._guest.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self._guest.pid, signal.SIGCONT)

    def restart(self):
        self._guest.kill()
        self._guest.start()
        self.wait_ready()

    def resize(self, size_bytes):
        self._guest.resize_file("drive", size_bytes)
        self._guest.run(f"until [ $(cat /sys/block/vda/size) = {size_bytes // 512} ]; do sleep 0.05; done")
        self._nvmet.look_at_size(1)

    def remove_namespace(self):
        self._nvmet.enable_namespace(1, False)

    def add_namespace(self):
        self._nvmet.enable_namespace(1, True)


def own_loopback():
    """An address of this process' own: all of 127.0.0.0/8 is this machine, and a port that the kernel gives to whoever connects, as a free one
    on 127.0.0.1 mostly is, might connect to itself while nobody listens there."""
    number = os.getpid()
    return f"127.{64 + (number >> 16)}.{(number >> 8) & 255}.{number & 255}"

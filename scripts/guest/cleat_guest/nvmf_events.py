# SPDX-License-Identifier: Apache-2.0
"""What becomes of the paths, the target and the engine of a disk over NVMe/TCP, under a load that goes on meanwhile.

A target (KernelTarget, SpdkNamespace) has `addresses`, each a path, which are numbered from 0 below, and says
  writes()                    that what is behind the namespace has done
  lives()                     what it has of hosts, each by a name that none has after it
  has_lost(before, paths)     whether nothing is left, by these paths, of `before`, which lives() said
  is_settled(before, paths)   ... and all paths are there, with what came since
and obeys
  cut(path), mend(path)       refuses the path, and ends what it has by it
  swallow(path, yes)          whether nothing that is sent on the path arrives
  set_ana(path, state)        "optimized", "non-optimized", "inaccessible"
  stop_still(), go_on()       as a suspended machine
  restart()                   killed, and there again
  resize(size_bytes), remove_namespace(), add_namespace()"""

import sys
import time

from cleat_guest.cleat import CtlError
from cleat_guest.guest import GuestError
from cleat_guest.host_load import HostLoad
from cleat_guest.process import BenchError

SECONDS = 120  # for what can only hang
_POLL_SECONDS = 0.05
_FURTHER_WRITES = 100
_WRITES_WITHOUT_A_PATH = 10


def wait_for(what, get, there):
    """Until `there` holds of what `get` returns, which is returned."""
    deadline = time.monotonic() + SECONDS
    while not there(last := get()):
        if time.monotonic() >= deadline:
            raise BenchError(f"{what}: not within {SECONDS} s; last: {last}")
        time.sleep(_POLL_SECONDS)
    return last


class RemoteDisk:
    """The disk `remote` of `cleat` (Cleat or NvmeHost), in a namespace of that subsystem's. `options`: further ones of `cleatctl subsystem create`."""

    def __init__(self, cleat, addresses, *, nqn, uuid, size_bytes, keep_alive_ms, options=(), controller="remote-blk"):
        self.cleat = cleat
        self._controller = controller
        cleat.ctl("subsystem", "create", "peer", "--nqn", nqn, "--keep-alive-ms", str(keep_alive_ms), *options,
                  *(word for address in addresses for word in ("--address", address)))
        cleat.ctl("disk", "create", "remote", "--size", str(size_bytes), "--nvme-tcp", "peer", "--namespace", uuid)

    def size_bytes(self):
        return int(self.cleat.ctl("disk", "get", "remote")["spec"]["size_bytes"])

    def attachment(self):
        return self.cleat.ctl("attachment", "get", self._controller, "remote")["status"]

    def usable_paths(self):
        paths = self.attachment()["paths"]
        return paths.get("optimized", 0) + paths.get("non_optimized", 0)

    def doubt(self):
        """What is in doubt, if anything is."""
        return self.cleat.ctl("disk", "get", "remote")["status"].get("doubt")

    def confirm_dead(self):
        """Said again where more has come into doubt meanwhile, as from a reactor that had not closed its socket yet."""
        def said():
            if self.doubt():
                try:
                    self.cleat.ctl_text("disk", "confirm-dead", "remote", "--yes")
                except (CtlError, GuestError) as error:
                    return error
            return self.doubt()
        wait_for("nothing in doubt", said, lambda doubt: not doubt)


class NvmfEvents:
    """Each leaves all as it was, and nothing in doubt. `proves`: the disk's target proves by reservations what is dead, as long as it has them;
    otherwise somebody's word ends the doubt."""

    def __init__(self, disk, target, keep_alive_ms, *, proves=False):
        self.disk = disk
        self.target = target
        self._keep_alive_ms = keep_alive_ms
        self._proves = proves
        self.proofs = 0
        self._paths = range(len(target.addresses))

    # ---- What is seen

    def goes_on(self, writes=_FURTHER_WRITES):
        before = self.target.writes()
        wait_for("further writes", self.target.writes, lambda now: now > before + writes)

    def goes_on_without_one(self):
        """While one path is lost. Few writes: those that overlap what is in doubt wait until somebody confirms, in the end all of a load's."""
        wait_for("the disk to miss a path", self.disk.usable_paths, lambda usable: usable < len(self.target.addresses))
        self.goes_on(_WRITES_WITHOUT_A_PATH)

    def miss(self, before, path):
        """Until the target has nothing left of what it had by that path."""
        wait_for("the target to miss its host", lambda: self.target.has_lost(before, [path]), bool)

    def settle(self, before, lost, *, forgotten=False):
        """Until each path is up again and the target has nothing left of the lost ones', of `before`. Only then is the word true that their
        commands are dead. `forgotten`: nor does it have their registrations, and so proves nothing of them."""
        wait_for("the paths to come back", lambda: self.target.is_settled(before, lost), bool)
        if self._proves and not forgotten:
            wait_for("the target's proof that nothing is in doubt", self.disk.doubt, lambda doubt: not doubt)
            self.proofs += 1
        else:
            self.disk.confirm_dead()

    # ---- What happens

    def cut(self):
        for path in self._paths:
            before = self.target.lives()
            self.target.cut(path)
            self.goes_on()
            self.target.mend(path)
            self.settle(before, [path])

    def swallow(self):
        for path in self._paths:
            before = self.target.lives()
            self.target.swallow(path, True)
            self.goes_on_without_one()
            self.miss(before, path)
            self.target.swallow(path, False)
            self.settle(before, [path])

    def change_ana(self):
        for state in ("inaccessible", "non-optimized", "optimized"):
            for path in self._paths:
                self.target.set_ana(path, state)
                self.goes_on()
                if state == "inaccessible":
                    self.target.set_ana(path, "optimized")

    def stop_still(self):
        before = self.target.lives()
        self.target.stop_still()
        time.sleep(4 * self._keep_alive_ms / 1000)
        self.target.go_on()
        self.settle(before, self._paths)

    def kill_target(self):
        self.target.restart()
        self.settle(set(), self._paths, forgotten=True)

    def resize(self):
        size_bytes = 2 * self.disk.size_bytes()
        self.target.resize(size_bytes)
        wait_for("the disk's new size", self.disk.size_bytes, lambda size: size == size_bytes)

    def remove(self):
        self.target.remove_namespace()
        wait_for("the disk to miss its namespace", lambda: self.disk.attachment()["storage_state"], lambda state: state != "STORAGE_STATE_OK")
        before = self.target.lives() if self._proves else set()  # which end, as they have to register anew
        self.target.add_namespace()
        self.settle(before, self._paths, forgotten=True)

    def kill_engine(self):
        before = self.target.lives()
        self.disk.cleat.restart_engine()
        self.settle(before, self._paths)

    def upgrade(self):
        self.disk.cleat.add_engine("engine-1")
        pause = self.disk.cleat.upgrade("engine-0", "engine-1")
        print(f"upgrade: {pause:.1f} ms without the disk", file=sys.stderr)

    def under_load(self, bench):
        """All of them, one after the other, while a front end on this host writes, reads and verifies; what it found. The engine goes twice."""
        path = bench.path("remote.sock")
        load = HostLoad(bench, "load", path, ["--mix", "read=30,write=70", "--depth", "8"])
        self.disk.cleat.attach("remote", path)
        self.goes_on()
        for step in (self.cut, self.swallow, self.change_ana, self.stop_still, self.kill_target, self.resize, self.remove,
                     self.kill_engine, self.upgrade):
            began = time.monotonic()
            step()
            self.goes_on()
            print(f"{step.__name__}: {time.monotonic() - began:.1f} s", file=sys.stderr)
        result = load.end_well()
        print(f"{result['verified_blocks']} blocks verified; longest request {result['latency_ns']['max'] / 1e9:.2f} s", file=sys.stderr)
        return result

# SPDX-License-Identifier: Apache-2.0
"""Cleat as the target of nvmf_ways.py: another host's, which exports a disk for each way."""

from cleat_guest.bare_host import BareHost, new_host_id
from cleat_guest.export import Export
from cleat_guest.kernel_target import own_loopback
from cleat_guest.nvmf_ways import DISK_BYTES

_PORT = 4420
_KEEP_ALIVE_MS = 10000
_ASKS = "nqn.2026-11.example:asks"  # a host without secrets, by which a namespace's UUID is asked
_KEY = "the same pre-shared key for this host's NQN and the subsystem's"
# One port serves all: hosts with a key are told from those without by their first byte.
_WORDS = {"no key": "allow it at the target", "a key that the target does not use": _KEY}


class ExportWays:
    """All of them at one port."""

    def __init__(self, bench):
        name = "target"
        self._cleat = bench.cleat(name, engine_options=("--kek-file", bench.path(f"{name}/state/kek")))  # which cleatd makes
        self._host = own_loopback()
        self._uuids = {}

    def show(self, way):
        address = f"{self._host}:{_PORT}"
        self._cleat.create_memory_disk(way.name, str(DISK_BYTES))
        export = Export(self._cleat, way.name, nqn=way.nqn, ports=[_PORT], hosts=[_ASKS], host=self._host)
        export.attach(way.name)
        with BareHost(address, way.nqn, new_host_id(), _ASKS, keep_alive_ms=_KEEP_ALIVE_MS) as asks:
            self._uuids[way] = asks.namespace_uuid()
        export.let_in([])
        export.add_host(way.host_nqn, way.right())
        return address

    def uuid(self, way):
        return self._uuids[way]

    @staticmethod
    def words(_way, what):
        return _WORDS.get(what)

    @staticmethod
    def authenticates(way):
        """An export has no word for it: a host that has to and did not was refused."""
        return bool(way.dhchap)

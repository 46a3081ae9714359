# SPDX-License-Identifier: Apache-2.0
"""An export of Cleat's, which hosts reach over NVMe/TCP at ports of 127.0.0.1."""

from cleat_guest.cleat import WAIT


class Export:
    """The export `name` of `cleat`, with no disk yet. `hosts`: NQNs that are let in."""

    def __init__(self, cleat, name, *, nqn, ports, hosts, options=()):
        self.cleat, self.name, self.nqn = cleat, name, nqn
        cleat.ctl("export", "create", name, "--nqn", nqn, *(word for port in ports for word in ("--listen", f"127.0.0.1:{port}")),
                  *self._hosts(hosts), *options)

    @staticmethod
    def _hosts(hosts):
        return [word for host in hosts for word in ("--hosts", host)]

    def let_in(self, hosts):
        """These and no others."""
        self.cleat.ctl("export", "update", self.name, *self._hosts(hosts))

    def get(self):
        return self.cleat.ctl("export", "get", self.name)

    def attach(self, disk):
        """The namespace's number."""
        return self.cleat.attach_scsi(disk, self.name) + 1

    def detach(self, disk):
        self.cleat.detach_scsi(disk, self.name)

    def delete(self):
        self.cleat.ctl("export", "delete", self.name, WAIT)

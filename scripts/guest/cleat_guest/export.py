# SPDX-License-Identifier: Apache-2.0
"""An export of Cleat's, which hosts reach over NVMe/TCP at ports of this machine's loopback."""

import tempfile

from cleat_guest.cleat import WAIT
from cleat_guest.nvmf_secrets import secret_options


class Export:
    """The export `name` of `cleat`, with no disk yet. `hosts`: NQNs that are let in, without secrets; `host`: the address of `ports`."""

    def __init__(self, cleat, name, *, nqn, ports, hosts, host="127.0.0.1", options=()):
        self.cleat, self.name, self.nqn = cleat, name, nqn
        cleat.ctl("export", "create", name, "--nqn", nqn, *(word for port in ports for word in ("--listen", f"{host}:{port}")),
                  *self._hosts(hosts), *options)

    @staticmethod
    def _hosts(hosts):
        return [word for host in hosts for word in ("--hosts", host)]

    def let_in(self, hosts):
        """These and no others."""
        self.cleat.ctl("export", "update", self.name, *(self._hosts(hosts) or ["--no-hosts"]))

    def add_host(self, nqn, secrets):
        """Lets it in with these secrets: kind -> secret (nvmf_secrets.py)."""
        self._change_host("add", nqn, secrets)

    def update_host(self, nqn, secrets):
        """These secrets and no others."""
        self._change_host("update", nqn, secrets, removes_others=True)

    def remove_host(self, nqn):
        self.cleat.ctl("export", "host", "remove", self.name, nqn)

    def _change_host(self, verb, nqn, secrets, **how):
        with tempfile.TemporaryDirectory() as folder:
            self.cleat.ctl("export", "host", verb, self.name, nqn, *secret_options(folder, secrets, **how))

    def get(self):
        return self.cleat.ctl("export", "get", self.name)

    def attach(self, disk):
        """The namespace's number."""
        return self.cleat.attach_scsi(disk, self.name) + 1

    def detach(self, disk):
        self.cleat.detach_scsi(disk, self.name)

    def delete(self):
        self.cleat.ctl("export", "delete", self.name, WAIT)

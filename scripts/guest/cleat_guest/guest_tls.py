# SPDX-License-Identifier: Apache-2.0
"""TLS of a guest's kernel, as a host's or a target's of NVMe/TCP: the daemon that makes its handshakes, and its keys."""

import os

from cleat_guest.nvmf_secrets import derived_psk


def tls_programs():
    """What Linux needs for TLS beside the kernel: the daemon that makes its handshakes (ktls-utils, which Debian 12 has not) and what gives the
    kernel keys (keyutils). PEER_TLSHD names the folder that has both; None: it does not."""
    folder = os.environ.get("PEER_TLSHD")
    programs = [os.path.join(folder, name) for name in ("tlshd", "keyctl")] if folder else []
    return programs if programs and all(os.path.exists(program) for program in programs) else None


class GuestTls:
    """In `guest`, which has the programs. The keyring in which the kernel looks for keys becomes the session's, so that they may be put there.
    `peers`: addresses of targets, whose names the daemon wants to know."""

    def __init__(self, guest, peers=()):
        self._guest = guest
        for number, address in enumerate(peers):
            guest.run(f"echo {address} target{number} >>/etc/hosts")
        guest.run("printf '[authenticate]\\nkeyrings=.nvme\\n' >/etc/tlshd.conf && keyctl link %:.nvme @s && "
                  "{ tlshd -s -c /etc/tlshd.conf >/run/tlshd.log 2>&1 & }")

    def add_psk(self, name, host_nqn, nqn):
        """That of the secret `name` (nvmf_secrets.py), for these two; in place of one that was there."""
        identity, key = derived_psk(name, host_nqn, nqn)
        octets = "".join(f"\\x{octet:02x}" for octet in key)
        self._guest.run(f"printf '{octets}' | keyctl padd psk '{identity}' %:.nvme")

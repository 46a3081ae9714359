# SPDX-License-Identifier: Apache-2.0
"""The ways in which a host may speak to an NVMe/TCP target: digests, DH-HMAC-CHAP, TLS. Each has a subsystem of its own, whose disk a guest's
fio writes and verifies, once all secrets but the right ones were refused and said why.

A target (KernelWays, SpdkWays) obeys
  show(way)           the way's subsystem, with one namespace, for the way's host alone; the address
and says
  authenticates(way)  whether the host has authenticated on all of its connections"""

import dataclasses
import os

from cleat_guest.cleat import WAIT, CtlError
from cleat_guest.kernel_target import Nvmet, own_loopback
from cleat_guest.nvmf_events import wait_for
from cleat_guest.nvmf_secrets import derived_psk, dhchap_secret, tls_psk, write_secret
from cleat_guest.process import BenchError
from cleat_guest.programs import pack
from cleat_guest.spdk_target import nguid
from cleat_guest.verified_load import VerifiedLoad

DISK_BYTES = 16 << 20
_KEEP_ALIVE_MS = 60000  # nothing dies here, and what it would leave in doubt waits for an operator
_PORT = 4420  # of the ways without TLS; those with it have the next one
_CONTROLLER = "vm"
_LOAD = {"size": "8M", "io_size": "4M", "sizes": "4k-256k"}
_NEIGHBOUR = {"size": "4M", "io_size": "4M", "rate": 100}
# Options of cleatctl's, and what the right secret of each is made of.
_HOST, _SUBSYSTEM, _TLS = "dhchap-secret", "dhchap-ctrl-secret", "tls-psk"
_FORMS = {_HOST: dhchap_secret, _SUBSYSTEM: dhchap_secret, _TLS: tls_psk}


@dataclasses.dataclass(frozen=True)
class Way:
    """`number`: from 0, of all ways of one target; `digests`: options of cleatctl's; `secrets`: what the target asks for."""

    number: int
    name: str
    digests: tuple = ()
    secrets: tuple = ()

    @property
    def nqn(self):
        return f"nqn.2026-11.example:{self.name}"

    @property
    def uuid(self):
        """Of the namespace."""
        return f"5d0c6e0a-1b52-4d43-9a55-6f3e2c8d71{self.number:02x}"

    @property
    def host_id(self):
        """Each way is used by a host of its own, as Linux' target has one set of secrets for a host, whatever the subsystem."""
        return f"5d0c6e0a-1b52-4d43-9a55-6f3e2c8d72{self.number:02x}"

    @property
    def host_nqn(self):
        return f"nqn.2014-08.org.nvmexpress:uuid:{self.host_id}"

    @property
    def dhchap(self):
        """The host's secret, or None."""
        return self._secret(_HOST)

    @property
    def dhchap_ctrl(self):
        return self._secret(_SUBSYSTEM)

    @property
    def psk(self):
        return self._secret(_TLS)

    @property
    def psk_name(self):
        """What the pre-shared key is made of."""
        return self._name_of(_TLS)

    def right(self):
        return {kind: self._secret(kind) for kind in self.secrets}

    def _name_of(self, kind):
        return f"{kind} of {self.name}"

    def _secret(self, kind):
        return _FORMS[kind](self._name_of(kind)) if kind in self.secrets else None


_CHAP = (Way(4, "chap", secrets=(_HOST,)), Way(5, "chap-both", secrets=(_HOST, _SUBSYSTEM)))
PLAIN = Way(0, "plain")
TLS_WAYS = (Way(6, "tls", secrets=(_TLS,)), Way(7, "tls-chap", secrets=(_HOST, _SUBSYSTEM, _TLS)))
CLEAR_WAYS = (PLAIN, Way(1, "header-digest", ("--header-digest",)), Way(2, "data-digest", ("--data-digest",)),
              Way(3, "digests", ("--header-digest", "--data-digest")), *_CHAP)


def _refusals(way):
    """What is wrong, the secrets that are given then, and what has to be said."""
    right = way.right()
    wrong = {kind: _FORMS[kind]("somebody else's") for kind in right}
    if _TLS in right:
        yield "another key", right | {_TLS: wrong[_TLS]}, "the same pre-shared key for this host's NQN and the subsystem's"
    # What comes without an answer has all the time that a disk has to be opened: once for each.
    if way.secrets == (_TLS,):
        yield "no key", {}, "connection lost"
    if way == PLAIN:
        yield "a key that the target does not use", {_TLS: tls_psk("nobody's")}, "see that its listener has a secure channel"
    if _HOST in right:
        yield "another secret", right | {_HOST: wrong[_HOST]}, "the target does not accept the host's secret"
        yield "no secret", {kind: right[kind] for kind in right if kind == _TLS}, "no secret is configured"
    if _SUBSYSTEM in right:
        yield "another subsystem's secret", right | {_SUBSYSTEM: wrong[_SUBSYSTEM]}, f"the target does not have the secret of subsystem {way.nqn}"


class Walk:
    """All of `ways` of one target, with one guest, whose disks are those of one SCSI controller: what comes costs no boot."""

    def __init__(self, bench, target):
        self._bench = bench
        self._target = target
        self._cleat = bench.cleat(engine_options=("--kek-file", bench.path("state/kek")))  # which cleatd makes
        socket = bench.path(f"{_CONTROLLER}.sock")
        self._cleat.create_controller(_CONTROLLER, socket, kind="scsi")
        self._guest = bench.guest(scsi={_CONTROLLER: socket}, tools="fio")
        self.refused = 0  # attachments

    def go(self, ways):
        """The first way's fio goes on until the end, whatever is refused beside it."""
        self._guest.wait_ready()
        neighbour = None
        for way in ways:
            self._create(way)
            for what, secrets, words in _refusals(way):
                self._is_refused(way, what, secrets, words, neighbour)
            load = self._load(way, _LOAD if neighbour else _NEIGHBOUR)
            if neighbour:
                load.wait()
            else:
                neighbour = load
                neighbour.wait_begun()
            if self._target.authenticates(way) != bool(way.dhchap):
                raise BenchError(f"{way.name}: its target says that the host's connections were {'not ' if way.dhchap else ''}authenticated")
        neighbour.wait()

    def _create(self, way):
        address = self._target.show(way)
        self._cleat.ctl("subsystem", "create", way.name, "--nqn", way.nqn, "--address", address, "--host-nqn", way.host_nqn, "--host-id", way.host_id,
                        "--keep-alive-ms", str(_KEEP_ALIVE_MS), *way.digests)
        self._cleat.ctl("disk", "create", way.name, "--size", str(DISK_BYTES), "--nvme-tcp", way.name, "--namespace", way.uuid)

    def _give(self, way, secrets):
        """These secrets and no others."""
        words = []
        for kind in _FORMS:
            if kind not in secrets:
                words.append(f"--no-{kind}")
                continue
            words += [f"--{kind}-file", write_secret(self._bench.path(f"{way.name}.{kind}"), secrets[kind])]
        self._cleat.ctl("subsystem", "update", way.name, *words)

    def _is_refused(self, way, what, secrets, words, neighbour):
        self._give(way, secrets)
        # More than once where a target is too busy to answer, and that is the reason.
        wait_for(f"{way.name}, with {what}, to be refused: \"{words}\"", lambda: self._refusal(way, neighbour), lambda said: words in said)
        self._is_logged(way, words)
        self.refused += 1

    def _refusal(self, way, neighbour):
        """The attachment's message when it has failed; it is gone then."""
        try:
            self._cleat.ctl("attach", way.name, _CONTROLLER, WAIT)
        except CtlError as error:
            if neighbour:
                neighbour.goes_on()  # while the engine tries again and again
            self._cleat.detach_scsi(way.name, _CONTROLLER)
            return error.message
        raise BenchError(f"{way.name}: attached with secrets that are not the right ones")

    def _is_logged(self, way, words):
        with open(self._cleat.cleatd.log_path, encoding="utf-8") as log:
            if not any(words in line and f"disks/{way.name}:" in line for line in log):
                raise BenchError(f"cleatd's log has no line of {way.name} with \"{words}\"")

    def _load(self, way, options):
        self._give(way, way.right())
        place = self._cleat.attach_scsi(way.name, _CONTROLLER)
        return VerifiedLoad(self._guest, self._guest.scsi_device(_CONTROLLER, place), name=way.name, seed=way.number + 1, **options)


class SpdkWays:
    """SPDK's target, with a file for each way. As root."""

    def __init__(self, bench):
        self._bench = bench
        self._target = bench.spdk()
        self._host = own_loopback()

    def show(self, way):
        image = self._bench.path(f"{way.name}.img")
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        self._target.add_file(way.name, image, way.uuid)
        self._target.add_subsystem(way.nqn, way.name, way.uuid, nguid(way.uuid), any_host=False)
        keys = {"dhchap_key": way.dhchap, "dhchap_ctrlr_key": way.dhchap_ctrl, "psk": way.psk}
        self._target.allow_host(way.nqn, way.host_nqn, **{kind: self._add_key(f"{way.name}-{kind}", key) for kind, key in keys.items() if key})
        address = f"{self._host}:{_PORT + bool(way.psk)}"
        self._target.listen(way.nqn, address, tls=bool(way.psk))
        return address

    def authenticates(self, way):
        queues = self._target.rpc("nvmf_subsystem_get_qpairs", nqn=way.nqn)
        return bool(queues) and all(queue.get("auth", {}).get("state") == "completed" for queue in queues)

    def _add_key(self, name, key):
        self._target.add_key(name, write_secret(self._bench.path(name), key))
        return name


def tls_programs():
    """What Linux' target needs for TLS beside the kernel: the daemon that makes its handshakes (ktls-utils, which Debian 12 has not) and what gives
    the kernel keys (keyutils). PEER_TLSHD names the folder that has both; None: it does not."""
    folder = os.environ.get("PEER_TLSHD")
    programs = [os.path.join(folder, name) for name in ("tlshd", "keyctl")] if folder else []
    return programs if programs and all(os.path.exists(program) for program in programs) else None


class KernelWays:
    """Linux' target, in a guest with a drive for each of `ways` and two network cards, the second one for those with TLS."""

    def __init__(self, bench, ways):
        files = {way.name: bench.path(f"{way.name}.img") for way in ways}
        for path in files.values():
            with open(path, "wb") as file:
                file.truncate(DISK_BYTES)
        with_tls = any(way.psk for way in ways)
        if with_tls:
            files["programs"] = pack(bench.path("programs.tar"), tls_programs())
        self._ports = [_PORT, _PORT + 1]
        self._addresses = [f"{own_loopback()}:{port}" for port in self._ports]
        self._guest = bench.guest("target", tools="nvme", files=files, cpus=1, memory_mb=384, forwards=zip(self._addresses, self._ports))
        self._guest.wait_ready()
        self._guest.cards_up()
        if with_tls:
            self._start_tlshd()

    def _start_tlshd(self):
        """For keys of the keyring in which the kernel's target looks for them, which becomes the session's so that they may be put there."""
        self._guest.run(f"tar x -f {self._guest.device('programs')} -C / && printf '[authenticate]\\nkeyrings=.nvme\\n' >/etc/tlshd.conf && "
                        "keyctl link %:.nvme @s && { tlshd -s -c /etc/tlshd.conf >/run/tlshd.log 2>&1 & }")

    def show(self, way):
        nvmet = Nvmet(self._guest, way.nqn)
        nvmet.add_namespace(1, self._guest.device(way.name), way.uuid)
        # Without a group for one of the two that authenticate, and with one for the other.
        nvmet.allow_host(way.host_nqn, way.dhchap, way.dhchap_ctrl, "ffdhe2048" if way.dhchap_ctrl else "null")
        if way.psk:
            identity, key = derived_psk(way.psk_name, way.host_nqn, way.nqn)
            octets = "".join(f"\\x{octet:02x}" for octet in key)
            self._guest.run(f"printf '{octets}' | keyctl padd psk '{identity}' %:.nvme")
        card = int(bool(way.psk))
        nvmet.listen(card + 1, self._guest.card_address(card), self._ports[card], tls=bool(way.psk))
        return self._addresses[card]

    def authenticates(self, way):
        """The kernel says so of the controller, whose queues it asks all or none."""
        said = self._guest.run(f"dmesg | grep 'creating.* for NQN {way.host_nqn}' | tail -n 1")
        return "with DH-HMAC-CHAP" in said
